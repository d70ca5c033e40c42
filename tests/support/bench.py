"""One broker, one worker and a clock in the hands of a test, on real rows.

What is published is kept in ``sent`` and, unless ``holds`` is set, run before ``publish`` returns.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Engine, bindparam, select

from models import Attempt, Incident, JournalEntry, Step
from models.base import Instant
from models.states import Operation
from orchestration.definition import Workflow
from orchestration.events import Dispatch
from orchestration.lease import Leases
from orchestration.registry import Registry
from orchestration.roster import Roster
from orchestration.scheduler import Scheduler
from orchestration.store import Store
from orchestration.supervisor import Supervisor
from tasks.agent import AGENTS
from tasks.envelope import Envelope

QUESTIONS = {Operation.PROBE, Operation.CLOSE}


class Bench:
    """Everything that one process has, without a broker.

    Time passes by a microsecond each time it is asked for, and otherwise by ``pass_time``.
    """

    def __init__(self, engine: Engine, *workflows: Workflow, holds: bool = False) -> None:
        self.now = datetime(2027, 1, 1, tzinfo=UTC)
        self.store = Store(engine, now=self._clock)
        registry = Registry()
        agents = {step.agent for workflow in workflows for step in workflow.by_name.values()}
        for name in agents:
            registry.add_agent(AGENTS[name].contract)
        for workflow in workflows:
            registry.add_workflow(workflow)
        self.holds = holds
        self.sent: list[Dispatch] = []
        self.scheduler = Scheduler(self.store, self, registry)
        self.supervisor = Supervisor(self.scheduler, self)
        self.leases = Leases(self.scheduler, clock=self)
        self.known = set(self.scheduler.register_definitions())
        self.roster = Roster(self.store)
        self.node, _ = self.roster.register("bench", 1, sorted(agents), sorted(self.known))
        self.envelope = Envelope(self.leases, self.node, self.known)

    def _clock(self) -> ColumnElement[datetime]:
        """The present as SQL: the bench's own time, which ticks whenever it is asked for."""
        return bindparam("clock", callable_=self._tick, type_=Instant(), unique=True)

    def _tick(self) -> datetime:
        self.now += timedelta(microseconds=1)
        return self.now

    def monotonic(self) -> float:
        return self.now.timestamp()

    def sleep(self, seconds: float, /) -> None:
        self.now += timedelta(seconds=seconds)

    # --- as a broker -------------------------------------------------------------------------

    def publish(self, dispatches: Sequence[Dispatch]) -> None:
        self.sent.extend(dispatches)
        if not self.holds:
            for message in dispatches:
                self.deliver(message)

    def depth(self, queue: str) -> int | None:
        return None

    # --- as a worker -------------------------------------------------------------------------

    def deliver(self, message: Dispatch) -> str:
        """Run one message as a worker would; return the word for the worker's log."""
        name, operation = message.name, Operation.ACTION
        for asked in (Operation.PROBE, Operation.CLOSE, Operation.COMPENSATION):
            if name.endswith(f".{asked}"):
                name, operation = name.removesuffix(f".{asked}"), asked
        run = self.envelope.inquire if operation in QUESTIONS else self.envelope.attempt
        return run(AGENTS[name], operation, str(message.saga_id), message.path, message.number)

    def pass_time(self, duration: timedelta, *, sweeps: bool = True) -> None:
        """Let time pass for everybody, the node included, and sweep."""
        self.now += duration
        self.roster.beat(self.node.id)
        if sweeps:
            self.supervisor.sweep()

    # --- as a reader -------------------------------------------------------------------------

    def step(self, saga_id: UUID, path: str) -> Any:
        (row,) = self.rows(Step, saga_id, path)
        return row

    def attempts(self, saga_id: UUID, path: str) -> list[Any]:
        return sorted(self.rows(Attempt, saga_id, path), key=lambda row: row.no)

    def journal(self, saga_id: UUID, path: str, verb: str) -> list[Any]:
        return [row for row in self.rows(JournalEntry, saga_id, path) if row.verb == verb]

    def incidents(self, saga_id: UUID) -> list[Any]:
        with self.store.reading() as connection:
            table = Incident.__table__
            return list(connection.execute(select(table).where(table.c.saga_id == saga_id)))

    def rows(self, entity: Any, saga_id: UUID, path: str) -> list[Any]:
        table = entity.__table__
        query = select(table).where(table.c.saga_id == saga_id, table.c.path == path)
        with self.store.reading() as connection:
            return list(connection.execute(query))
