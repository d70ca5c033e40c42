"""What MariaDB and MySQL are given in place of partial indexes, which they lack.

A unique index lets any number of rows pass that hold a null in it. So of the incidents a column
that the database computes says which are open, and the others hold a null there.
"""

from typing import Any

from sqlalchemy import DDL, Table, event

MYSQL = "mysql"
"""The dialect of both."""
OPEN = "is_open"
"""The computed column of the incidents; no row is ever read or written by it."""
_INSTEAD = {
    "ix_incidents_open": (
        f"ALTER TABLE incidents"
        f" ADD COLUMN {OPEN} INTEGER GENERATED ALWAYS AS (IF(resolved_at IS NULL, 1, NULL)) STORED,"
        f" ADD UNIQUE INDEX ix_incidents_open (saga_id, path, kind, {OPEN})"
    ),
    "ix_nodes_alive": "CREATE INDEX ix_nodes_alive ON nodes (ended_at, heartbeat_at)",
    "ix_sagas_live": "CREATE INDEX ix_sagas_live ON sagas (state, id)",
}


def knows_partial_indexes(*_: Any, dialect: Any, **__: Any) -> bool:
    """Tell whether a partial index can be made; a condition of ``Index.ddl_if``."""
    return bool(dialect.name != MYSQL)


def make_instead(table: Table, index: str) -> None:
    """Have what stands for a partial index made together with its table."""
    statement: Any = DDL(_INSTEAD[index])  # type: ignore[no-untyped-call]
    event.listen(table, "after_create", statement.execute_if(dialect=MYSQL))


def is_compared(dialect: str, name: str | None, kind: str) -> bool:
    """Tell whether Alembic may compare a part of the schema with the models: not what is above."""
    stands_for = (kind == "index" and name in _INSTEAD) or (kind == "column" and name == OPEN)
    return dialect != MYSQL or not stands_for
