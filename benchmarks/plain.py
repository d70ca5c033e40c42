"""The same three steps as a plain Celery chain: nothing is durable, nothing is fenced."""

import os

import redis
from celery import Celery, chain

BROKER = os.environ["BENCH_BROKER_URL"]
DONE = "bench-done"

app = Celery("plain", broker=BROKER)
app.conf.update(
    task_ignore_result=True, task_acks_late=True, worker_prefetch_multiplier=1,
    task_default_queue="plain", worker_send_task_events=False,
)  # fmt: skip
_redis = redis.Redis.from_url(BROKER)


@app.task(name="plain.step")
def step(_before: dict[str, str] | None, name: str) -> dict[str, str]:
    """Return a small result at once."""
    return {"step": name}


@app.task(name="plain.last")
def last(_before: dict[str, str] | None, name: str) -> dict[str, str]:
    """Count the chain as done, since there is no result backend to ask."""
    _redis.incr(DONE)
    return {"step": name}


def submit() -> None:
    """Send one chain."""
    chain(step.s(None, "first"), step.s("second"), last.s("third")).apply_async()
