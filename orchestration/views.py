"""The read side: states, lists, timelines and counts, for people and for metrics. Never writes."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, String, Table, cast, func, select, text

from models import Attempt, Definition, Incident, JournalEntry, Node, Saga, Step
from models.base import listed
from models.states import SAGA_LIVE, STEP_LIVE, Direction, SagaState, StepState
from orchestration.contract import RECOVERY_QUEUE_SUFFIX
from orchestration.errors import NotFoundError
from orchestration.statement import Prepared
from orchestration.store import Store

_sagas: Table = Saga.__table__
_steps: Table = Step.__table__
_attempts: Table = Attempt.__table__
_incidents: Table = Incident.__table__
_journal: Table = JournalEntry.__table__
_definitions: Table = Definition.__table__
_nodes: Table = Node.__table__

NEWEST_ENTRIES = 10_000
"""So much of the journal is looked at for what was refused."""


def saga_end(connection: Connection, saga_id: UUID) -> tuple[SagaState, dict[str, Any] | None]:
    """Return a saga's state and why it turned back; raise ``NotFoundError``."""
    query = select(_sagas.c.state, _sagas.c.abort).where(_sagas.c.id == saga_id)
    row = connection.execute(query).first()
    if row is None:
        msg = f"there is no saga {saga_id}"
        raise NotFoundError(msg)
    return SagaState(row.state), row.abort


def saga_state(connection: Connection, saga_id: UUID) -> SagaState:
    """Return a saga's state; raise ``NotFoundError``."""
    return saga_end(connection, saga_id)[0]


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """One line of a saga's story: who did what, when and why."""

    at: datetime
    path: str
    attempt: int
    verb: str
    actor: str
    text: str
    row: str | None = None


def saga_row(connection: Connection, saga_id: UUID) -> Row[Any]:
    """Return the saga's row; raise ``NotFoundError``."""
    row = connection.execute(select(_sagas).where(_sagas.c.id == saga_id)).first()
    if row is None:
        msg = f"there is no saga {saga_id}"
        raise NotFoundError(msg)
    return row


def find_sagas(connection: Connection, part: str, limit: int = 2) -> list[UUID]:
    """Return sagas whose id, in hex without hyphens, begins or ends with ``part``."""
    first, last = UUID(part.ljust(32, "0")), UUID(part.ljust(32, "f"))
    digits = func.replace(cast(_sagas.c.id, String), "-", "")
    fits = _sagas.c.id.between(first, last) | digits.endswith(part, autoescape=True)
    return list(connection.execute(select(_sagas.c.id).where(fits).limit(limit)).scalars())


def saga_attempts(connection: Connection, saga_id: UUID) -> list[Row[Any]]:
    """Return the saga's attempts, in the order in which their leases were granted."""
    query = select(_attempts).where(_attempts.c.saga_id == saga_id)
    order = (_attempts.c.granted_at, _attempts.c.path, _attempts.c.no)
    return list(connection.execute(query.order_by(*order)))


def saga_steps(connection: Connection, saga_id: UUID) -> list[Row[Any]]:
    """Return the saga's step rows, in the order in which they became ready."""
    query = select(_steps).where(_steps.c.saga_id == saga_id)
    rows = list(connection.execute(query))
    return sorted(rows, key=lambda row: (row.ready_at is None, row.ready_at, row.path))


def list_sagas(
    connection: Connection,
    *,
    state: str | None = None,
    workflow: str | None = None,
    limit: int = 50,
) -> list[Row[Any]]:
    """Return the newest sagas: (id, workflow, key, state, created_at, ended_at, abort)."""
    columns = ("id", "workflow", "key", "state", "created_at", "ended_at", "abort")
    query = select(*(_sagas.c[name] for name in columns))
    if state is not None:
        query = query.where(_sagas.c.state == state)
    if workflow is not None:
        query = query.where(_sagas.c.workflow == workflow)
    return list(connection.execute(query.order_by(_sagas.c.id.desc()).limit(limit)))


def count_sagas(connection: Connection) -> dict[str, int]:
    """Return how many sagas there are in each state."""
    query = select(_sagas.c.state, func.count()).group_by(_sagas.c.state)
    return {row[0]: row[1] for row in connection.execute(query)}


