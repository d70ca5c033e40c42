"""Recovery: all workers are killed 0.4 s into a second step of 1 s, and started again at once."""

import time

from benchmarks.contestants.base import Contestant, running
from benchmarks.places import Places
from tests.support.waiting import eventually

NAP = 1.0
INTO = 0.4


def recovery(contestant: Contestant, places: Places, within: float) -> dict[str, float | None]:
    """Return the seconds from the kill until the saga was done, and how often the step ran.

    The seconds are missing where it was not done ``within`` that many.
    """
    with running(contestant, places) as found:
        found.start()
        found.submit(1, nap=NAP)
        eventually(found.runs.exists, within=60, describe="the second step has begun")
        time.sleep(INTO)
        found.kill_workers()
        killed = time.perf_counter()
        found.start_workers()
        done = found.wait(within)
        seconds = time.perf_counter() - killed
        times = len(found.runs.read_text().splitlines())
    return {"kill_to_done_s": round(seconds, 1) if done else None, "step_ran": times}
