"""Three web apps that start a saga in the transaction of a request: FastAPI, Django and Flask."""
