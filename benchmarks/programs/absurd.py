"""The same three steps as an Absurd task: ``… absurd worker`` or ``… absurd client``."""

import os
import signal
import sys
from typing import Any

from absurd_sdk import Absurd

from benchmarks.programs import steps
from benchmarks.programs.client import Table, serve

app = Absurd(os.environ["BENCH_DATABASE_URL"], queue_name="bench")


@app.register_task(name="noop")
def noop(given: dict[str, float], context: Any) -> dict[str, str]:
    """Run the three steps."""
    result = {}
    for name in steps.NAMES:
        result = context.step(name, lambda name=name: steps.run(name, given["nap"]))
    return result


def submit(count: int, nap: float, _together: int) -> None:
    """Spawn tasks, each when the one before is there."""
    for _ in range(count):
        app.spawn("noop", {"nap": nap})


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        signal.signal(signal.SIGTERM, lambda *_: app.stop_worker())
        app.start_worker(claim_timeout=10, batch_size=10, poll_interval=0.05)
    else:
        serve(submit, Table("SELECT count(*) FROM absurd.t_bench WHERE state = 'completed'").count)
