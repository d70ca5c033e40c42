"""The history of the schema, and how a database is brought to its newest state."""
