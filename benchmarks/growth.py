"""Measure whether a step costs the same beside a million sagas, ended or under way.

Usage: ``python -m benchmarks.growth [--finished 0 1000 …] [--live 0 10000 …] [--stuck N]
[--json FILE]``. One PostgreSQL database is filled further and further: first with sagas that have
ended, then with others that are under way. At each size whole sagas are run by the store itself,
and sweeps that find nothing. Then so many of those under way are stuck, and swept until none is.

The rows are copies of sagas that really ran: completed at once, after a doubt, or compensated.
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psutil
import psycopg

from benchmarks.places import plain
from migrations.run import upgrade
from models.base import Base
from orchestration import Step, Workflow, sequence
from orchestration.contract import AgentContract
from orchestration.database import open_engine
from orchestration.events import Done, Failed, FailureKind
from orchestration.lease import Leases
from orchestration.ports import SilentDispatcher
from orchestration.registry import Registry
from orchestration.retention import Asked
from orchestration.roster import Roster
from orchestration.scheduler import Scheduler
from orchestration.signals import Applied
from orchestration.store import Store
from orchestration.supervisor import Supervisor
from tests.support import services
from tests.support.postgres import running

SAGAS = 200
"""So many whole sagas are run at each size."""
SWEEPS = 30
INTERVAL = 2.0
"""Seconds between two sweeps, as by default."""
STEPS = ("fetch", "pay", "tell")
AHEAD = "interval '1 day'"
ENDED = {"completed": 8, "after a doubt": 1, "compensated": 1}
"""What ended sagas there are, and how many of ten."""
LIVE = ("dispatched", "leased", "retrying", "unknown")
"""Where the second step of a saga under way stands; a quarter of them each."""
OF_SAGAS = ("steps", "attempts", "journal")
NEW_ID = """
CREATE FUNCTION new_id(n bigint) RETURNS uuid IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
SELECT (lpad(to_hex(1790000000000 + n), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
        || substr(md5(n::text), 4, 15))::uuid $$;
CREATE TABLE grown ();
"""
"""The table only tells the server's keeper that the database is no longer of use to others."""


class Watch:
    """What the driver waited for the server, and what the server's process used."""

    def __init__(self, url: str) -> None:
        self.waited = 0.0
        self.observer = psycopg.connect(plain(url), autocommit=True)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Add up the time of every statement and commit of this process."""
        execute, commit = psycopg.Cursor.execute, psycopg.Connection.commit
        with (
            patch.object(psycopg.Cursor, "execute", self._timed(execute)),
            patch.object(psycopg.Connection, "commit", self._timed(commit)),
        ):
            yield

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                self.waited += time.perf_counter() - began

        return timed

    def spent(self) -> tuple[float, int]:
        """Return processor seconds of the server for this database, and pages that it looked at."""
        ours = "datname = current_database() AND pid <> pg_backend_pid()"
        pids = self.observer.execute(f"SELECT pid FROM pg_stat_activity WHERE {ours}").fetchall()
        times = [psutil.Process(pid).cpu_times() for (pid,) in pids]
        time.sleep(1.1)  # A server tells what it has counted once in a second.
        counted = "SELECT sum(blks_hit + blks_read)::bigint FROM pg_stat_database WHERE datname = "
        row = self.observer.execute(counted + "current_database()").fetchone()
        assert row is not None
        return sum(one.user + one.system for one in times), row[0]


class Meter:
    """Times of one operation."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.walls: list[float] = []
        self.waits: list[float] = []

    def __call__(self, act: Callable[[], Any]) -> Any:
        self.watch.waited, began = 0.0, time.perf_counter()
        done = act()
        self.walls.append(time.perf_counter() - began)
        self.waits.append(self.watch.waited)
        return done

    def figures(self) -> dict[str, float]:
        """Return medians, in milliseconds."""
        return {
            "wall_ms": round(median(self.walls) * 1000, 3),
            "database_ms": round(median(self.waits) * 1000, 3),
        }


class Bench:
    """One process's scheduler, worker and supervisor over one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = Store(open_engine(url))
        registry = Registry()
        registry.add_agent(
            AgentContract(name="work", queue="work", idempotent=True, probe=True, compensation=True)
        )
        steps = sequence(*(Step(name, agent="work") for name in STEPS))
        registry.add_workflow(Workflow("growth", version=1, steps=steps))
        self.scheduler = Scheduler(self.store, SilentDispatcher(), registry)
        self.known = set(self.scheduler.register_definitions())
        self.leases = Leases(self.scheduler)
        roster = Roster(self.store)
        for number in range(50):  # Workers come and go.
            node, _ = roster.register(f"ended{number}", 1, ["work"], sorted(self.known))
            roster.end(node.id)
        self.node, _ = roster.register("worker", 1, ["work"], sorted(self.known))
        self.supervisor = Supervisor(
            self.scheduler,
            SilentDispatcher(),
            node_timeout=timedelta(days=1),
            keep_ended=timedelta(days=30),
            go_on_for=timedelta(seconds=INTERVAL),
        )
        self.keys = 0

    def sql(self, statement: str, *given: Any) -> int:
        with psycopg.connect(plain(self.url), autocommit=True) as connection:
            # Rows are copied with what they refer to; checking each would take most of the time.
            connection.execute("SET session_replication_role = replica")
            connection.execute("SET synchronous_commit = off")
            return connection.execute(statement, given).rowcount

    # --- sagas that really run -------------------------------------------------------------------

    def start(self) -> UUID:
        self.keys += 1
        key = f"order-{self.keys}"
        return self.scheduler.start("growth", {"order": key, "amount": 4200}, key=key).saga_id

    def grant(self, saga: UUID, path: str, number: int = 1) -> Any:
        work = self.leases.grant(saga, path, number, self.node, self.known)
        assert work is not None, f"{path} was not granted"
        return work

    def report(self, work: Any, outcome: Any = None) -> None:
        self.leases.report(work, outcome or Done(result={"reference": "AB-1234567", "ok": True}))

    def ended(self, how: str) -> UUID:
        """Run a saga to one of its ends."""
        saga = self.start()
        self.report(self.grant(saga, "fetch"))
        if how == "after a doubt":
            self.grant(saga, "pay")
            self.scheduler.lost(saga, "pay", 1, "its worker process 1 is gone")
            self.leases.answer(saga, "pay", 1, Applied({"reference": "AB-1"}))
            self.report(self.grant(saga, "tell"))
        elif how == "compensated":
            refusal = Failed(kind=FailureKind.PERMANENT, type="SoldOut", message="no room left")
            self.report(self.grant(saga, "pay"), refusal)
            self.report(self.grant(saga, "fetch", 2))
        else:
            self.report(self.grant(saga, "pay"))
            self.report(self.grant(saga, "tell"))
        return saga

    def live(self, state: str) -> UUID:
        """Bring a saga to where its second step stands in a state, and is not due for a day."""
        saga = self.start()
        self.report(self.grant(saga, "fetch"))
        if state == "retrying":
            busy = Failed(kind=FailureKind.LATER, type="Busy", message="later")
            self.report(self.grant(saga, "pay"), busy)
        elif state != "dispatched":
            self.grant(saga, "pay")
        if state == "unknown":
            self.scheduler.lost(saga, "pay", 1, "its worker process 1 is gone")
        found = self.sql(
            f"UPDATE steps SET wake_at = now() + {AHEAD}, deadline_at = CASE WHEN deadline_at "
            f"IS NULL THEN NULL ELSE now() + {AHEAD} END WHERE saga_id = %s AND state = %s",
            saga,
            state,
        )
        assert found == 1, f"{state} was not reached"
        self.sql(f"UPDATE sagas SET wake_at = now() + {AHEAD} WHERE id = %s", saga)
        return saga

    # --- their copies ----------------------------------------------------------------------------

    def copy(self, saga: UUID, first: int, count: int, **changed: str) -> None:
        """Copy a saga with all its rows; ``changed`` are SQL expressions of ``n`` for its row."""
        own = {"id": "new_id(n)", "key": "'copy-' || n", **changed}
        self._copy("sagas", "id", own, saga, first, count)
        for table in OF_SAGAS:
            self._copy(table, "saga_id", {"saga_id": "new_id(n)"}, saga, first, count)

    def _copy(
        self, table: str, key: str, changed: dict[str, str], saga: UUID, first: int, count: int
    ) -> None:
        numbered = table == "journal"
        columns = [c.name for c in Base.metadata.tables[table].columns]
        names = [name for name in columns if not (numbered and name == "id")]
        chosen = ", ".join(changed.get(name, f'"{name}"') for name in names)
        listed = ", ".join(f'"{name}"' for name in names)
        self.sql(
            f"INSERT INTO {table} ({listed}) SELECT {chosen} FROM {table}, "
            f"generate_series({first}::bigint, {first + count - 1}) AS n WHERE {key} = %s",
            saga,
        )

    def settle(self) -> None:
        """Leave the tables as autovacuum would."""
        self.sql("VACUUM (ANALYZE)")


def fill_ended(bench: Bench, first: int, count: int) -> None:
    """Add ended sagas; their ends are spread over the month in which none is deleted yet."""
    begin = first
    for how, share in ENDED.items():
        some = count * share // 10
        ended = "now() - interval '29 days' + interval '1 second' * mod(n, 2400000)"
        saga = bench.ended(how)
        # Otherwise every copy is kept for minutes, for its processes might still report.
        bench.sql(
            "UPDATE steps SET granted_at = now() - interval '29 days' WHERE saga_id = %s", saga
        )
        bench.copy(saga, begin, some, created_at=ended, ended_at=ended)
        begin += some
    bench.settle()


def fill_live(bench: Bench, first: int, count: int) -> None:
    """Add sagas under way, none of which is due."""
    some = count // len(LIVE)
    for number, state in enumerate(LIVE):
        bench.copy(bench.live(state), first + number * some, some)
    bench.settle()


# --- measuring -----------------------------------------------------------------------------------


def transitions(bench: Bench, watch: Watch) -> dict[str, Any]:
    """Run whole sagas; return what each kind of transition took."""
    meters: dict[str, Meter] = defaultdict(lambda: Meter(watch))
    for _ in range(10):
        bench.ended("completed")  # Statements are prepared and pages are in memory.
    cpu, pages = watch.spent()
    with watch.timing():
        for _ in range(SAGAS):
            saga = meters["start"](bench.start)
            for path in STEPS:
                work = meters["grant"](partial(bench.grant, saga, path))
                meters["report"](partial(bench.report, work))
    used, looked = watch.spent()
    found: dict[str, Any] = {name: meter.figures() for name, meter in meters.items()}
    steps = SAGAS * len(STEPS)
    per_step = {
        "server_cpu_ms": round((used - cpu) * 1000 / steps, 3),
        "pages": round((looked - pages) / steps, 1),
    }
    return found | {"step": per_step}


def sweeps(bench: Bench, watch: Watch) -> dict[str, float]:
    """Sweep where nothing is stuck."""
    meter = Meter(watch)
    for _ in range(10):
        bench.supervisor.sweep()
    cpu, pages = watch.spent()
    with watch.timing():
        for _ in range(SWEEPS):
            report = meter(bench.supervisor.sweep)
            assert report.quiet, dict(report.counts)
    used, looked = watch.spent()
    return meter.figures() | {
        "server_cpu_ms": round((used - cpu) * 1000 / SWEEPS, 3),
        "pages": round((looked - pages) / SWEEPS, 1),
    }


def stuck(bench: Bench, count: int) -> dict[str, Any]:
    """Let so many steps be overdue, of each state as many, and sweep until none is."""
    for state in LIVE:
        bench.sql(
            "UPDATE steps SET wake_at = now() - interval '1 hour', deadline_at = CASE WHEN "
            "deadline_at IS NULL THEN NULL ELSE now() - interval '1 hour' END "
            "WHERE (saga_id, path) IN (SELECT saga_id, path FROM steps WHERE state = %s LIMIT %s)",
            state,
            count // len(LIVE),
        )
    # What was acted on and is due again, since no worker takes it, is not stuck.
    overdue = "SELECT count(*) FROM steps WHERE wake_at < now() - interval '30 minutes'"
    before = left = bench_count(bench, overdue)
    began, spans = time.perf_counter(), []
    while left:
        at = time.perf_counter()
        bench.supervisor.sweep()
        spans.append(time.perf_counter() - at)
        left = bench_count(bench, overdue)
        if left:  # Beat rings at its interval.
            time.sleep(max(0.0, INTERVAL - spans[-1]))
    return {
        "stuck": before,
        "sweeps": len(spans),
        "seconds": round(time.perf_counter() - began, 1),
        "longest_sweep_s": round(max(spans), 2),
    }


def bench_count(bench: Bench, query: str) -> int:
    """Return the one number that a query gives."""
    with psycopg.connect(plain(bench.url)) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def purging(bench: Bench, most: int) -> dict[str, Any]:
    """Delete ended sagas, as the command does."""
    retention = bench.supervisor.retention
    asked = Asked(before=retention.ended_before(timedelta(hours=1)))
    began, gone = time.perf_counter(), 0
    for page in retention.pages(asked):
        gone += retention.purge([place.id for place in page]).sagas
        if gone >= most:
            break
    took = time.perf_counter() - began
    return {"sagas": gone, "per_second": round(gone / took)}


def measure(bench: Bench, watch: Watch, finished: int, live: int) -> dict[str, Any]:
    """Return the figures at one size."""
    size = bench_count(bench, "SELECT pg_database_size(current_database())")
    figures = {
        "finished": finished,
        "live": live,
        "megabytes": round(size / 1e6),
        "load": round(os.getloadavg()[0], 1),
        **transitions(bench, watch),
        "sweep": sweeps(bench, watch),
    }
    print(json.dumps(figures), file=sys.stderr, flush=True)
    return figures


def grow(url: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Fill one database further and further; return the figures at every size."""
    bench = Bench(url)
    bench.sql(NEW_ID)
    watch = Watch(url)
    sizes: list[dict[str, Any]] = []
    finished = live = 0
    for number in sorted(asked.finished):
        fill_ended(bench, finished, number - finished)
        finished = number
        sizes.append(measure(bench, watch, finished, 0))
    for number in sorted(set(asked.live) - {0}):
        fill_live(bench, 100_000_000 + live, number - live)
        live = number
        sizes.append(measure(bench, watch, finished, live))
    found: dict[str, Any] = {"sizes": sizes}
    if asked.stuck:
        found["stuck"] = stuck(bench, asked.stuck)
    if finished:
        found["purge"] = purging(bench, min(finished // 2, 5000))
    watch.observer.close()
    bench.store.engine.dispose()
    return found


def table(found: dict[str, Any]) -> str:
    """Return the figures as a table of Markdown: milliseconds, and pages of the database."""
    head = (
        "| ended | under way | MB | start | grant | report | server's CPU / step | pages / step "
        "| sweep | server's CPU / sweep | pages / sweep |"
    )
    lines = [head, "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for size in found["sizes"]:
        step, sweep = size["step"], size["sweep"]
        times = (size[name]["database_ms"] for name in ("start", "grant", "report"))
        cells = [
            f"{size['finished']:,}", f"{size['live']:,}", f"{size['megabytes']:,}",
            *(f"{time:.2f}" for time in times), f"{step['server_cpu_ms']:.2f}",
            f"{step['pages']:.0f}", f"{sweep['database_ms']:.2f}",
            f"{sweep['server_cpu_ms']:.2f}", f"{sweep['pages']:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and write the figures where they are wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--finished", type=int, nargs="+", default=[0, 1000, 100_000])
    parser.add_argument("--live", type=int, nargs="+", default=[0, 10_000])
    parser.add_argument("--stuck", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with running(services.optional(services.POSTGRES), durable=True) as server:
        template = server.make_template(_lay)
        with server.database(template) as url:
            found = grow(url, asked)
    print(table(found))
    rest = {name: figures for name, figures in found.items() if name != "sizes"}
    print(json.dumps(rest))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


def _lay(url: str) -> None:
    engine = open_engine(url)
    upgrade(engine)
    engine.dispose()


if __name__ == "__main__":
    main()
