"""The client that keeps fresh sagas coming: a fixed number under way, or a fixed number a second.

It is asked as any client of the benchmark. ``keep`` begins and answers at once; ``halt`` ends it
and answers when all that were started have ended. When each began and ended is in its row.
"""

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from uuid import UUID

import psycopg

from benchmarks.programs.client import LOOK_EVERY, answer

LOOK_OFTEN = 0.002
ENDED = "SELECT id FROM sagas WHERE id = ANY(%s) AND ended_at IS NOT NULL"


class Fresh:
    """Starts sagas in a thread of its own until it is told to end."""

    def __init__(self) -> None:
        from tasks.app import runtime  # noqa: PLC0415 - it reads the settings of this process

        self.scheduler = runtime().scheduler
        self.scheduler.register_definitions()
        url = os.environ["BENCH_DATABASE_URL"]
        self.looks = psycopg.connect(url, application_name="bench-look", autocommit=True)
        self.under_way: set[UUID] = set()
        self.started = 0
        self.latest = 0.0
        self.ending = Event()
        self.threads = ThreadPoolExecutor(1)
        self.load: Future[None] = Future()

    def submit(self, count: int, **_: float) -> dict[str, float]:
        """Start some sagas, one at a time; none of them naps."""
        began, used = time.perf_counter(), time.process_time()
        for _ in range(count):
            self._start()
        return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}

    def wait(self, within: float) -> dict[str, bool]:
        """Look until all that were started have ended, or for ``within`` seconds."""
        until = time.monotonic() + within
        while self.under_way and time.monotonic() < until:
            self._look()
            time.sleep(LOOK_EVERY)
        return {"all": not self.under_way}

    def keep(self, under_way: int = 0, rate: float = 0.0) -> dict[str, bool]:
        """Begin to keep so many sagas under way, or to start so many a second."""
        self.started, self.latest = 0, 0.0
        self.ending.clear()
        if rate:
            self.load = self.threads.submit(self._keep_rate, rate)
        else:
            self.load = self.threads.submit(self._keep_under_way, under_way)
        return {"begun": True}

    def halt(self, within: float) -> dict[str, float | bool]:
        """Start no more, and wait; ``latest`` is by how many seconds a start was late, at most."""
        self.ending.set()
        self.load.result()
        return {"started": self.started, "latest": self.latest, **self.wait(within)}

    def _keep_under_way(self, number: int) -> None:
        while not self.ending.wait(LOOK_OFTEN):
            self._look()
            for _ in range(number - len(self.under_way)):
                self._start()

    def _keep_rate(self, rate: float) -> None:
        began = time.monotonic()
        while not self.ending.wait(max(0.0, began + self.started / rate - time.monotonic())):
            self.latest = max(self.latest, time.monotonic() - began - self.started / rate)
            self._start()

    def _start(self) -> None:
        self.started += 1
        handle = self.scheduler.start("growth", {"fresh": self.started})
        self.under_way.add(handle.saga_id)

    def _look(self) -> None:
        found = self.looks.execute(ENDED, [list(self.under_way)])
        self.under_way -= {saga_id for (saga_id,) in found}


if __name__ == "__main__":
    answer(Fresh())
