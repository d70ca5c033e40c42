"""Retention: which sagas that have ended may go, and their going: each of them whole.

A saga is kept, however long ago it ended, while anything may still come of it: a question to a
person, a look-out for a late effect, a request that may be on its way. A transaction takes a few
sagas under their locks, passes by those that another one has, looks at them again, and deletes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Connection,
    Integer,
    Select,
    Table,
    bindparam,
    delete,
    func,
    or_,
    select,
)

from models import Attempt, Definition, Incident, JournalEntry, Node, Saga, Step
from models.states import SAGA_TERMINAL, STEP_SETTLED, AttemptState, SagaState, StepState
from orchestration.contract import KILL_GRACE
from orchestration.definition import Definition as Bound
from orchestration.failpoint import reach
from orchestration.scheduler import Scheduler
from orchestration.statement import AnyConnection, Prepared

AT_ONCE = 50
"""How many sagas one transaction deletes: few enough that nobody waits for it for long."""

_sagas: Table = Saga.__table__
_steps: Table = Step.__table__
_attempts: Table = Attempt.__table__
_incidents: Table = Incident.__table__
_journal: Table = JournalEntry.__table__
_definitions: Table = Definition.__table__
_nodes: Table = Node.__table__

_PARTS = (_attempts, _steps, _incidents, _journal)
"""What a saga consists of besides its own row, each table before those that it refers to."""

Story = dict[str, Any]
"""All rows of one saga: ``saga``, ``definition`` (workflow and version), and lists of the rest."""
Export = Callable[[Sequence[Story]], None]
"""Makes sagas durable elsewhere; it returns before they are deleted."""


class Kept(StrEnum):
    """Why a saga that ended long ago is kept."""

    INCIDENT = "open_incident"
    """Somebody has been asked about it and has not answered."""
    STEP = "unsettled_step"
    """A late effect is being looked out for, or undone."""
    ATTEMPT = "open_attempt"
    """An attempt has not been closed."""
    HORIZON = "horizon"
    """The process of an attempt may still live, or its request be on its way."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which sagas are meant: those in one of ``states`` that ended at ``before`` or earlier."""

    before: datetime
    workflow: str | None = None
    states: frozenset[SagaState] = SAGA_TERMINAL


@dataclass(frozen=True)
class Place:
    """Where a look through the ended sagas has got to, in the order of their ends."""

    ended_at: datetime
    id: UUID


FIRST = Place(datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))
"""Before every saga."""


@dataclass(kw_only=True)
class Purged:
    """How many sagas were deleted, and how many were kept, by why."""

    sagas: int = 0
    kept: Counter[Kept] = field(default_factory=Counter)

    def add(self, other: "Purged") -> None:
        """Add what another part of the same purge has done."""
        self.sagas += other.sagas
        self.kept += other.kept


def hold(connection: AnyConnection, saga_id: UUID) -> bool:
    """Keep a saga from being deleted until this transaction ends; tell whether it is there."""
    return _HOLD.first(connection, saga=saga_id) is not None


class Retention:
    """Finds and deletes what has ended. Safe to use by several at once."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.store = scheduler.store
        self.definition = scheduler.definition

    # --- looking ---------------------------------------------------------------------------------

    def ended_before(self, age: timedelta) -> datetime:
        """Return the instant, by the database's clock, at which what ends now is ``age`` old."""
        with self.store.reading() as connection:
            return self.store.time(connection) - age

    def overdue(self, age: timedelta) -> datetime | None:
        """Return the same, or ``None`` if no saga ended that long ago."""
        with self.store.reading() as connection:
            oldest = _OLDEST.first(connection)
            before = self.store.time(connection) - age
        return before if oldest is not None and oldest.ended_at <= before else None

    def count(self, asked: Asked) -> int:
        """Return how many sagas are meant, those that will be kept among them."""
        query = _meant(select(func.count()).select_from(_sagas), asked)
        with self.store.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def pages(self, asked: Asked) -> Iterator[list[Place]]:
        """Yield all sagas that are meant, a few at a time, those that ended first first."""
        after = FIRST
        while page := self.page(asked, after, AT_ONCE):
            yield page
            after = page[-1]

    def page(self, asked: Asked, after: Place, limit: int) -> list[Place]:
        """Return the next ``limit`` sagas that are meant behind ``after``."""
        behind = or_(_sagas.c.ended_at > after.ended_at, _sagas.c.id > after.id)
        query = _meant(select(_sagas.c.ended_at, _sagas.c.id), asked)
        query = query.where(_sagas.c.ended_at >= after.ended_at, behind)
        query = query.order_by(_sagas.c.ended_at, _sagas.c.id).limit(limit)
        with self.store.reading() as connection:
            return [Place(row.ended_at, row.id) for row in connection.execute(query)]

    def judge(self, sagas: Sequence[UUID]) -> dict[UUID, Kept | None]:
        """Return for each saga that is there why it has to be kept; ``None``: it may go."""
        with self.store.reading() as connection:
            return self._judge(connection, sagas)

    def _judge(self, connection: Connection, sagas: Sequence[UUID]) -> dict[UUID, Kept | None]:
        now = self.store.time(connection)
        rows = connection.execute(_STANDING, {"sagas": sagas}).all()
        found = {}
        for saga_id, steps in groupby(rows, key=lambda row: row.id):
            mine = list(steps)
            definition = self.definition(connection, mine[0].definition_id)
            found[saga_id] = _why_kept(definition, mine, now)
        return found

    # --- deleting --------------------------------------------------------------------------------

    def purge(self, sagas: Sequence[UUID], export: Export | None = None) -> Purged:
        """Delete what may go of ``sagas``, in one transaction.

        What another transaction has locked is left for another time. Whatever ``export`` raises
        leaves all of them where they are.
        """
        judged = self.judge(sagas)
        done = Purged(kept=Counter(kept for kept in judged.values() if kept))
        free = [saga_id for saga_id, kept in judged.items() if kept is None]
        if not free:
            return done
        with self.store.transaction() as connection:
            mine = list(connection.execute(_LOCK, {"sagas": free}).scalars())
            # Only under the lock does it stay true: a late report locks the saga, too.
            judged = self._judge(connection, mine)
            done.kept.update(kept for kept in judged.values() if kept)
            going = [saga_id for saga_id, kept in judged.items() if kept is None]
            if going and export is not None:
                export(self._stories(connection, going))
            if going:
                for table in _PARTS:
                    connection.execute(delete(table).where(table.c.saga_id.in_(going)))
                ended = _sagas.c.id.in_(going), _sagas.c.ended_at.is_not(None)
                done.sagas = connection.execute(delete(_sagas).where(*ended)).rowcount
            reach("p1")
        return done

    def _stories(self, connection: Connection, sagas: Sequence[UUID]) -> list[Story]:
        """Return all rows of each saga."""
        query = select(_sagas, _definitions.c.version).join(_definitions)
        rows = connection.execute(query.where(_sagas.c.id.in_(sagas))).mappings()
        stories: dict[UUID, Story] = {}
        for row in rows:
            saga = {name: value for name, value in row.items() if name != "version"}
            definition = {"workflow": row["workflow"], "version": row["version"]}
            stories[row["id"]] = {"saga": saga, "definition": definition}
        for table in _PARTS:
            for story in stories.values():
                story[table.name] = []
            order = [table.c.saga_id, *table.primary_key.columns]
            mine = select(table).where(table.c.saga_id.in_(sagas)).order_by(*order)
            for row in connection.execute(mine).mappings():
                stories[row["saga_id"]][table.name].append(dict(row))
        return list(stories.values())

    def purge_nodes(self, before: datetime, limit: int) -> int:
        """Delete workers that ended at ``before`` or earlier and hold nothing; return how many."""
        with self.store.reading() as connection:
            ids = [row.id for row in _ENDED_NODES.all(connection, before=before, most=limit)]
        if not ids:
            return 0
        with self.store.transaction() as connection:
            # One that has come back since is alive again.
            gone = _nodes.c.id.in_(ids), _nodes.c.ended_at <= before
            return connection.execute(delete(_nodes).where(*gone)).rowcount


