"""What the supervisor looks for: bounded reads of what is due, oldest first, without a lock.

What is found is locked and looked at again before anything is decided, so a stale find is harmless.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, Table, func, select

from models import Saga, Step
from models.states import SAGA_LIVE, STEP_LIVE, StepState
from orchestration.statement import Prepared

FIRST = UUID(int=0)
"""Before every id."""

_sagas: Table = Saga.__table__  # type: ignore[assignment]
_steps: Table = Step.__table__  # type: ignore[assignment]

_EARLIEST = tuple(
    Prepared(select(func.min(table.c.wake_at).label("at")).where(table.c.wake_at.is_not(None)))
    for table in (_steps, _sagas)
)


def steps(
    connection: Connection, now: ColumnElement[datetime], state: StepState, limit: int
) -> list[Row[Any]]:
    """Return due steps: (saga_id, path, direction, queue, agent, dispatch_count, definition_id)."""
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
        .where(_steps.c.state == state, _steps.c.wake_at <= now)
        .order_by(_steps.c.wake_at)
        .limit(limit)
    )
    return list(connection.execute(query))


def next_at(connection: Connection) -> datetime | None:
    """Return the earliest instant at which a step or a saga is due, or ``None``."""
    instants = [row.at for table in _EARLIEST for row in table.all(connection)]
    return min((at for at in instants if at is not None), default=None)


def waiting_for(connection: Connection, queue: str, direction: str, *, limit: int) -> int:
    """Return how many steps are dispatched in a direction to the agents of a queue.

    Counts no further than ``limit``.
    """
    some = (
        select(_steps.c.path)
        .where(
            _steps.c.state == StepState.DISPATCHED,
            _steps.c.queue == queue,
            _steps.c.direction == direction,
        )
        .limit(limit)
        .subquery()
    )
    return connection.execute(select(func.count()).select_from(some)).scalar_one()


def sagas(connection: Connection, now: ColumnElement[datetime], limit: int) -> list[UUID]:
    """Return the sagas whose deadline is to be acted on."""
    query = (
        select(_sagas.c.id).where(_sagas.c.wake_at <= now).order_by(_sagas.c.wake_at).limit(limit)
    )
    return list(connection.execute(query).scalars())


def unended(connection: Connection, after: UUID, window: int) -> list[UUID]:
    """Return the next ``window`` sagas behind ``after``, by id, that have not ended."""
    query = select(_sagas.c.id).where(_sagas.c.ended_at.is_(None), _sagas.c.id > after)
    return list(connection.execute(query.order_by(_sagas.c.id).limit(window)).scalars())


def stranded(connection: Connection, after: UUID, window: int) -> tuple[list[UUID], UUID]:
    """Look at the next ``window`` live sagas behind ``after``, by id.

    Return those none of whose steps has a next wake-up, and where to go on; at the end that is the
    beginning again. However many sagas there are, one look costs the same.
    """
    live = _sagas.c.state.in_(sorted(SAGA_LIVE))
    seen = select(_sagas.c.id).where(live, _sagas.c.id > after).order_by(_sagas.c.id).limit(window)
    ids = list(connection.execute(seen).scalars())
    if not ids:
        return [], FIRST
    moves = _steps.c.saga_id == _sagas.c.id, _steps.c.state.in_(sorted(STEP_LIVE))
    still = select(_sagas.c.id).where(
        _sagas.c.id.in_(ids), live, ~select(_steps.c.path).where(*moves).exists()
    )
    return list(connection.execute(still).scalars()), ids[-1] if len(ids) == window else FIRST
