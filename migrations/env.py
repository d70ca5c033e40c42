"""What Alembic runs for each command: binds it to a connection and to the models.

The connection comes from the caller (``migrations.run.upgrade``). Without one, as when a developer
types ``alembic revision --autogenerate``, a database is opened at ``ATALAIA_DATABASE_URL``.
"""

import os
from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection, TypeDecorator, create_engine

import models
from models.mysql import is_compared


def render_item(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Write a column type of ours as what it is made of: a revision must outlive the models."""
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{item.impl!r}"
    return False


def migrate(connection: Connection) -> None:
    """Run the command that Alembic was asked for over ``connection``."""
    context.configure(
        connection=connection,
        target_metadata=models.Base.metadata,
        render_item=render_item,
        # SQLite cannot alter most of a table: Alembic copies it instead.
        render_as_batch=connection.dialect.name == "sqlite",
        transaction_per_migration=connection.dialect.name != "sqlite",
        include_object=lambda _, name, kind, *__: is_compared(connection.dialect.name, name, kind),
    )
    with context.begin_transaction():
        context.run_migrations()


if given := context.config.attributes.get("connection"):
    migrate(given)
else:
    with create_engine(os.environ["ATALAIA_DATABASE_URL"]).begin() as opened:
        migrate(opened)
