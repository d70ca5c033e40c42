"""The client process of a contestant: it starts sagas, and looks until they are done.

It is asked by lines of JSON on its standard input and answers each with one line. A contestant's
program gives it two functions: ``submit(count, nap, together)`` starts sagas one after the other
and returns when the last one is accepted, ``done()`` returns how many have ended well so far.

Only the standard library and psycopg: peers run in an environment of their own.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

LOOK_EVERY = 0.01
LOOK_CLOSELY = 0.001

Submit = Callable[[int, float, int], None]
Done = Callable[[], int]


class Table:
    """Counts by one query, in one transaction that stays open, so that looking commits nothing."""

    def __init__(self, query: str) -> None:
        import psycopg  # noqa: PLC0415 - contestants without a database need none

        url = os.environ["BENCH_DATABASE_URL"]
        self._connection = psycopg.connect(url, application_name="bench-look")
        self._query = query

    def count(self) -> int:
        """Return the number that the query gives now."""
        row = self._connection.execute(self._query).fetchone()
        return int(row[0]) if row else 0


class Client:
    """Answers the benchmark's questions about one contestant."""

    def __init__(self, submit: Submit, done: Done) -> None:
        self._submit = submit
        self._done = done
        self._submitted = 0

    def submit(self, count: int, nap: float = 0.0, together: int = 1) -> dict[str, float]:
        """Start sagas; return the seconds and the processor seconds of this process."""
        began, used = time.perf_counter(), time.process_time()
        self._submit(count, nap, together)
        self._submitted += count
        return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}

    def wait(self, within: float, every: float = LOOK_EVERY) -> dict[str, float | bool]:
        """Look until all that were started are done, or for ``within`` seconds."""
        began = time.perf_counter()
        while (done := self._done()) < self._submitted:
            if time.perf_counter() - began > within:
                break
            time.sleep(every)
        return {"seconds": time.perf_counter() - began, "all": done >= self._submitted}

    def one_by_one(self, count: int, within: float) -> dict[str, list[float]]:
        """Start one saga at a time, each when the one before is done; return their seconds."""
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            self.submit(1)
            self.wait(within, LOOK_CLOSELY)
            taken.append(time.perf_counter() - began)
        return {"seconds": taken}


def serve(submit: Submit, done: Done) -> None:
    """Answer about one contestant until the standard input ends."""
    answer(Client(submit, done))


def answer(client: Any) -> None:
    """Have a client answer until the standard input ends; a question is the name of a method."""
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        told = getattr(client, asked.pop("ask"))(**asked)
        print(json.dumps(told), flush=True)
