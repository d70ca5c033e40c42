"""Measure what a step costs each resource.

Counts and processor seconds are measured, which a busy machine changes little; wall times are not.

Usage: ``python -m benchmarks.costs [--sagas N] [--json FILE]``: about two minutes. PostgreSQL and
Redis are started for the run, so that all that their servers count is Atalaia's. What passes while
nothing is started is taken off. ``benchmarks.scaling`` reckons with ``benchmarks/costs.json``.
Where FILE has an earlier run, the lesser processor times are kept: what disturbs only adds to them.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg

from benchmarks.bout import STEPS, writes_of
from benchmarks.contestants.atalaia import INLINE, PREFORK
from benchmarks.contestants.base import Contestant, NotMeasuredError, Running, running
from benchmarks.measure import megabytes, processor_seconds, server_seconds, with_children
from benchmarks.places import Places, open_places, plain
from models.states import StepState
from orchestration import due
from orchestration.database import open_engine
from orchestration.ports import SilentDispatcher
from orchestration.registry import registry
from orchestration.scheduler import Scheduler
from orchestration.store import Store
from orchestration.supervisor import Supervisor

KEPT = Path(__file__).with_name("costs.json")
TABLES = ("sagas", "steps", "attempts", "journal")
PROCESSORS = ("workers", "client", "postgresql", "redis", "rabbitmq")
LIVE = 2_000
"""So many sagas are under way when a sweep that finds nothing is measured."""
TOGETHER = 50
"""So many sagas are under way at once: none waits so long that its message is sent again."""
SWEEPS = 50
DUE = 600
"""So many rows are due when sweeps that act are measured."""

Figures = dict[str, float]


@dataclass(frozen=True)
class Counters:
    """What has been used so far; differences of two are what a stretch of time has used."""

    workers: float
    """Processor seconds of the workers, the supervisor's worker and beat."""
    client: float
    postgresql: float
    """Processor seconds of the whole server, those that have ended included."""
    redis: float
    commands: float
    redis_bytes: float
    wal_bytes: float

    def less(self, other: "Counters", times: float = 1.0) -> "Counters":
        """Return what remains when so many times ``other`` is taken off."""
        mine, theirs = vars(self), vars(other)
        return Counters(**{name: mine[name] - times * theirs[name] for name in mine})


def counters(found: Running) -> Counters:
    """Read all counters of a running contestant and of its servers."""
    places = found.places
    stats: Any = places.redis.info("all")
    asked = sum(value["calls"] for name, value in stats.items() if name.startswith("cmdstat_"))
    return Counters(
        workers=processor_seconds(found.processes()),
        client=found.client_seconds,
        postgresql=server_seconds(places) - _looking(places, found.database),
        redis=stats["used_cpu_user"] + stats["used_cpu_sys"],
        commands=asked,
        redis_bytes=stats["total_net_input_bytes"] + stats["total_net_output_bytes"],
        wal_bytes=float(places.ask("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")),
    )


