"""What a contestant uses: processor seconds, memory, commits and fsyncs, each with its source.

Processor seconds are those of all processes of the contestant (workers with their children, and
what runs beside them), of the PostgreSQL backends of its own database that are there at the end, of
the Redis server where it uses one, and of its client while that starts sagas. PostgreSQL's
background processes (checkpointer, WAL writer) are shared and left out.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.places import Places

_PG_STAT_IO_HAS_WAL = 180_000
_BACKENDS = """
    SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity
    WHERE datname = %s AND application_name <> 'bench-look'
"""


def with_children(pids: Iterable[int]) -> list[psutil.Process]:
    """Return the living processes of these ids, and everything that they have started."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    return found


def processor_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return what the processes, and those of their children that have ended, have used."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            times: Any = process.cpu_times()
            total += times.user + times.system
            total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total


def megabytes(processes: Iterable[psutil.Process]) -> float:
    """Return the memory of the processes; what they share is divided (Linux) or counted once."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            memory: Any = process.memory_full_info()
            total += getattr(memory, "pss", memory.uss)
    return total / 2**20


def backends_seconds(places: Places, database: str) -> float:
    """Return what the backends of a database have used, if they are processes of this machine."""
    seconds = 0.0
    for pid in places.ask(_BACKENDS, database):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if "postgres" in process.name():
                seconds += processor_seconds([process])
    return seconds


def server_seconds(places: Places) -> float:
    """Return what the whole PostgreSQL server has used, sessions that have ended included."""
    postmaster = psutil.Process(places.administrator.info.backend_pid).parent()
    assert postmaster is not None
    return processor_seconds(with_children([postmaster.pid]))


def redis_seconds(places: Places) -> float:
    """Return what the Redis server has used, as it says itself."""
    told: Any = places.redis.info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


@dataclass(frozen=True)
class Writes:
    """Counters of a PostgreSQL server; the last two are of the whole server."""

    commits: float
    """``pg_stat_database.xact_commit`` of the contestant's database: reads count, too."""
    writing: float
    """Transaction ids given out (``pg_current_snapshot``): transactions that wrote, savepoints."""
    fsyncs: float
    """Of the write-ahead log: ``pg_stat_wal.wal_sync``, from 18 on ``pg_stat_io.fsyncs``."""

    def __sub__(self, other: "Writes") -> "Writes":
        return Writes(
            self.commits - other.commits,
            self.writing - other.writing,
            self.fsyncs - other.fsyncs,
        )

    def each(self, sagas: int) -> dict[str, float]:
        """Return the counts for one saga."""
        return {
            "commits_per_saga": round(self.commits / sagas, 2),
            "writing_transactions_per_saga": round(self.writing / sagas, 2),
            "fsyncs_per_saga": round(self.fsyncs / sagas, 2),
        }


def writes(places: Places, database: str) -> Writes:
    """Read the counters; a backend's are complete when it has ended."""
    with_wal = places.administrator.info.server_version >= _PG_STAT_IO_HAS_WAL
    fsyncs = (
        "SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'"
        if with_wal
        else "SELECT wal_sync FROM pg_stat_wal"
    )
    commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = %s"
    return Writes(
        float(places.ask(commits, database) or 0),
        float(places.ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")),
        float(places.ask(fsyncs) or 0),
    )
