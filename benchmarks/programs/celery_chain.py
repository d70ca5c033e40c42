"""The same three steps as a Celery chain: on Redis alone, or with its results in a database."""

import os
from typing import Any

import redis
from celery import Celery, chain

from benchmarks.programs import steps
from benchmarks.programs.client import Done, Table, serve

BROKER = os.environ["BENCH_REDIS_URL"]
RESULTS = os.environ.get("BENCH_RESULTS_URL")
DONE = "bench-done"

app = Celery("chain", broker=BROKER, backend=f"db+{RESULTS}" if RESULTS else None)
app.conf.update(
    # What a careful user sets, so that a killed worker's messages are delivered again.
    task_acks_late=True, worker_prefetch_multiplier=1, task_ignore_result=not RESULTS,
    broker_transport_options={
        "visibility_timeout": 10, "unacked_restore_interval": 2, "unacked_restore_throttle": 1,
    },
    task_default_queue="chain", worker_send_task_events=False,
)  # fmt: skip
_redis = redis.Redis.from_url(BROKER)


@app.task(name="chain.step")
def step(_before: dict[str, str] | None, name: str, nap: float) -> dict[str, str]:
    """Run one step."""
    return steps.run(name, nap)


@app.task(name="chain.last")
def last(_before: dict[str, str] | None, name: str, nap: float) -> dict[str, str]:
    """Run the last step; without a result backend to ask, count the chain as done."""
    result = steps.run(name, nap)
    if not RESULTS:
        _redis.incr(DONE)
    return result


def submit(count: int, nap: float, _together: int) -> None:
    """Send chains, each when the one before is sent."""
    first, second, third = steps.NAMES
    for _ in range(count):
        chain(step.s(None, first, nap), step.s(second, nap), last.s(third, nap)).apply_async()


def count_keys() -> int:
    """Return how many last steps have counted."""
    found: Any = _redis.get(DONE)
    return int(found or 0)


def _done() -> Done:
    if not RESULTS:
        return count_keys
    backend: Any = app.backend
    backend.ResultSession().close()  # It makes the tables.
    steps_done = "SELECT count(*) / 3 FROM celery_taskmeta WHERE status = 'SUCCESS'"
    return Table(steps_done).count


if __name__ == "__main__":
    serve(submit, _done())
