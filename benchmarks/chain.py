"""Steps per second: a durable saga of three no-op steps against a plain Celery chain of the same.

Both run in one session on one machine, in turns, each on one prefork worker of two children; the
figures are medians. Usage: ``python benchmarks/chain.py [--sagas N] [--rounds R]``; the last line
is one JSON object.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import redis

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from migrations.run import upgrade  # noqa: E402
from models.states import SagaState  # noqa: E402
from orchestration import views  # noqa: E402
from orchestration.database import open_engine  # noqa: E402
from tasks.embedded import EmbeddedBroker  # noqa: E402
from tests.support.postgres import running  # noqa: E402
from tests.support.waiting import eventually  # noqa: E402

STEPS = 3
WITHIN = 600.0


@contextmanager
def worker(app: str, queue: str, log: Path, warm: Callable[[], None]) -> Iterator[None]:
    """Run one worker of two children until the end of the block; ``warm`` waits until it is up."""
    command = [sys.executable, "-m", "celery", "-A", app, "worker", "-c", "2", "-Q", queue]
    command += ["-n", f"{queue}@bench", "--without-mingle", "--without-gossip"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env=os.environ)
    try:
        warm()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def measure(submit: Callable[[], None], done: Callable[[], int], sagas: int) -> float:
    """Return steps per second from the first submission to the last end."""
    before = done()
    began = time.perf_counter()
    for _ in range(sagas):
        submit()
    eventually(lambda: done() - before >= sagas, within=WITHIN, describe="all have ended")
    return sagas * STEPS / (time.perf_counter() - began)


def main() -> int:
    """Measure, print a table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sagas", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atalaia-bench-")))
        broker = EmbeddedBroker(home / "broker")
        os.environ["BENCH_BROKER_URL"] = os.environ["ATALAIA_BROKER_URL"] = broker.start()
        stack.callback(broker.stop)
        server = stack.enter_context(running(os.environ.get("ATALAIA_TEST_POSTGRES_URL")))
        template = server.make_template(_lay)
        os.environ["ATALAIA_DATABASE_URL"] = stack.enter_context(server.database(template))
        os.environ |= {
            "ATALAIA_HOME": str(home), "PYTHONPATH": str(ROOT),
            "ATALAIA_AGENTS": "benchmarks.noop", "ATALAIA_WORKFLOWS": "benchmarks.noop",
        }  # fmt: skip
        figures = _compare(home, stack, wanted.sagas, wanted.rounds)
    chain = figures["celery_chain"]
    ratio = {name: round(rate / chain, 3) for name, rate in figures.items() if rate != chain}
    for name, rate in figures.items():
        print(f"{name:14} {rate:8.0f} steps/s")
    print(json.dumps({"steps_per_second": figures, "ratio": ratio}))
    return 0


def _compare(home: Path, stack: ExitStack, sagas: int, rounds: int) -> dict[str, float]:
    # Both read the environment when they are imported, which `main` has only now set.
    from benchmarks import plain  # noqa: PLC0415
    from tasks.app import runtime  # noqa: PLC0415

    client = redis.Redis.from_url(os.environ["BENCH_BROKER_URL"])
    parts = runtime()

    def chains_done() -> int:
        return int(client.get(plain.DONE) or 0)

    def sagas_done() -> int:
        with parts.store.reading() as connection:
            return views.count_sagas(connection).get(SagaState.COMPLETED, 0)

    def start() -> None:
        parts.scheduler.start("noop")

    def start_inline() -> None:
        parts.scheduler.start("inline")

    contestants = {
        "celery_chain": (plain.submit, chains_done),
        "atalaia": (start, sagas_done),
        "atalaia_inline": (start_inline, sagas_done),
    }
    apps = {"celery_chain": ("benchmarks.plain", "plain"), "atalaia": ("tasks.app", "noop")}
    parts.scheduler.register_definitions()
    for name, (app, queue) in apps.items():
        submit, done = contestants[name]
        log = home / f"{name}.log"

        def warm(submit: Callable[[], None] = submit, done: Callable[[], int] = done) -> None:
            submit()
            eventually(lambda: done() >= 1, within=60, describe="the worker is up")

        stack.enter_context(worker(app, queue, log, warm))
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, (submit, done) in contestants.items():
            rates[name].append(measure(submit, done, sagas))
            print(f"round {number + 1}: {name} {rates[name][-1]:.0f} steps/s", flush=True)
    return {name: round(median(found), 1) for name, found in rates.items()}


def _lay(url: str) -> None:
    engine = open_engine(url)
    upgrade(engine)
    engine.dispose()


if __name__ == "__main__":
    sys.exit(main())
