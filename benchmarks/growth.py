"""Measure whether a step costs the same beside a million sagas, ended or under way.

Usage: ``python -m benchmarks.growth [--finished 0 1000 …] [--live 0 10000 …] [--stuck N]
[--json FILE]``. One PostgreSQL database is filled further and further: first with sagas that have
ended, then with others that are under way. At each size whole sagas are run by the store itself,
and sweeps that find nothing. Then so many of those under way are stuck, and swept until none is.
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
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import psutil
import psycopg

from benchmarks.filling import (
    INTERVAL,
    NEW_ID,
    OVERDUE,
    STEPS,
    Bench,
    fill_ended,
    fill_live,
    make_stuck,
)
from benchmarks.places import plain
from migrations.run import upgrade
from orchestration.database import open_engine
from orchestration.retention import Asked
from tests.support import services
from tests.support.postgres import running

SAGAS = 200
"""So many whole sagas are run at each size."""
SWEEPS = 30


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
                work = meters["grant"](lambda saga=saga, path=path: bench.grant(saga, path))
                meters["report"](lambda work=work: bench.report(work))
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
    make_stuck(bench, count)
    before = left = bench_count(bench, OVERDUE)
    began, spans = time.perf_counter(), []
    while left:
        at = time.perf_counter()
        bench.supervisor.sweep()
        spans.append(time.perf_counter() - at)
        left = bench_count(bench, OVERDUE)
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
