"""Chaos: trips are booked while everything is killed, paused, cut off and flushed at random.

At the end the weather clears, the work is given time to come to rest, and then the partners' own
books and the rows decide. ``make chaos MINUTES=60`` runs it by hand; the last line is
``chaos: N sagas, K kills, R rescued, L lost, O orphaned effects, D duplicated effects``.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import psutil
import psycopg
import redis
from rich.console import Console
from rich.live import Live
from rich.table import Table
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from examples.travel.books import Reconciliation, reconcile
from migrations.run import upgrade
from models import Attempt, JournalEntry, Step
from models.states import SAGA_TERMINAL
from orchestration import views
from orchestration.database import open_engine
from tasks.embedded import EmbeddedBroker
from tests.support import services
from tests.support.invariants import Violation, check
from tests.support.postgres import private_server
from tests.support.proxy import Proxy
from tests.support.records import record_of
from tests.support.workers import Process, Rig, partners

START_EVERY = 0.4
"""Seconds between two starts."""
REST_WITHIN = 120.0
"""Seconds that the work is given to come to rest after the storm: less than any step's time-out."""


@dataclass
class Storm:
    """One run. Everything that is killed was started here."""

    rig: Rig
    dice: random.Random
    seconds: float
    proxies: dict[str, Proxy]
    broker: EmbeddedBroker | None
    administrator: str
    keep: dict[str, Callable[[], Process]] = field(default_factory=dict)
    up: dict[str, Process] = field(default_factory=dict)
    felt: Counter[str] = field(default_factory=Counter)
    sagas: list[Any] = field(default_factory=list)
    paused: list[int] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        worker = self.rig.worker
        self.keep = {
            "one": lambda: worker("one", wait=False),
            "two": lambda: worker("two", wait=False),
            "supervisor": lambda: self.rig.supervisor(wait=False),
            "beat": self.rig.beat,
        }

    # --- the people ----------------------------------------------------------------------------

    def tend(self) -> None:
        """Start again what has died, as a process manager does."""
        for name, start in self.keep.items():
            process = self.up.get(name)
            if process is None or process.started is None or process.started.poll() is not None:
                if process is not None:
                    process.kill()
                self.up[name] = start()

    def book(self) -> None:
        """Start one trip; a start that fails is repeated under its key by a later one."""
        key = f"trip-{len(self.sagas)}"
        try:
            self.sagas.append(self.rig.start_trip(key=key))
        except (SQLAlchemyError, OSError):
            self.felt["starts refused"] += 1

    # --- the weather ---------------------------------------------------------------------------

    def strike(self) -> str:
        """Do one bad thing and say which."""
        names = ["kill_child", "kill_child", "kill_worker", "kill_beat", "kill_supervisor"]
        names += ["pause", "cut_broker", "cut_database", "slow", "freeze", "terminate_backends"]
        names += ["flush_broker", "restart_broker"] if self.broker else []
        names += ["crash_database"]
        name = self.dice.choice(names)
        # LookupError: there is nobody to strike at this moment.
        nobody = (LookupError, psutil.Error, psycopg.Error, redis.RedisError, OSError)
        with contextlib.suppress(*nobody):
            getattr(self, name)()
            self.felt[name] += 1
        return name

    def _children(self) -> list[int]:
        found = []
        for name in ("one", "two"):
            process = self.up.get(name)
            if process is not None and process.started is not None:
                found += [child.pid for child in psutil.Process(process.pid).children()]
        return found

    def kill_child(self) -> None:
        """Prefer one that holds a lease."""
        holders = self._holders()
        children = self._children()
        os.kill(self.dice.choice([p for p in children if p in holders] or children), signal.SIGKILL)

    def _holders(self) -> set[int]:
        with contextlib.suppress(SQLAlchemyError), self.rig.store.reading() as connection:
            query = select(Step.pid).where(Step.state == "leased")
            return {pid for pid in connection.execute(query).scalars() if pid}
        return set()

    def kill_worker(self) -> None:
        self.up[self.dice.choice(["one", "two"])].kill()

    def kill_beat(self) -> None:
        self.up["beat"].kill()

    def kill_supervisor(self) -> None:
        self.up["supervisor"].kill()

    def pause(self) -> None:
        """Stop a whole worker for longer than it takes to be given up, or a child for a moment."""
        if self.dice.random() < 0.5:
            process = self.up[self.dice.choice(["one", "two"])]
            pids = [process.pid, *(c.pid for c in psutil.Process(process.pid).children())]
            length = 8.0
        else:
            pids, length = [self.dice.choice(self._children())], 2.0
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self.over.wait(length)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def cut_broker(self) -> None:
        self.proxies["broker"].drop()

    def cut_database(self) -> None:
        self.proxies["database"].drop()

    def slow(self) -> None:
        proxy = self.dice.choice(list(self.proxies.values()))
        proxy.slow(0.05)
        self.over.wait(3)
        proxy.heal()

    def freeze(self) -> None:
        proxy = self.dice.choice(list(self.proxies.values()))
        proxy.freeze()
        self.over.wait(4)
        proxy.heal()

    def flush_broker(self) -> None:
        assert self.broker is not None
        with redis.Redis.from_url(self.broker.url()) as client:
            client.flushall()

    def restart_broker(self) -> None:
        assert self.broker is not None
        self.broker.stop()
        self.broker.start()

    def terminate_backends(self) -> None:
        with psycopg.connect(self.administrator, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname LIKE 'atalaia%' AND pid <> pg_backend_pid()"
            )

    def crash_database(self) -> None:
        """SIGKILL one backend of our own server: PostgreSQL then restarts all and recovers."""
        with psycopg.connect(self.administrator, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname LIKE 'atalaia%'"
            ).fetchall()
        os.kill(self.dice.choice(rows)[0], signal.SIGKILL)

    # --- one run -------------------------------------------------------------------------------

    def run(self, show: Callable[["Storm", float, str], None]) -> None:
        """Book and strike until the time is over; then heal, and wait until all is at rest."""
        self.up["one"] = self.rig.worker("one")  # stores the definitions
        self.tend()
        began = time.monotonic()
        booker = threading.Thread(target=self._keep_booking, daemon=True)
        booker.start()
        while (left := began + self.seconds - time.monotonic()) > 0:
            name = self.strike()
            self.tend()
            show(self, left, name)
            self.over.wait(self.dice.uniform(0.5, 2.0))
        self.over.set()
        booker.join()
        self._clear_up(show)

    def _keep_booking(self) -> None:
        while not self.over.wait(START_EVERY):
            self.book()

    def _clear_up(self, show: Callable[["Storm", float, str], None]) -> None:
        for proxy in self.proxies.values():
            proxy.heal()
        for partner in self.rig.partners.values():
            partner.switch()
        end = time.monotonic() + REST_WITHIN
        pause = threading.Event()
        while (left := end - time.monotonic()) > 0 and self.unsettled():
            self.tend()
            show(self, left, "at rest soon")
            pause.wait(0.5)

    def unsettled(self) -> list[str]:
        """Return the sagas that have not ended, and late rows that still move."""
        with self.rig.store.reading() as connection:
            rows = views.list_sagas(connection, limit=1_000_000)
            live = select(Step.saga_id).where(Step.wake_at.is_not(None), Step.kind == "agent")
            moving = {str(saga) for saga in connection.execute(live).scalars()}
        return [str(row.id) for row in rows if row.state not in SAGA_TERMINAL] + sorted(moving)

    def strays(self, sagas: list[str]) -> Iterator[str]:
        """Tell the rows and the last journal entries of ``sagas``, to whoever must explain them."""
        with self.rig.store.reading() as connection:
            for saga in map(UUID, sagas):
                for row in connection.execute(
                    select(Step.__table__).where(Step.saga_id == saga)
                ).mappings():
                    yield f"step {dict(row)}"
                written = (
                    select(JournalEntry.__table__)
                    .where(JournalEntry.saga_id == saga)
                    .order_by(JournalEntry.id.desc())
                )
                for row in connection.execute(written.limit(20)).mappings():
                    yield f"journal {dict(row)}"

    def verdict(self) -> tuple[Reconciliation, list[Violation]]:
        """Compare every saga with the partners' own books, and check every invariant."""
        with self.rig.store.reading() as connection:
            rows = views.list_sagas(connection, limit=1_000_000)
        states = {str(row.id): row.state for row in rows}
        books = [partner.books() for partner in self.rig.partners.values()]
        return reconcile(books, states), check(record_of(self.rig.store, books))

    def rescues(self) -> tuple[int, list[float]]:
        """Return how many sagas had a lease taken back, and the seconds until the step moved on."""
        with self.rig.store.reading() as connection:
            query = select(Attempt.saga_id, Attempt.granted_at, Attempt.ended_at)
            rows = connection.execute(query.where(Attempt.state == "expired")).all()
        times = [(row.ended_at - row.granted_at) / timedelta(seconds=1) for row in rows]
        return len({row.saga_id for row in rows}), times

    @property
    def kills(self) -> int:
        return sum(count for name, count in self.felt.items() if name.startswith("kill"))