def _looking(places: Places, database: str) -> float:
    """Return what the backend has used through which the client looks whether all is done."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name = 'bench-look'"
    )
    return processor_seconds([psutil.Process(places.ask(query, database))])


def costs_of(contestant: Contestant, places: Places, sagas: int, idle: float) -> dict[str, Any]:
    """Return what a saga of three steps costs, and what a second costs in which none is started."""
    with running(contestant, places) as found:
        found.start()
        began, first = time.monotonic(), counters(found)
        time.sleep(idle)
        waited, before = time.monotonic() - began, counters(found)
        sizes = _sizes(found)
        lasted, after = _run_all(found, sagas), counters(found)
        resting = before.less(first)
        used = after.less(before).less(resting, lasted / waited)
        grown = {name: size - sizes[name] for name, size in _sizes(found).items()}
        connections, memory = _backends(places, found.database)
        found.stop()  # Its client reads in a transaction that stays open.
        compact = _compact(found)
    return {
        "for_each_saga": {name: value / sagas for name, value in vars(used).items()},
        "for_each_idle_second": {name: value / waited for name, value in vars(resting).items()},
        "bytes_for_each_saga": {name: size / sagas for name, size in grown.items()},
        "compact_bytes_for_each_saga": compact,
        "connections": connections,
        "backend_megabytes": memory,
    }


def _run_all(found: Running, sagas: int) -> float:
    """Run sagas, not too many at once; return the seconds that it took."""
    began = time.monotonic()
    for _ in range(sagas // TOGETHER):
        found.submit(TOGETHER)
        if not found.wait():
            raise NotMeasuredError("not all of its sagas were done in time")
    return time.monotonic() - began


def _sizes(found: Running) -> dict[str, int]:
    """Return the bytes of each table with its indexes and its long values."""
    with psycopg.connect(found.environment["BENCH_DATABASE_URL"]) as connection:
        asked = ((name, connection.execute(_SIZE, [name]).fetchone()) for name in TABLES)
        return {name: row[0] if row else 0 for name, row in asked}


_SIZE = "SELECT pg_total_relation_size(%s::regclass)"


def _compact(found: Running) -> Figures:
    """Return the same for each saga, once nothing is left in them but the rows."""
    with psycopg.connect(found.environment["BENCH_DATABASE_URL"], autocommit=True) as connection:
        for name in TABLES:
            connection.execute(f"VACUUM FULL {name}")
        row = connection.execute("SELECT count(*) FROM sagas").fetchone()
    assert row is not None
    return {name: size / row[0] for name, size in _sizes(found).items()}


def _backends(places: Places, database: str) -> tuple[int, float]:
    """Return how many sessions the database has, and the memory of each in MiB."""
    backends = with_children(places.ask(_SESSIONS, database))
    return len(backends), megabytes(backends) / len(backends)


_SESSIONS = """
    SELECT array_agg(pid) FROM pg_stat_activity
    WHERE datname = %s AND backend_type = 'client backend' AND application_name <> 'bench-look'
"""


def rabbitmq_costs(places: Places, url: str, sagas: int, idle: float) -> Figures:
    """Return the processor seconds of RabbitMQ for each saga; others may use the server, too."""
    shape = replace(PREFORK, environment=PREFORK.environment | {"ATALAIA_BROKER_URL": url})
    with running(shape, places) as found:
        found.start()
        began, first = time.monotonic(), _rabbitmq_seconds()
        time.sleep(idle)
        waited, before = time.monotonic() - began, _rabbitmq_seconds()
        lasted = _run_all(found, sagas)
        used = _rabbitmq_seconds() - before - (before - first) * lasted / waited
    return {"rabbitmq": used / sagas}


def _rabbitmq_seconds() -> float:
    named = (one for one in psutil.process_iter(["name"]) if one.info["name"].startswith("beam"))
    return processor_seconds(named)


# --- sweeps --------------------------------------------------------------------------------------


def sweep_costs(places: Places) -> Figures:
    """Return the processor milliseconds of a sweep, and of each row that one acts on.

    Those of the sweeping process and of its backend are apart.
    """
    told: Figures = {}
    with _supervisor(places) as (supervisor, connection):
        backend = psutil.Process(supervisor.backend)

        def measure(name: str, act: Callable[[], int]) -> None:
            theirs, mine = processor_seconds([backend]), time.process_time()
            number = act()
            told[f"{name}_process_ms"] = (time.process_time() - mine) * 1000 / number
            told[f"{name}_postgresql_ms"] = (processor_seconds([backend]) - theirs) * 1000 / number

        measure("quiet", supervisor.sweep_in_vain)
        for _ in range(LIVE):
            supervisor.scheduler.start("noop")
        connection.execute("UPDATE steps SET wake_at = 'infinity' WHERE wake_at IS NOT NULL")
        connection.execute("ANALYZE")
        measure(f"quiet_with_{LIVE}_live", supervisor.sweep_in_vain)
        for name, state in (("retry", StepState.RETRYING), ("undelivered", StepState.DISPATCHED)):
            connection.execute(_MAKE_DUE, [state, DUE])
            measure(f"{name}_row", lambda: supervisor.sweep_until(DUE))
        for statement in _END_ALL:
            connection.execute(statement)
        measure("purged_saga", supervisor.purge)
    return told


_MAKE_DUE = """
    UPDATE steps SET state = %s, wake_at = clock_timestamp() - interval '1 second'
    WHERE (saga_id, path) IN
        (SELECT saga_id, path FROM steps WHERE wake_at = 'infinity' LIMIT %s)
