"""What a revision uses where Alembic's own would not do on one of the databases."""

from typing import Any

import sqlalchemy as sa
from alembic import op


def create_index(name: str, table: str, columns: list[str], **more: Any) -> None:
    """Build an index while others write.

    On PostgreSQL that is no part of a transaction, so it has to be the only thing that its revision
    does. One that failed halfway has left an unusable index, which is dropped first. MariaDB and
    MySQL let others write by themselves.
    """
    if op.get_bind().dialect.name != "postgresql":
        if not on_mysql() or name not in _indexes(table):
            op.create_index(name, table, columns, **more)
        return
    with op.get_context().autocommit_block():
        # It waits for transactions that began before it, and nobody waits for it meanwhile.
        op.execute("SET lock_timeout = 0")
        op.drop_index(name, postgresql_concurrently=True, if_exists=True)
        op.create_index(name, table, columns, postgresql_concurrently=True, **more)


def _indexes(table: str) -> set[str | None]:
    """Return the indexes that are there, as after a revision that was cut off."""
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}


def on_mysql() -> bool:
    """Tell whether the database is MariaDB or MySQL, which have no partial indexes."""
    return op.get_bind().dialect.name == "mysql"


def table_options() -> dict[str, Any]:
    """Return what a new table is told, whatever MariaDB or MySQL would do by default.

    Texts are the same only if their characters are, trailing spaces included.
    """
    is_mariadb = getattr(op.get_bind().dialect, "is_mariadb", False)
    collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
    return {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": collation}


def has_column(table: str, name: str) -> bool:
    """Tell whether a column is there, as after a revision that was cut off on MariaDB or MySQL.

    There a change of a table cannot be rolled back.
    """
    return name in {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
