"""The decided part of Atalaia on a real database, without agents and without a broker.

A test takes leases and reports by itself; messages are only kept; the clock is the test's own.
"""

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Engine, bindparam, event, select

from models import Attempt, Incident, JournalEntry, Node, Saga, Step
from models.base import Instant
from orchestration.contract import AgentContract
from orchestration.database import open_engine
from orchestration.definition import Definition, RetryPolicy, Workflow, sequence
from orchestration.definition import Step as StepDefinition
from orchestration.events import Dispatch, Done, Outcome
from orchestration.lease import Leases
from orchestration.registry import Registry
from orchestration.roster import NodeIdentity, Roster
from orchestration.scheduler import Scheduler
from orchestration.store import Store
from orchestration.supervisor import Supervisor
from orchestration.work import Work
from tests.support.postgres import Postgres

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
NO_JITTER = RetryPolicy(jitter="none")
BOOK = AgentContract(
    name="book", queue="book", idempotent=True, probe=True, compensation=True, close=True
)


def steps(*names: str, **properties: Any) -> tuple[StepDefinition, ...]:
    usual: dict[str, Any] = {"agent": "book", "retry": NO_JITTER}
    return tuple(StepDefinition(name, **(usual | properties)) for name in names)


def line(*names: str, version: int = 1, name: str = "stay", **properties: Any) -> Workflow:
    """Return a workflow that runs steps of one agent, one after another."""
    return Workflow(name, version=version, steps=sequence(*steps(*names, **properties)))


class Core:
    """One process's scheduler, leases, roster and supervisor, sharing the test's clock."""

    def __init__(
        self,
        engine: Engine,
        *workflows: Workflow,
        contracts: Sequence[AgentContract] = (BOOK,),
        batch: int = 200,
    ) -> None:
        self.engine = engine
        self.now = NOW
        self.sent: list[Dispatch] = []
        self.depths: dict[str, int] = {}
        self.store = Store(engine, now=self._clock)
        self.registry = Registry()
        for contract in contracts:
            self.registry.add_agent(contract)
        self.workflows = workflows or (line("a", "b"),)
        for workflow in self.workflows:
            self.registry.add_workflow(workflow)
        self.scheduler = Scheduler(self.store, self, self.registry)
        self.leases = Leases(self.scheduler, clock=self)
        self.roster = Roster(self.store)
        self.supervisor = Supervisor(self.scheduler, self, batch=batch)
        self.known = set(self.scheduler.register_definitions())
        self.node = self.join("worker")

    def _clock(self) -> ColumnElement[datetime]:
        return bindparam("clock", callable_=lambda: self.now, type_=Instant(), unique=True)

    # --- as a broker -------------------------------------------------------------------------

    def publish(self, dispatches: Sequence[Dispatch]) -> None:
        self.sent.extend(dispatches)

    def depth(self, queue: str) -> int | None:
        return self.depths.get(queue)

    def news(self) -> list[tuple[str, str, int]]:
        """What was sent since the last time, as (name, path, number)."""
        messages = [(message.name, message.path, message.number) for message in self.sent]
        self.sent.clear()
        return messages

    # --- as a worker -------------------------------------------------------------------------

    def join(self, name: str) -> NodeIdentity:
        agents = sorted(self.registry.contracts)
        return self.roster.register(name, 1, agents, sorted(self.known))[0]

    def start(self, value: Any = None, key: str | None = None) -> UUID:
        handle = self.scheduler.start(self.workflows[0], value, key=key)
        return handle.saga_id

    def grant(
        self, saga: UUID, path: str, number: int, node: NodeIdentity | None = None
    ) -> Work | None:
        return self.leases.grant(saga, path, number, node or self.node, self.known)

    def take(self, saga: UUID, path: str, node: NodeIdentity | None = None) -> Work:
        work = self.grant(saga, path, self.step(saga, path).attempt + 1, node)
        assert work is not None, f"{path} was not granted"
        return work

    def done(self, saga: UUID, *paths: str, result: Any = None) -> None:
        for path in paths:
            self.leases.report(self.take(saga, path), Done(result=result))

    def report(self, work: Work, outcome: Outcome | None = None) -> None:
        self.leases.report(work, outcome or Done())

    # --- time --------------------------------------------------------------------------------

    def monotonic(self) -> float:
        return (self.now - NOW).total_seconds()

    def sleep(self, seconds: float, /) -> None:
        self.now += timedelta(seconds=seconds)

    def later(self, **duration: float) -> "Core":
        """Let time pass; the node of this process says that it is alive."""
        self.now += timedelta(**duration)
        self.roster.beat(self.node.id)
        return self

    # --- as a reader -------------------------------------------------------------------------

    def rows(self, entity: Any, **where: Any) -> list[Any]:
        table = entity.__table__
        query = select(table)
        for name, value in where.items():
            query = query.where(table.c[name] == value)
        with self.store.reading() as connection:
            return list(connection.execute(query))

    def saga(self, saga: UUID) -> Any:
        (row,) = self.rows(Saga, id=saga)
        return row

    def step(self, saga: UUID, path: str) -> Any:
        (row,) = self.rows(Step, saga_id=saga, path=path)
        return row

    def states(self, saga: UUID) -> dict[str, str]:
        return {row.path: row.state for row in self.rows(Step, saga_id=saga)}

    def attempts(self, saga: UUID, path: str) -> list[tuple[int, str]]:
        rows = self.rows(Attempt, saga_id=saga, path=path)
        return sorted((row.no, row.state) for row in rows)

    def refusals(self, saga: UUID) -> list[str]:
        rows = self.rows(JournalEntry, saga_id=saga, verb="refuse")
        return [row.reason for row in sorted(rows, key=lambda row: row.id)]

    def decided(self, saga: UUID, path: str) -> list[str]:
        """The rows of the recovery table that decided about a step."""
        rows = self.rows(JournalEntry, saga_id=saga, path=path)
        return [entry.row for entry in sorted(rows, key=lambda row: row.id) if entry.row]

    def incidents(self, saga: UUID) -> list[str]:
        return [row.kind for row in self.rows(Incident, saga_id=saga) if row.resolved_at is None]

    def nodes(self) -> dict[str, bool]:
        """The nodes by name, and whether each counts as alive."""
        return {row.name: row.ended_at is None for row in self.rows(Node)}

    def definition(self) -> Definition:
        return self.registry.bind(self.workflows[0])


