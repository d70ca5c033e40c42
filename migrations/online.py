"""What a revision after the first uses where Alembic's own would lock a hot table for long."""

from typing import Any

from alembic import op


def create_index(name: str, table: str, columns: list[str], **more: Any) -> None:
    """Build an index while others write.

    On PostgreSQL that is no part of a transaction, so it has to be the only thing that its revision
    does. One that failed halfway has left an unusable index, which is dropped first.
    """
    if op.get_bind().dialect.name != "postgresql":
        op.create_index(name, table, columns, **more)
        return
    with op.get_context().autocommit_block():
        # It waits for transactions that began before it, and nobody waits for it meanwhile.
        op.execute("SET lock_timeout = 0")
        op.drop_index(name, postgresql_concurrently=True, if_exists=True)
        op.create_index(name, table, columns, postgresql_concurrently=True, **more)
