"""What is executed: agents as Celery tasks, and the processes that run them."""
