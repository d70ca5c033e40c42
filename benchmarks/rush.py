"""Measure whether fresh work is slowed while many stuck steps are resolved.

Usage: ``python -m benchmarks.rush [--live N] [--stuck N] [--steady SECONDS] [--json FILE]``. One
PostgreSQL database is filled with copies of sagas under way, none of them due. A worker of two
processes, the supervisor's worker and beat run on it, with defaults, and a client keeps fresh sagas
coming: first so many under way at any time, then in a second run half as many a second as were done
in the first. In the midst of each run many of the others are stuck: lost messages, dead leases,
retries, doubts.

Fresh sagas are counted and timed from their rows: before, until no step that was stuck is overdue,
until the last saga of which one was has ended, and afterwards.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any, Self

import psycopg

from benchmarks.contestants.atalaia import PREFORK, worker
from benchmarks.contestants.base import PATIENCE, NotMeasuredError, Running, module, running
from benchmarks.filling import NEW_ID, OVERDUE, WORK, Bench, fill_live, make_stuck
from benchmarks.measure import processor_seconds, server_seconds
from benchmarks.places import Places, open_places, plain
from orchestration.contract import RECOVERY_QUEUE_SUFFIX
from tests.support import services

UNDER_WAY = 8
"""So many fresh sagas are kept under way in the first run."""
LOOK_EVERY = 0.25
LANES = (WORK.queue, WORK.queue + RECOVERY_QUEUE_SUFFIX)
WINDOWS = ("before", "until all are decided", "until all have ended", "after")
_PROGRAM = "benchmarks.programs.growth"
RUSH = replace(
    PREFORK,
    name="rush",
    about="one prefork worker of 2, beside many stuck steps",
    workers=[worker("one", "prefork", 2, ",".join(LANES))],
    client=module("fresh"),
    environment=PREFORK.environment | {"ATALAIA_AGENTS": _PROGRAM, "ATALAIA_WORKFLOWS": _PROGRAM},
)
# The client's sagas have no keys; all others have.
FRESH = """
SELECT extract(epoch FROM created_at)::float, extract(epoch FROM ended_at)::float
FROM sagas WHERE key IS NULL AND created_at >= to_timestamp(%s)
"""
UNENDED = """
SELECT count(*) FROM (
    SELECT FROM stuck JOIN sagas ON id = saga_id WHERE ended_at IS NULL LIMIT 1
) AS one
"""
SETTLED = """
SELECT extract(epoch FROM max(settled_at))::float FROM steps JOIN stuck USING (saga_id, path)
"""


class Look:
    """What is seen of the database and of the broker, from beside them."""

    def __init__(self, found: Running, url: str) -> None:
        self.found = found
        self.connection = psycopg.connect(
            plain(url), autocommit=True, application_name="bench-look"
        )
        self.deepest = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def number(self, query: str) -> float:
        """Return the one number that a query gives."""
        row = self.connection.execute(query).fetchone()
        assert row is not None
        return float(row[0])

    def mark(self) -> "Mark":
        """Return the present, and begin to look for the longest queues anew."""
        deepest, self.deepest = self.deepest, 0
        used = self.found.processor_seconds()
        used["supervisor"] = processor_seconds(self.found.beside())
        used["workers"] -= used["supervisor"]
        used["postgresql"] = server_seconds(self.found.places)  # Children come and go.
        del used["client"]
        at = self.number("SELECT extract(epoch FROM clock_timestamp())")
        return Mark(at=at, used=used, deepest=deepest)

    def until_none(self, query: str) -> "Mark":
        """Wait until a query counts nothing, or until patience is at its end."""
        patience = time.monotonic() + PATIENCE
        while left := self.number(query):
            if time.monotonic() > patience:
                break
            self.rest(LOOK_EVERY)
        return replace(self.mark(), left=bool(left))

    def rest(self, seconds: float) -> None:
        """Let time pass, with a look at the queues."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.deepest = max(self.deepest, self._waiting())
            time.sleep(min(left, LOOK_EVERY))

    def _waiting(self) -> int:
        """Return how many messages wait; kombu has a list for each priority of a queue."""
        broker = self.found.places.redis
        lists = (broker.keys(f"{lane}*") for lane in LANES)
        return sum(broker.llen(name) for name in set(chain.from_iterable(lists)))


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An instant between two windows, by the database's clock."""

    at: float
    used: dict[str, float]
    """Processor seconds so far."""
    deepest: int
    """How many messages waited since the mark before, at most."""
    left: bool = False
    """Whether what was waited for had not come."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much there is of everything."""

    live: int
    stuck: int
    steady: float
    """Seconds that are measured before the rush and after it."""