"""


_END_ALL = (
    "UPDATE steps SET state = 'succeeded', wake_at = NULL, settled_at = '2000-01-01'",
    "UPDATE sagas SET state = 'completed', wake_at = NULL, ended_at = '2000-01-01'",
    """
    INSERT INTO attempts
        (saga_id, path, no, direction, incarnation, state, node, pid, granted_at, ended_at)
    SELECT saga_id, path, 1, direction, 0, 'succeeded', 'one', 1, '2000-01-01', '2000-01-01'
    FROM steps
    """,
    "ANALYZE",
)


class _Sweeping(Supervisor):
    """A supervisor of the steps that do nothing, on one connection, which rings for nobody."""

    def __init__(self, store: Store) -> None:
        super().__init__(Scheduler(store, SilentDispatcher(), registry), SilentDispatcher())
        self.scheduler.register_definitions()
        with store.transaction() as connection:
            driver: Any = connection.connection.dbapi_connection
            self.backend: int = driver.info.backend_pid

    def sweep_in_vain(self) -> int:
        """Sweep some times, each time as if the first batch of the live sagas came next."""
        for _ in range(SWEEPS):
            self._looked_until = due.FIRST
            self.sweep()
        return SWEEPS

    def sweep_until(self, number: int) -> int:
        """Sweep until so many rows were acted on; return how many were."""
        done = 0
        while done < number:
            done += self.sweep().counts.total()
        return done

    def purge(self) -> int:
        """Delete what has ended, as the sweeps do; return how many sagas."""
        self.keep_ended = timedelta(days=30)
        done = 0
        while purged := self.sweep_past_retention():
            done += purged
        return done


@contextmanager
def _supervisor(places: Places) -> Iterator[tuple[_Sweeping, "psycopg.Connection[Any]"]]:
    from benchmarks.programs.atalaia import noop  # noqa: PLC0415 - it declares agents, too

    registry.add_workflow(noop)
    with (
        places.database(laid=True) as url,
        psycopg.connect(plain(url), autocommit=True) as connection,
    ):
        engine = open_engine(url)
        try:
            yield _Sweeping(Store(engine)), connection
        finally:
            engine.dispose()


# --- telling -------------------------------------------------------------------------------------


def main() -> int:
    """Measure and tell."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What was started is ended then, too.
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sagas", type=int, default=1000, help="sagas that are counted")
    parser.add_argument("--idle", type=float, default=15.0, help="seconds in which none is started")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="keep the figures")
    wanted = parser.parse_args()
    os.environ.pop("ATALAIA_TEST_POSTGRES_URL", None)
    found: dict[str, Any] = {"sagas": wanted.sagas, "steps": STEPS}
    for name, contestant in (("messages", PREFORK), ("inline", INLINE)):
        with open_places(None) as places:  # A server of its own, in which no room is left to reuse.
            found[name] = costs_of(contestant, places, wanted.sagas, wanted.idle)
            found[name]["for_each_saga"] |= writes_of(contestant, places, 3 * TOGETHER)
    with open_places(None) as places:
        found["conditions"] = places.conditions()
        if url := os.environ.get("ATALAIA_TEST_RABBITMQ_URL"):
            found["broker"] = rabbitmq_costs(places, url, wanted.sagas, wanted.idle)
        found["sweep"] = sweep_costs(places)
    if wanted.json and wanted.json.exists():
        found = least(json.loads(wanted.json.read_text()), found)
    told = json.dumps(rounded(found), indent=2) + "\n"
    if wanted.json:
        wanted.json.write_text(told)
    print(told, end="")
    return 0


def least(before: Any, now: Any, name: str = "") -> Any:
    """Return what was measured now, with the lesser of the processor's times of two runs."""
    if isinstance(now, dict) and isinstance(before, dict):
        return {key: least(before.get(key), one, key) for key, one in now.items()}
    times = name in PROCESSORS or name.endswith(("process_ms", "postgresql_ms"))
    return min(before, now) if times and before is not None else now


def rounded(value: Any) -> Any:
    """Return the figures with four digits that count."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