def left_behind(connection: Connection, known: Collection[str]) -> list[Row[Any]]:
    """Return (workflow, version, number) of unended sagas of definitions that are not ``known``."""
    number = func.count().label("number")
    columns = (_definitions.c.workflow, _definitions.c.version)
    query = (
        select(*columns, number)
        .join_from(_sagas, _definitions, _definitions.c.id == _sagas.c.definition_id)
        .where(_sagas.c.ended_at.is_(None), _definitions.c.id.not_in(known))
    )
    return list(connection.execute(query.group_by(*columns).order_by(*columns)))


def list_incidents(
    connection: Connection,
    *,
    include_resolved: bool = False,
    saga_id: UUID | None = None,
    limit: int = 100,
) -> list[Row[Any]]:
    """Return incidents, of one saga or of all, the oldest open ones first."""
    query = select(_incidents, _sagas.c.workflow).join_from(
        _incidents, _sagas, _sagas.c.id == _incidents.c.saga_id
    )
    if not include_resolved:
        query = query.where(_incidents.c.resolved_at.is_(None))
    if saga_id is not None:
        query = query.where(_incidents.c.saga_id == saga_id)
    order = (_incidents.c.resolved_at.is_not(None), _incidents.c.opened_at)
    return list(connection.execute(query.order_by(*order).limit(limit)))


def incident(connection: Connection, incident_id: int) -> Row[Any]:
    """Return one incident; raise ``NotFoundError``."""
    row = connection.execute(select(_incidents).where(_incidents.c.id == incident_id)).first()
    if row is None:
        msg = f"there is no incident {incident_id}"
        raise NotFoundError(msg)
    return row


def list_nodes(connection: Connection) -> list[Row[Any]]:
    """Return the living nodes and the database's time as ``now`` is left to the caller."""
    query = select(_nodes).where(_nodes.c.ended_at.is_(None)).order_by(_nodes.c.name)
    return list(connection.execute(query))


