"""Starting: the first rows of a saga.

What a start decides depends on no particular time. So it is decided as if it were ``ONCE``, and
what it writes is moved to the database's present: by the statement that writes it, where all of it
is one statement, and otherwise by asking for the time first.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Table, bindparam, select

from models import Saga
from orchestration.database import insert_unless_there
from orchestration.snapshot import StepSnapshot, changed
from orchestration.statement import AnyConnection, Change, Prepared, all_or_none, is_one
from orchestration.store import Store, add_step

_sagas: Table = Saga.__table__
ONCE = datetime(2000, 1, 1, tzinfo=UTC)


def add_saga_unless_key_taken(
    store: Store,
    connection: AnyConnection,
    values: Mapping[str, Any],
    steps: Sequence[StepSnapshot],
) -> bool:
    """Insert a saga with its steps, all decided at ``ONCE``; tell whether it is new."""
    dialect, key, saga_id = connection.dialect.name, values["key"], values["id"]
    if is_one(connection, 1 + len(steps)):
        saga = Change("saga", _ADD_SAGA_SINCE, values)
        rows = [add_step(saga_id, step, since=ONCE) for step in steps]
        return all_or_none(connection, [saga, *rows], store.present)
    passed = store.time(connection) - ONCE
    saga = Change("saga", _add_saga(dialect), _later(values, passed))
    rows = [add_step(saga_id, changed(step, **_later(vars(step), passed))) for step in steps]
    if dialect != "mysql" or key is None:
        return all_or_none(connection, [saga, *rows])
    saga.statement.change(connection, **saga.values)
    there = saga_of_key(connection, values["workflow"], key)
    if there is None or there.id != saga_id:
        return False
    return all_or_none(connection, rows)


def saga_of_key(connection: AnyConnection, workflow: str, key: str) -> Any | None:
    """Return (id, input) of the saga that was started under ``key``, or ``None``."""
    query = _OF_KEY_NOW if connection.dialect.name == "mysql" else _OF_KEY
    return query.first(connection, called=workflow, under=key)


def _later(values: Mapping[str, Any], passed: timedelta) -> dict[str, Any]:
    """Return ``values`` with every instant moved."""
    return {
        name: value + passed if isinstance(value, datetime) else value
        for name, value in values.items()
    }


_COLUMNS = (
    "id", "definition_id", "workflow", "key", "input", "state", "created_at", "deadline_at",
    "wake_at", "trace",
)  # fmt: skip


@cache
def _add_saga(dialect: str) -> Prepared:
    return Prepared(insert_unless_there(dialect, _sagas), _COLUMNS)


_ADD_SAGA_SINCE = Prepared(insert_unless_there("postgresql", _sagas), _COLUMNS, since=ONCE)
_FIND_KEY = select(_sagas.c.id, _sagas.c.input).where(
    _sagas.c.workflow == bindparam("called"), _sagas.c.key == bindparam("under")
)
_OF_KEY = Prepared(_FIND_KEY)
_OF_KEY_NOW = Prepared(_FIND_KEY.with_for_update())
