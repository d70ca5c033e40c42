"""The nodes: who is alive, who holds what, and when somebody last swept. SQL on ``nodes`` only.

A node is one incarnation of a worker. It writes one row each interval, however many steps it runs;
the leases that it holds stand or fall with that row.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import product
from uuid import UUID, uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Table,
    bindparam,
    func,
    insert,
    literal_column,
    select,
    update,
)

from models import Node, Saga, Step
from models.states import StepState
from orchestration.statement import Prepared
from orchestration.store import Store

_nodes: Table = Node.__table__
_sagas: Table = Saga.__table__
_steps: Table = Step.__table__


HASTENED = 200
"""How many waiting steps a new node has sent to it at once; the others come in their turn."""


SILENT_AT_ONCE = 200
"""How many silent nodes one sweep declares dead; the others come in their turn."""


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """Who takes a lease."""

    id: UUID
    name: str


@dataclass(frozen=True, kw_only=True)
class Held:
    """A lease that somebody holds: enough to report it lost."""

    saga_id: UUID
    path: str
    attempt: int


RELEASE = "release-"
"""What the name of every release's own queue begins with."""


def release_of(agents: Iterable[str], definitions: Iterable[str]) -> str:
    """Return the queue of the nodes that have just these agents and know just these definitions."""
    content = json.dumps([sorted(agents), sorted(definitions)])
    return RELEASE + sha256(content.encode()).hexdigest()[:16]


_ALIVE = _nodes.c.ended_at.is_(None)
_HELD = (
    select(_steps.c.path)
    .where(
        _steps.c.node_id == _nodes.c.id, _steps.c.state == literal_column(f"'{StepState.LEASED}'")
    )
    .limit(literal_column("1"))
)
# Node by node, for there are many leases and hardly one of an ended node among them.
_ENDED_HOLDERS = Prepared(
    select(_nodes.c.id)
    .where(~_ALIVE, _HELD.scalar_subquery().is_not(None))
    .limit(bindparam("most", type_=Integer()))
)
_HELD_BY = Prepared(
    select(_steps.c.saga_id, _steps.c.path, _steps.c.attempt, _steps.c.pid).where(
        _steps.c.node_id == bindparam("node"),
        _steps.c.state == literal_column(f"'{StepState.LEASED}'"),
    )
)
_WAITS_IN_VAIN = Prepared(
    select(_steps.c.path)
    .where(
        _steps.c.state == literal_column(f"'{StepState.DISPATCHED}'"), _steps.c.dispatch_count > 1
    )
    .limit(1)
)
_EARLIER = _nodes.c.name == bindparam("called"), _ALIVE
_CALLED = Prepared(select(_nodes.c.id).where(*_EARLIER))
_END_CALLED = Prepared(update(_nodes).where(*_EARLIER), ("ended_at",))
_ADD_NODE = Prepared(
    insert(_nodes),
    ("id", "name", "pid", "agents", "definitions", "started_at", "heartbeat_at"),
)
_REVIVE = Prepared(
    update(_nodes).where(_nodes.c.id == bindparam("node")), ("heartbeat_at", "ended_at")
)
_SERVED = Prepared(select(_nodes.c.agents, _nodes.c.definitions).where(_ALIVE))


def _beat(now: ColumnElement[datetime]) -> Prepared:
    alive = _nodes.c.id == bindparam("node"), _ALIVE
    return Prepared(update(_nodes).where(*alive).values(heartbeat_at=now))


def _oldest(now: ColumnElement[datetime]) -> Prepared:
    """Return the statement that reads the living nodes that have not spoken for longest."""
    living = select(_nodes.c.id, _nodes.c.heartbeat_at, now.label("now")).where(_ALIVE)
    return Prepared(living.order_by(_nodes.c.heartbeat_at).limit(SILENT_AT_ONCE))


