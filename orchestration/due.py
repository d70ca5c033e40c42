"""What the supervisor looks for: bounded reads of what is due, oldest first, without a lock.

What is found is locked and looked at again before anything is decided, so a stale find is harmless.

None of these reads may cost more where more sagas are under way. So each is written such that an
index leads to the few rows that it is about, whatever the statistics say: a clock that is read for
each row cannot bound a range in an index, so the time is asked for first; and what may be read once
into a hash table will be.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Table,
    bindparam,
    func,
    literal_column,
    select,
    text,
)

from models import Saga, Step
from models.base import listed
from models.states import SAGA_LIVE, STEP_LIVE, StepState
from orchestration.statement import Prepared
from orchestration.store import Store

FIRST = UUID(int=0)
"""Before every id."""

_sagas: Table = Saga.__table__
_steps: Table = Step.__table__

_EARLIEST = Prepared(
    select(
        *(
            select(func.min(table.c.wake_at))
            .where(table.c.wake_at.is_not(None))
            .scalar_subquery()
            .label(table.name)
            for table in (_steps, _sagas)
        )
    )
)
_UNTAKEN = Prepared(
    select(*(_steps.c[name] for name in ("saga_id", "path", "direction", "queue", "attempt")))
    .where(_steps.c.state == literal_column(f"'{StepState.DISPATCHED}'"))
    .order_by(_steps.c.wake_at)
    .limit(bindparam("most", type_=Integer()))
)
_WAITING = Prepared(
    select(func.count().label("number")).select_from(
        select(_steps.c.path)
        .where(
            _steps.c.state == literal_column(f"'{StepState.DISPATCHED}'"),
            _steps.c.queue == bindparam("in_queue"),
            _steps.c.direction == bindparam("towards"),
        )
        .limit(bindparam("most", type_=Integer()))
        .subquery()
    )
)
_LIVE_SAGAS = Prepared(
    select(
        _sagas.c.id,
        select(_steps.c.path)
        .where(_steps.c.saga_id == _sagas.c.id, text(listed("steps.state", STEP_LIVE)))
        .limit(literal_column("1"))
        .scalar_subquery()
        .label("moves"),
    )
    .where(text(listed("sagas.state", SAGA_LIVE)), _sagas.c.id > bindparam("behind"))
    .order_by(_sagas.c.id)
    .limit(bindparam("most", type_=Integer()))
)


def _in(state: str) -> ColumnElement[bool]:
    return _steps.c.state == literal_column(f"'{state}'")


def _due_steps(state: StepState) -> Prepared:
    query = (
        select(
            _steps.c.saga_id,
            _steps.c.path,
            _steps.c.direction,
            _steps.c.queue,
            _steps.c.agent,
            _steps.c.dispatch_count,
            _sagas.c.definition_id,
        )
        .join_from(_steps, _sagas, _sagas.c.id == _steps.c.saga_id)
        .where(_in(state), _steps.c.wake_at <= bindparam("by"))
        .order_by(_steps.c.wake_at)
        .limit(bindparam("most", type_=Integer()))
    )
    return Prepared(query)


_DUE_STEPS = {state: _due_steps(state) for state in sorted(STEP_LIVE)}
_DUE_SAGAS = Prepared(
    select(_sagas.c.id)
    .where(_sagas.c.wake_at <= bindparam("by"))
    .order_by(_sagas.c.wake_at)
    .limit(bindparam("most", type_=Integer()))
)


def kinds(connection: Connection, store: Store) -> set[str]:
    """Return in which of its live states any step is due, and ``saga`` if any deadline is."""
    (row,) = store.prepared(_due_kinds).all(connection)
    return {kind for kind, found in row._asdict().items() if found}


def _due_kinds(now: ColumnElement[datetime]) -> Prepared:
    first: dict[str, Select[Any]] = {
        state: select(func.min(_steps.c.wake_at)).where(_in(state)) for state in sorted(STEP_LIVE)
    }
    first["saga"] = select(func.min(_sagas.c.wake_at)).where(_sagas.c.wake_at.is_not(None))
    due = ((query.scalar_subquery() <= now).label(kind) for kind, query in first.items())
    return Prepared(select(*due))


def steps(connection: Connection, store: Store, state: StepState, limit: int) -> list[Any]:
    """Return due steps: (saga_id, path, direction, queue, agent, dispatch_count, definition_id)."""
    now = store.time(connection)
    return _DUE_STEPS[state].all(connection, by=now, most=limit)


def untaken(connection: Connection, limit: int) -> list[Any]:
    """Return dispatched steps, due or not: (saga_id, path, direction, queue, attempt)."""
    return _UNTAKEN.all(connection, most=limit)


def next_at(connection: Connection) -> datetime | None:
    """Return the earliest instant at which a step or a saga is due, or ``None``."""
    (instants,) = _EARLIEST.all(connection)
    return min((at for at in instants if at is not None), default=None)


def waiting_for(connection: Connection, queue: str, direction: str, *, limit: int) -> int:
    """Return how many steps are dispatched in a direction to the agents of a queue.

    Counts no further than ``limit``.
    """
    (row,) = _WAITING.all(connection, in_queue=queue, towards=direction, most=limit)
    number: int = row.number
    return number


def sagas(connection: Connection, store: Store, limit: int) -> list[UUID]:
    """Return the sagas whose deadline is to be acted on."""
    now = store.time(connection)
    return [row.id for row in _DUE_SAGAS.all(connection, by=now, most=limit)]


def unended(connection: Connection, after: UUID, window: int) -> list[UUID]:
    """Return the next ``window`` sagas behind ``after``, by id, that have not ended."""
    query = select(_sagas.c.id).where(_sagas.c.ended_at.is_(None), _sagas.c.id > after)
    return list(connection.execute(query.order_by(_sagas.c.id).limit(window)).scalars())


def stranded(connection: Connection, after: UUID, window: int) -> tuple[list[UUID], UUID]:
    """Look at the next ``window`` live sagas behind ``after``, by id.

    Return those none of whose steps has a next wake-up, and where to go on; at the end that is the
    beginning again. However many sagas there are, one look costs the same.
    """
    live = _LIVE_SAGAS.all(connection, behind=after, most=window)
    still = [saga.id for saga in live if saga.moves is None]
    return still, live[-1].id if len(live) == window else FIRST