def rush(found: Running, bench: Bench, size: Size, **load: float) -> dict[str, Any]:
    """Do one run, in which fresh sagas come as the client is told; return its figures."""
    with Look(found, bench.url) as look:
        found.ask("keep", **load)
        look.rest(size.steady / 3)
        marks = [look.mark()]
        look.rest(size.steady)
        marks.append(look.mark())
        make_stuck(bench, size.stuck)
        marks.append(look.until_none(OVERDUE))
        marks.append(look.until_none(UNENDED))
        look.rest(size.steady)
        marks.append(look.mark())
        halted = found.ask("halt", within=PATIENCE)
        if not halted["all"]:
            raise NotMeasuredError("not all fresh sagas have ended")
        return {
            "fresh": load,
            **waited(look, marks),
            "start_late_by_s": round(halted["latest"], 2),
            "windows": windows(look, marks),
        }


def waited(look: Look, marks: Sequence[Mark]) -> dict[str, float | None]:
    """Return the seconds from the beginning of the rush, or nothing where it took too long."""
    _, began, decided, ended, _ = marks
    settled = look.number(SETTLED)
    return {
        "decided_s": None if decided.left else round(decided.at - began.at, 1),
        "settled_s": None if ended.left else round(settled - began.at, 1),
        "ended_s": None if ended.left else round(ended.at - began.at, 1),
    }


def windows(look: Look, marks: Sequence[Mark]) -> dict[str, dict[str, float]]:
    """Return what fresh sagas did between each two marks."""
    fresh = look.connection.execute(FRESH, [marks[0].at]).fetchall()
    told: dict[str, dict[str, float]] = {}
    for name, (begin, end) in zip(WINDOWS, pairwise(marks), strict=True):
        lasted = end.at - begin.at
        done = sum(begin.at <= ended < end.at for _, ended in fresh)
        took = [ended - began for began, ended in fresh if begin.at <= began < end.at]
        told[name] = {
            "seconds": round(lasted, 1),
            "sagas_per_second": round(done / lasted, 1),
            **latencies(took),
            "most_messages": end.deepest,
            **{
                f"cores_of_{part}": round((end.used[part] - begin.used[part]) / lasted, 2)
                for part in end.used
            },
        }
    before = told["before"]["sagas_per_second"]
    for figures in told.values():
        figures["of_before"] = round(figures["sagas_per_second"] / before, 2)
    return told


def latencies(took: Sequence[float]) -> dict[str, float]:
    """Return the percentiles of sagas that began in a window, whenever they ended."""
    if len(took) < 2:  # noqa: PLR2004 - of one there is no percentile
        return {}
    cuts = quantiles(took, n=20, method="inclusive")
    return {"p50_ms": round(cuts[9] * 1000, 1), "p95_ms": round(cuts[18] * 1000, 1)}


def measure(places: Places, size: Size) -> dict[str, Any]:
    """Fill a database, and rush it twice."""
    with running(RUSH, places) as found, filled(found, size.live) as bench:
        found.start()
        load = os.getloadavg()[0]
        first = rush(found, bench, size, under_way=UNDER_WAY)
        print(json.dumps(first), file=sys.stderr, flush=True)
        bench.settle()
        rate = round(first["windows"]["before"]["sagas_per_second"] / 2, 1)
        second = rush(found, bench, size, rate=rate)
    return {"size": asdict(size), "load": round(load, 1), "runs": [first, second]}


@contextmanager
def filled(found: Running, live: int) -> Iterator[Bench]:
    """Fill the database of a contestant before it is started."""
    bench = Bench(found.places.server.url_of(found.database))
    bench.sql(NEW_ID)
    fill_live(bench, 0, live)
    # Whoever holds the leases that are not due must not be taken for dead.
    bench.sql("UPDATE nodes SET heartbeat_at = now() + interval '1 day'")
    yield bench
    bench.store.engine.dispose()


def table(found: dict[str, Any]) -> str:
    """Return the figures as a table of Markdown."""
    parts = ("workers", "supervisor", "postgresql", "redis")
    head = ["fresh work", "", "s", "sagas/s", "of before", "p50 ms", "p95 ms", "most messages"]
    lines = [f"| {' | '.join([*head, *(f'cores, {part}' for part in parts)])} |"]
    lines.append("|---|---" + "|--:" * (len(head) + len(parts) - 2) + "|")
    for run in found["runs"]:
        fresh = " ".join(f"{how} {number}" for how, number in run["fresh"].items())
        for name, seen in run["windows"].items():
            cells = [
                fresh, name, seen["seconds"], seen["sagas_per_second"], seen["of_before"],
                seen.get("p50_ms", "-"), seen.get("p95_ms", "-"), seen["most_messages"],
                *(seen[f"cores_of_{part}"] for part in parts),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and write the figures where they are wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--live", type=int, default=20_000)
    parser.add_argument("--stuck", type=int, default=1000)
    parser.add_argument("--steady", type=float, default=15.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    size = Size(live=asked.live, stuck=asked.stuck, steady=asked.steady)
    with open_places(services.optional(services.REDIS)) as places:
        found = measure(places, size)
    print(table(found))
    print(json.dumps(found))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