class Roster:
    """The list of nodes."""

    def __init__(self, store: Store, *, new_id: Callable[[], UUID] = uuid4) -> None:
        self.store = store
        self.new_id = new_id

    def register(
        self, name: str, pid: int, agents: list[str], definitions: list[str]
    ) -> tuple[NodeIdentity, list[UUID]]:
        """Enter a new incarnation; return it, and the earlier ones of that name, now ended."""
        identity = NodeIdentity(id=self.new_id(), name=name)
        with self.store.transaction() as connection:
            now = self.store.time(connection)
            ids = [row.id for row in _CALLED.all(connection, called=name)]
            _END_CALLED.change(connection, called=name, ended_at=now)
            self._add(connection, identity, pid, agents, definitions, now)
            self._hasten(connection, agents, definitions, now)
        return identity, ids

    def _hasten(
        self, connection: Connection, agents: list[str], definitions: list[str], now: datetime
    ) -> None:
        """Have the next sweep send again what waits in vain for such a node.

        A step that somebody has locked is being dealt with, so nothing is waited for.
        """
        if _WAITS_IN_VAIN.first(connection) is None:
            return
        sagas = select(_sagas.c.id).where(_sagas.c.definition_id.in_(definitions))
        waits = (
            _steps.c.state == StepState.DISPATCHED,
            _steps.c.dispatch_count > 1,
            _steps.c.agent.in_(agents),
            _steps.c.saga_id.in_(sagas),
        )
        query = select(_steps.c.saga_id, _steps.c.path).where(*waits).limit(HASTENED)
        for row in connection.execute(query.with_for_update(skip_locked=True)).all():
            same = _steps.c.saga_id == row.saga_id, _steps.c.path == row.path
            connection.execute(update(_steps).where(*same, *waits).values(wake_at=now))

    def beat(self, node_id: UUID) -> bool | None:
        """Say that the node is alive; tell whether it counted as such until now.

        A node that was taken for dead comes back under the same id. What it held was taken from it
        attempt by attempt, so whatever its processes still report is refused. ``None``: it was
        silent for so long that its row is gone.
        """
        with self.store.transaction() as connection:
            if self.store.prepared(_beat).change(connection, node=node_id) == 1:
                return True
            now = self.store.time(connection)
            back = _REVIVE.change(connection, node=node_id, heartbeat_at=now, ended_at=None)
            return False if back else None

    def enter_again(
        self, node: NodeIdentity, pid: int, agents: list[str], definitions: list[str]
    ) -> None:
        """Enter a node whose row was deleted, under the id that its processes have."""
        with self.store.transaction() as connection:
            self._add(connection, node, pid, agents, definitions, self.store.time(connection))

    def _add(
        self, connection: Connection, node: NodeIdentity, pid: int, agents: list[str],
        definitions: list[str], now: datetime,
    ) -> None:  # fmt: skip
        _ADD_NODE.change(
            connection, id=node.id, name=node.name, pid=pid, agents=sorted(agents),
            definitions=sorted(definitions), started_at=now, heartbeat_at=now,
        )  # fmt: skip

    def withdraw(self, node_id: UUID) -> None:
        """Say that a node takes nothing more, though it lives until what it runs is done."""
        with self.store.transaction() as connection:
            mine = _nodes.c.id == node_id
            connection.execute(update(_nodes).where(mine).values(agents=[], definitions=[]))

    def end(self, node_id: UUID) -> None:
        """Sign off."""
        with self.store.transaction() as connection:
            now = self.store.time(connection)
            mine = _nodes.c.id == node_id, _nodes.c.ended_at.is_(None)
            connection.execute(update(_nodes).where(*mine).values(ended_at=now))

    def end_if_silent(self, node_id: UUID, heartbeat_at: datetime) -> bool:
        """Declare a node dead unless it has spoken since ``heartbeat_at``."""
        with self.store.transaction() as connection:
            now = self.store.time(connection)
            same = (
                _nodes.c.id == node_id,
                _nodes.c.heartbeat_at == heartbeat_at,
                _nodes.c.ended_at.is_(None),
            )
            change = update(_nodes).where(*same).values(ended_at=now)
            return connection.execute(change).rowcount == 1

    def silent(self, timeout: timedelta) -> list[tuple[UUID, datetime]]:
        """Return the nodes that have not spoken for ``timeout``, the longest first."""
        with self.store.reading() as connection:
            rows = self.store.prepared(_oldest).all(connection)
        return [(row.id, row.heartbeat_at) for row in rows if row.heartbeat_at < row.now - timeout]

    def held_by(self, node_id: UUID, pid: int | None = None) -> list[Held]:
        """Return the leases that a node, or one process of it, holds."""
        with self.store.reading() as connection:
            return [
                Held(saga_id=row.saga_id, path=row.path, attempt=row.attempt)
                for row in _HELD_BY.all(connection, node=node_id)
                if pid in {None, row.pid}
            ]

    def held_by_the_ended(self, limit: int) -> list[Held]:
        """Return leases whose node has ended, bounded by ``limit``."""
        with self.store.reading() as connection:
            found = [
                Held(saga_id=row.saga_id, path=row.path, attempt=row.attempt)
                for node in _ENDED_HOLDERS.all(connection, most=limit)
                for row in _HELD_BY.all(connection, node=node.id)
            ]
        return found[:limit]

    def served(self) -> set[tuple[str, str]]:
        """Return the pairs (agent, definition id) that some living node can run."""
        with self.store.reading() as connection:
            return {
                pair
                for row in _SERVED.all(connection)
                for pair in product(row.agents, row.definitions)
            }

    def release_for(self, agent: str, definition_id: str) -> str | None:
        """Return the queue of the release of most living nodes that can run such a step, if any."""
        with self.store.reading() as connection:
            nodes = _SERVED.all(connection)
        found = Counter(
            release_of(node.agents, node.definitions)
            for node in nodes
            if agent in node.agents and definition_id in node.definitions
        )
        return max(found, key=lambda release: (found[release], release), default=None)

    def swept(self, node_id: UUID) -> None:
        """Record that this node has finished a sweep."""
        with self.store.transaction() as connection:
            now = self.store.time(connection)
            connection.execute(update(_nodes).where(_nodes.c.id == node_id).values(swept_at=now))

    def since_last_sweep(self) -> timedelta | None:
        """Return how long ago anybody finished a sweep; ``None`` if nobody ever did."""
        with self.store.reading() as connection:
            query = select(func.max(_nodes.c.swept_at), self.store.now())
            last, now = connection.execute(query).one()
            return None if last is None else now - last