def _why_kept(definition: Bound, steps: Sequence[Any], now: datetime) -> Kept | None:
    if steps[0].asked:
        return Kept.INCIDENT
    if any(step.state not in STEP_SETTLED for step in steps if step.state is not None):
        return Kept.STEP
    if steps[0].opened:
        return Kept.ATTEMPT
    granted = ((step.path, step.granted_at) for step in steps if step.granted_at is not None)
    if any(now < at + _horizon(definition, path) for path, at in granted):
        return Kept.HORIZON
    return None


def _horizon(definition: Bound, path: str) -> timedelta:
    """Return how long after a grant nothing of that attempt is to be heard of any more.

    Where the remote enforces no lifetime, that of our own process: only it could still report.
    """
    name = path.partition("~")[0]
    lasting, contract = definition.longest_task(name), definition.contract(name)
    return contract.settle_horizon(lasting) or lasting + KILL_GRACE


def _meant(query: Select[Any], asked: Asked) -> Select[Any]:
    query = query.where(_sagas.c.ended_at <= asked.before)
    if asked.workflow is not None:
        query = query.where(_sagas.c.workflow == asked.workflow)
    if asked.states != SAGA_TERMINAL:
        query = query.where(_sagas.c.state.in_(sorted(asked.states)))
    return query


_ENDED = select(_sagas.c.ended_at).where(_sagas.c.ended_at.is_not(None))
_OLDEST = Prepared(_ENDED.order_by(_sagas.c.ended_at).limit(1))
_SAGAS = bindparam("sagas", expanding=True, type_=_sagas.c.id.type)
_ASKED = (
    select(_incidents.c.id)
    .where(_incidents.c.saga_id == _sagas.c.id, _incidents.c.resolved_at.is_(None))
    .exists()
)
_OPENED = (
    select(_attempts.c.no)
    .where(_attempts.c.saga_id == _sagas.c.id, _attempts.c.state == AttemptState.OPEN)
    .exists()
)
_STANDING = (
    select(
        _sagas.c.id,
        _sagas.c.definition_id,
        _steps.c.path,
        _steps.c.state,
        _steps.c.granted_at,
        _ASKED.label("asked"),
        _OPENED.label("opened"),
    )
    .outerjoin_from(_sagas, _steps, _steps.c.saga_id == _sagas.c.id)
    .where(_sagas.c.id.in_(_SAGAS), _sagas.c.ended_at.is_not(None))
    .order_by(_sagas.c.id)
)
_LOCK = (
    select(_sagas.c.id)
    .where(_sagas.c.id.in_(_SAGAS), _sagas.c.ended_at.is_not(None))
    .with_for_update(skip_locked=True)
)
_HOLD = Prepared(
    select(_sagas.c.id)
    .where(_sagas.c.id == bindparam("saga"))
    .with_for_update(read=True, key_share=True)
)
_HOLDS = (
    select(_steps.c.path)
    .where(_steps.c.node_id == _nodes.c.id, _steps.c.state == StepState.LEASED)
    .exists()
)
_ENDED_NODES = Prepared(
    select(_nodes.c.id)
    .where(_nodes.c.ended_at <= bindparam("before", type_=_nodes.c.ended_at.type), ~_HOLDS)
    .limit(bindparam("most", type_=Integer()))
)