@contextlib.contextmanager
def postgres_engine(server: Postgres, template: str) -> Iterator[Engine]:
    """An engine on a fresh PostgreSQL database, for what SQLite with its one writer cannot show."""
    with server.database(template) as url:
        engine = open_engine(url)
        yield engine
        engine.dispose()


@contextlib.contextmanager
def counted_commits(engine: Engine) -> Iterator[list[str]]:
    """Count what is committed: a list that grows by one word for each transaction that wrote."""
    commits: list[str] = []
    wrote: set[int] = set()
    changes: dict[int, int] = {}

    def look(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if {"INSERT", "UPDATE", "DELETE"} & set(statement.replace("(", " ").upper().split()):
            wrote.add(id(connection))

    def count(connection: Any) -> None:
        # What is run at driver level passes by the events; SQLite itself counts what it changed.
        driver = connection.connection.dbapi_connection
        total = getattr(driver, "total_changes", 0)
        if id(connection) in wrote or total > changes.get(id(driver), 0):
            wrote.discard(id(connection))
            commits.append("commit")
        changes[id(driver)] = total

    with engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        changes[id(driver)] = getattr(driver, "total_changes", 0)
    event.listen(engine, "before_cursor_execute", look)
    event.listen(engine, "commit", count)
    try:
        yield commits
    finally:
        event.remove(engine, "before_cursor_execute", look)
        event.remove(engine, "commit", count)


def at_once(*calls: Any) -> list[Any]:
    """Call all in threads that start together; return what each returned or raised."""
    start = Barrier(len(calls))

    def run(call: Any) -> Any:
        start.wait()
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the test says which errors it expects
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))