def count_refusals(connection: Connection, window: int = NEWEST_ENTRIES) -> dict[str, int]:
    """Return how often each kind of write was refused, among the newest entries of the journal.

    The whole of it is as long as all that ever happened; so many entries cost the same at any time.
    """
    newest = (
        select(_journal.c.verb, _journal.c.reason)
        .order_by(_journal.c.id.desc())
        .limit(window)
        .subquery()
    )
    query = (
        select(newest.c.reason, func.count())
        .where(newest.c.verb == "refuse")
        .group_by(newest.c.reason)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


@dataclass(frozen=True, kw_only=True)
class Gauges:
    """How things stand, for a monitoring system. Ages are in seconds, counted by the database."""

    sagas: dict[tuple[str, str], int]
    """Sagas that have not ended, by workflow and state."""
    steps: dict[tuple[str, str], int]
    """Steps that are under way, by the queue on which they are worked at and by state."""
    oldest_step: dict[str, float]
    """By state: since when the oldest step in it has been under way in its direction."""
    queue_age: dict[str, float]
    """By queue: for how long the oldest step has waited for a worker."""
    incidents: dict[str, int]
    oldest_incident: dict[str, float]
    nodes: int
    last_sweep: float | None


def gauges(connection: Connection, store: Store) -> Gauges:
    """Read how things stand from what is under way; what has ended is not looked at."""
    now = store.time(connection)

    def age(since: datetime) -> float:
        return max((now - since).total_seconds(), 0.0)

    sagas = {(row.workflow, row.state): row.number for row in _LIVE_SAGAS.all(connection)}
    sagas |= {
        (row.workflow, SagaState.HALTED.value): row.number for row in _HALTED_SAGAS.all(connection)
    }
    steps: Counter[tuple[str, str]] = Counter()
    oldest: dict[str, float] = dict.fromkeys(sorted(STEP_LIVE), 0.0)
    waiting: dict[str, float] = {}
    for row in _LIVE_STEPS.all(connection):
        backward = row.direction == Direction.BACKWARD
        queue = row.queue + RECOVERY_QUEUE_SUFFIX if backward else row.queue
        steps[queue, row.state] += row.number
        oldest[row.state] = max(oldest[row.state], age(row.since))
        if row.state == StepState.DISPATCHED:
            waiting[queue] = age(row.dispatched_at)
    incidents = _OPEN_INCIDENTS.all(connection)
    (living,) = _LIVING_NODES.all(connection)
    return Gauges(
        sagas=sagas,
        steps=dict(steps),
        oldest_step=oldest,
        queue_age=waiting,
        incidents={row.kind: row.number for row in incidents},
        oldest_incident={row.kind: age(row.opened_at) for row in incidents},
        nodes=living.number,
        last_sweep=None if living.swept_at is None else age(living.swept_at),
    )


_NUMBER = func.count().label("number")
# In a look-out for a late effect there was no dispatch.
_SINCE = func.coalesce(_steps.c.ready_at, _steps.c.doubt_at, _steps.c.wake_at)
_LIVE_SAGAS = Prepared(
    select(_sagas.c.workflow, _sagas.c.state, _NUMBER)
    .where(text(listed("sagas.state", SAGA_LIVE)))
    .group_by(_sagas.c.workflow, _sagas.c.state)
)
_HALTED_SAGAS = Prepared(
    # Each halted saga has an open incident, and of these there is an index.
    select(_sagas.c.workflow, func.count(_sagas.c.id.distinct()).label("number"))
    .join_from(_incidents, _sagas, _sagas.c.id == _incidents.c.saga_id)
    .where(_incidents.c.resolved_at.is_(None), _sagas.c.state == SagaState.HALTED)
    .group_by(_sagas.c.workflow)
)
_LIVE_STEPS = Prepared(
    select(
        _steps.c.queue,
        _steps.c.direction,
        _steps.c.state,
        _NUMBER,
        func.min(_SINCE).label("since"),
        func.min(_steps.c.dispatched_at).label("dispatched_at"),
    )
    .where(text(listed("steps.state", STEP_LIVE)))
    .group_by(_steps.c.queue, _steps.c.direction, _steps.c.state)
)
_OPEN_INCIDENTS = Prepared(
    select(_incidents.c.kind, _NUMBER, func.min(_incidents.c.opened_at).label("opened_at"))
    .where(_incidents.c.resolved_at.is_(None))
    .group_by(_incidents.c.kind)
)
_LIVING_NODES = Prepared(
    select(_NUMBER, func.max(_nodes.c.swept_at).label("swept_at")).where(
        _nodes.c.ended_at.is_(None)
    )
)


def timeline(connection: Connection, saga_id: UUID) -> list[TimelineEntry]:
    """Return a saga's whole story in the order in which it happened."""
    entries = [*_attempt_entries(connection, saga_id), *_journal_entries(connection, saga_id)]
    return [entry for _, entry in sorted(entries, key=lambda pair: (pair[1].at, pair[0]))]


def _attempt_entries(
    connection: Connection, saga_id: UUID
) -> list[tuple[tuple[int, int], TimelineEntry]]:
    query = select(_attempts).where(_attempts.c.saga_id == saga_id)
    found = []
    for row in connection.execute(query):
        what = "compensation" if row.direction == "backward" else "action"
        actor = f"{row.node} pid {row.pid}"
        granted = TimelineEntry(
            at=row.granted_at, path=row.path, attempt=row.no, verb="grant", actor=actor, text=what
        )
        found.append(((1, row.no), granted))
        if row.ended_at is not None:
            error = row.error or {}
            text = row.state if row.state == "succeeded" else (
                f"{row.state}: {error.get('type', '')}: {error.get('message', '')}"
            )  # fmt: skip
            ended = TimelineEntry(
                at=row.ended_at, path=row.path, attempt=row.no, verb="report", actor=actor,
                text=text,
            )  # fmt: skip
            rank = 2 if row.ended_at == row.granted_at else 0
            found.append(((rank, row.no), ended))
    return found


def _journal_entries(
    connection: Connection, saga_id: UUID
) -> list[tuple[tuple[int, int], TimelineEntry]]:
    query = select(_journal).where(_journal.c.saga_id == saga_id).order_by(_journal.c.id)
    return [
        (
            (1, row.id),
            TimelineEntry(
                at=row.at,
                path=row.path,
                attempt=row.attempt,
                verb=row.verb,
                actor=row.actor,
                text=row.reason,
                row=row.row,
            ),
        )
        for row in connection.execute(query)
    ]