@contextlib.contextmanager
def storm(seed: int, seconds: float, kind: str) -> Iterator[Storm]:
    """Yield a storm over PostgreSQL and ``kind`` (valkey or rabbitmq), each behind a proxy."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atalaia-storm-")))
        # A server of our own, which may be crashed, and which goes with all that is in it.
        server = stack.enter_context(private_server())
        plain = server.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute("CREATE DATABASE atalaia_storm")
            # The tests' servers acknowledge commits before they are written. This one is crashed,
            # and a start that is lost after its flight was booked is an orphan beyond any repair.
            connection.execute("ALTER DATABASE atalaia_storm SET synchronous_commit = on")
        url = server.set(database="atalaia_storm")
        _lay(url.render_as_string(hide_password=False))
        broker = EmbeddedBroker(home / "broker") if kind == "valkey" else None
        broker_url = broker.start() if broker else services.rabbitmq()
        if broker:
            stack.callback(broker.stop)
        assert url.port is not None
        parts = urlsplit(broker_url)
        proxies = {
            "database": stack.enter_context(Proxy(url.port)),
            "broker": stack.enter_context(Proxy(parts.port or 5672)),
        }
        through = url.set(port=proxies["database"].port).render_as_string(hide_password=False)
        netloc = f"{parts.username or ''}:{parts.password or ''}@127.0.0.1:{proxies['broker'].port}"
        travel = stack.enter_context(partners(home / "partners"))
        for name, partner in travel.items():
            declines = {"sold_out": {"probability": 0.2, "seed": seed}}
            partner.switch(
                slow={"before": 0.05, "after": 0.25, "on": ["order"]},
                lost_reply={"probability": 0.02, "seed": seed},
                **(declines if name == "payments" else {}),
            )
        rig = Rig(through, parts._replace(netloc=netloc).geturl(), home, travel)
        stack.callback(rig.stop)
        yield Storm(rig, random.Random(seed), seconds, proxies, broker, plain)


def _lay(url: str) -> None:
    engine = open_engine(url)
    upgrade(engine)
    engine.dispose()


def report(found: Storm) -> tuple[str, bool]:
    """Return the last line and whether it is a good one; print the figures before it."""
    books, violations = found.verdict()
    lost = found.unsettled()
    rescued, times = found.rescues()
    console = Console()
    table = Table("what happened", "times")
    for name, count in sorted(found.felt.items()):
        table.add_row(name, str(count))
    console.print(table)
    if len(times) > 1:
        p99 = quantiles(times, n=100)[-1]
        console.print(
            f"a lease was taken back after p50 {median(times):.1f} s, p99 {p99:.1f} s, "
            f"max {max(times):.1f} s of its grant ({len(times)} leases)"
        )
    console.print(f"{books.effects} effects checked, {books.cancelled} of them undone")
    for line in [*books.lines(), *violations, *lost, *found.strays(lost)]:
        console.print(str(line), highlight=False, soft_wrap=True)
    numbers = (len(books.orphaned) + len(books.missing), len(books.duplicated))
    line = (
        f"chaos: {len(found.sagas)} sagas, {found.kills} kills, {rescued} rescued, "
        f"{len(lost)} lost, {numbers[0]} orphaned effects, {numbers[1]} duplicated effects"
    )
    return line, not lost and not violations and numbers == (0, 0)


def main() -> int:
    """Run a storm of ``--minutes``; exit 1 if anything was lost, orphaned or doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--broker", choices=["valkey", "rabbitmq"], default="valkey")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    wanted = parser.parse_args()
    console = Console()
    console.print(f"seed {wanted.seed}")
    with storm(wanted.seed, wanted.minutes * 60, wanted.broker) as found:
        with Live(refresh_per_second=2) as live:
            found.run(lambda run, left, name: live.update(_view(run, left, name)))
        line, good = report(found)
    console.print(line, highlight=False, soft_wrap=True)
    return 0 if good else 1


def _view(run: Storm, left: float, name: str) -> Table:
    table = Table(title=f"{left:.0f} s left; now: {name}")
    with contextlib.suppress(SQLAlchemyError), run.rig.store.reading() as connection:
        for state, count in sorted(views.count_sagas(connection).items()):
            table.add_row(state, str(count))
    table.add_row("kills", str(run.kills))
    return table


if __name__ == "__main__":
    sys.exit(main())
