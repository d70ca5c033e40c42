"""The same three steps as a DBOS workflow, taken from a queue by two worker processes.

``python -m benchmarks.programs.dbos_queue worker 1`` or ``… client``.
"""

import os
import signal
import sys

from dbos import DBOS, DBOSClient, DBOSConfig

from benchmarks.programs import steps
from benchmarks.programs.client import Table, serve

URL = os.environ["BENCH_DATABASE_URL"]
QUEUE = "bench"


@DBOS.step()
def do(name: str, nap: float) -> dict[str, str]:
    """Run one step."""
    return steps.run(name, nap)


@DBOS.workflow(name="noop")
def noop(nap: float) -> dict[str, str]:
    """Run the three steps."""
    result = {}
    for name in steps.NAMES:
        result = do(name, nap)
    return result


def work(number: str) -> None:
    """Take workflows from the queue until SIGTERM; ``lay`` only makes the tables and the queue."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": URL,
        "executor_id": f"worker-{number}",
        "application_version": "1",
        "log_level": "WARNING",
    }
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=20, polling_interval_sec=0.05)
    if number != "lay":
        signal.sigwait({signal.SIGTERM})
    DBOS.destroy()


def talk() -> None:
    """Be the client."""
    client = DBOSClient(system_database_url=URL)

    def submit(count: int, nap: float, _together: int) -> None:
        for _ in range(count):
            client.enqueue({"workflow_name": "noop", "queue_name": QUEUE, "app_version": "1"}, nap)

    serve(submit, Table("SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'").count)


if __name__ == "__main__":
    if sys.argv[1] == "lay":
        work("lay")  # The client expects the tables to be there.
    elif sys.argv[1] == "worker":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        work(sys.argv[2])
    else:
        talk()
