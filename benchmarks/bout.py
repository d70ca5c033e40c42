"""One bout: a contestant is started, measured in three ways and ended.

*Live*: the workers run while the client starts one saga after the other. *Drain*: the workers are
stopped (SIGSTOP) until all sagas are started, so that the client does not limit. *Idle*: one saga
at a time, on the otherwise idle system.
"""

import signal
import time
from dataclasses import dataclass
from statistics import quantiles

from benchmarks.contestants.base import Contestant, NotMeasuredError, Running, running
from benchmarks.measure import Writes, megabytes, writes
from benchmarks.places import Places
from tests.support.waiting import eventually

STEPS = 3

Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is done in one bout."""

    sagas: int
    singles: int
    """Sagas on the idle system, one at a time."""


def bout(contestant: Contestant, places: Places, size: Size) -> Figures:
    """Return the figures of one bout."""
    with running(contestant, places) as found:
        found.start()
        figures = {"idle_memory_mb": round(megabytes(found.processes()), 1)}
        figures |= _live(found, size.sagas)
        figures |= _drain(found, size.sagas)
        figures |= _idle(found, size.singles)
    return figures


def writes_of(contestant: Contestant, places: Places, sagas: int) -> Figures:
    """Return what one saga writes: a whole run, less one of the same that does nothing.

    The counters are read when all processes have ended, because only then are they complete.
    """
    if not contestant.database:
        return {}
    used = _writes_of_run(contestant, places, sagas) - _writes_of_run(contestant, places, 0)
    return used.each(sagas)


def _live(found: Running, sagas: int) -> Figures:
    before, began = found.processor_seconds(), time.perf_counter()
    submitting = found.submit(sagas)
    _all_done(found)
    seconds = time.perf_counter() - began
    after = found.processor_seconds()
    thousands = sagas * STEPS / 1000
    used = {part: (after[part] - before[part]) / thousands for part in after}
    return {
        "sagas_per_second": round(sagas / seconds, 1),
        "steps_per_second": round(sagas * STEPS / seconds, 1),
        "starts_per_second": round(sagas / submitting, 1),
        "cpu_seconds_per_1000_steps": round(sum(used.values()), 3),
        **{f"cpu_of_{part}": round(seconds, 3) for part, seconds in used.items()},
    }


def _drain(found: Running, sagas: int) -> Figures:
    found.signal_workers(signal.SIGSTOP)
    try:
        found.submit(sagas)
        began = time.perf_counter()
    finally:
        found.signal_workers(signal.SIGCONT)
    _all_done(found)
    seconds = time.perf_counter() - began
    return {"drain_steps_per_second": round(sagas * STEPS / seconds, 1)}


def _idle(found: Running, singles: int) -> Figures:
    cuts = quantiles(found.one_by_one(singles), n=20, method="inclusive")
    return {
        "latency_p50_ms": round(cuts[9] * 1000, 1),
        "latency_p95_ms": round(cuts[18] * 1000, 1),
    }


def _all_done(found: Running) -> None:
    if not found.wait():
        raise NotMeasuredError("not all of its sagas were done in time")


def _writes_of_run(contestant: Contestant, places: Places, sagas: int) -> Writes:
    with running(contestant, places) as found:
        found.prepare()
        before = writes(places, found.database)
        found.start_up()
        if sagas:
            found.submit(sagas)
            _all_done(found)
        found.stop()
        _nobody_in(places, found.database)
        return writes(places, found.database) - before


def _nobody_in(places: Places, database: str) -> None:
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
    eventually(
        lambda: places.ask(sessions, database) == 0,
        within=30,
        describe=f"all sessions of {database} have ended",
    )
