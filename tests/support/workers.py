"""Real worker, beat and partner processes around one database and one broker."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from celery import Celery
from sqlalchemy import select

from models import Attempt, JournalEntry, Node, Step
from orchestration import views
from orchestration.database import open_engine
from orchestration.handle import Handle
from orchestration.registry import Registry
from orchestration.scheduler import Scheduler
from orchestration.store import Store
from tasks.dispatch import CeleryDispatcher
from tests.support.partners import PartnerProcess
from tests.support.records import assert_all_hold
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
SERVICES = ("flights", "hotels", "cars", "payments", "mail")
TRIP = {
    "traveller": "Ada",
    "origin": "LIS",
    "destination": "OPO",
    "departs_on": "2027-01-02",
    "nights": 2,
    "amount": 10_000,
}
UP_WITHIN = 30.0


@contextlib.contextmanager
def partners(directory: Path) -> Iterator[dict[str, PartnerProcess]]:
    """All partners of a trip, each with stock enough."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(PartnerProcess(name, directory / name)) for name in SERVICES
        }


@dataclass
class Process:
    """One process in a group of its own, which is ended with it."""

    command: list[str]
    env: Mapping[str, str]
    log: Path
    started: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self.log.open("ab") as log:
            self.started = subprocess.Popen(
                self.command,
                env=dict(self.env),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        assert self.started is not None
        return self.started.pid

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process and everything it forked."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the whole group, as a machine that loses its power."""
        if self.started is not None:
            self.signal_group(signal.SIGKILL)
            self.started.wait()
            self.started = None


@dataclass
class Rig:
    """A database, a broker, the partners of a trip, and whatever processes a test starts."""

    database_url: str
    broker_url: str
    home: Path
    partners: Mapping[str, PartnerProcess]
    env_more: dict[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = open_engine(self.database_url)
        self.store = Store(self.engine)
        app = Celery("rig", broker=self.broker_url)
        if self.broker_url.startswith("amqp"):
            app.conf.task_create_missing_queue_type = "quorum"
            app.conf.task_default_queue_type = "quorum"
        self.celery = app
        self.scheduler = Scheduler(self.store, CeleryDispatcher(app), Registry())

    @property
    def env(self) -> dict[str, str]:
        urls = {
            f"ATALAIA_TRAVEL_{name.upper()}_URL": partner.url
            for name, partner in self.partners.items()
        }
        return os.environ | urls | {
            "PYTHONPATH": str(ROOT),
            "ATALAIA_HOME": str(self.home),
            "ATALAIA_DATABASE_URL": self.database_url,
            "ATALAIA_BROKER_URL": self.broker_url,
        } | self.env_more  # fmt: skip

    def _celery(self, name: str, *arguments: str) -> Process:
        command = [sys.executable, "-m", "tasks.program", *arguments]
        process = Process(command, self.env, self.home / f"{name}.log").start()
        self.processes.append(process)
        return process

    def worker(
        self, name: str, *, concurrency: int = 2, wait: bool = True, pool: str = "prefork",
        services: Sequence[str] = SERVICES, options: Sequence[str] = (),
    ) -> Process:  # fmt: skip
        """Start a worker of all agents and, unless told not to, wait until it is one."""
        queues = [q for service in services for q in (service, f"{service}.recovery")]
        return self._worker(name, [*queues, "atalaia"], concurrency, *options, wait=wait, pool=pool)

    def supervisor(self, *, wait: bool = True) -> Process:
        """Start the worker that sweeps."""
        return self._worker("supervisor", ["supervisor"], 1, wait=wait, pool="prefork")

    def _worker(
        self, name: str, queues: list[str], concurrency: int, *options: str, wait: bool, pool: str
    ) -> Process:
        process = self._celery(
            name, "worker", "-n", f"{name}@test", "-c", str(concurrency), "-P", pool,
            "-Q", ",".join(queues), "--without-mingle", "--without-gossip", *options,
        )  # fmt: skip
        if wait:
            log = self.home / f"{name}.log"
            eventually(
                lambda: self.keeps(process.pid),
                within=UP_WITHIN,
                describe=lambda: f"worker {name} is up: {log.read_text()[-2000:]}",
            )
        return process

    def beat(self) -> Process:
        """Start beat."""
        return self._celery("beat", "beat")

    def stop(self) -> None:
        """Kill everything that was started."""
        for process in reversed(self.processes):
            process.kill()
        self.engine.dispose()
        self.celery.close()

    # --- looking at the rows -------------------------------------------------------------------

    def start_trip(self, key: str | None = None, **changes: Any) -> Handle:
        return self.scheduler.start("trip", TRIP | changes, key=key)

    def step(self, saga_id: UUID, path: str) -> Any:
        with self.store.reading() as connection:
            query = select(Step.__table__).where(Step.saga_id == saga_id, Step.path == path)
            return connection.execute(query).one()

    def attempts(self, saga_id: UUID, path: str) -> list[Any]:
        with self.store.reading() as connection:
            table = Attempt.__table__
            query = select(table).where(Attempt.saga_id == saga_id, Attempt.path == path)
            return list(connection.execute(query.order_by(Attempt.no)))

    def journal(self, saga_id: UUID, path: str, verb: str) -> list[Any]:
        with self.store.reading() as connection:
            table = JournalEntry.__table__
            query = select(table).where(
                JournalEntry.saga_id == saga_id,
                JournalEntry.path == path,
                JournalEntry.verb == verb,
            )
            return list(connection.execute(query.order_by(JournalEntry.id)))

    def open_incidents(self, saga_id: UUID) -> list[Any]:
        with self.store.reading() as connection:
            found = views.list_incidents(connection)
        return [incident for incident in found if incident.saga_id == saga_id]

    def node_of(self, pid: int) -> Any:
        with self.store.reading() as connection:
            query = select(Node.__table__).where(Node.pid == pid, Node.ended_at.is_(None))
            return connection.execute(query).first()

    def keeps(self, pid: int) -> bool:
        """Tell whether a worker beats, as it does once its pool is up."""
        node = self.node_of(pid)
        return node is not None and node.heartbeat_at > node.started_at

    def assert_all_hold(self) -> None:
        """Assert that every invariant holds of the rows and the partners' own books."""
        assert_all_hold(self.store, [partner.books() for partner in self.partners.values()])

    def now(self) -> datetime:
        """The database's time."""
        with self.store.reading() as connection:
            return self.store.time(connection)
