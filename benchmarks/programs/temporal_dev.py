"""The same three steps as a Temporal workflow: ``… temporal_dev worker`` or ``… client``."""

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from benchmarks.programs import steps
    from benchmarks.programs.client import serve

ADDRESS = os.environ.get("BENCH_TEMPORAL", "")
QUEUE = "bench"
_TRIES = 200


@activity.defn(name="do")
async def do(name: str, nap: float) -> dict[str, str]:
    """Run one step; a nap is slept in a thread, beside the worker's loop."""
    return await asyncio.to_thread(steps.run, name, nap) if nap else steps.run(name)


@workflow.defn(name="noop")
class Noop:
    """The three steps."""

    @workflow.run
    async def run(self, nap: float) -> dict[str, str]:
        """Run them in a row."""
        result: dict[str, str] = {}
        for name in steps.NAMES:
            result = await workflow.execute_activity(
                do, args=[name, nap], start_to_close_timeout=timedelta(seconds=10)
            )
        return result


async def connected() -> Client:
    """Return a client of the server, which may be starting still."""
    for _ in range(_TRIES):
        with suppress(RuntimeError):
            return await Client.connect(ADDRESS)
        await asyncio.sleep(0.1)
    return await Client.connect(ADDRESS)


async def work() -> None:
    """Take tasks until SIGTERM."""
    client = await connected()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with Worker(client, task_queue=QUEUE, workflows=[Noop], activities=[do]):
        await ended.wait()


class Starter:
    """Starts workflows in a loop of its own, and counts those whose result has come."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._client = self._run(connected())
        self._done = 0
        self._watched: set[asyncio.Task[None]] = set()

    def _run(self, waited):  # noqa: ANN001, ANN202
        return asyncio.run_coroutine_threadsafe(waited, self._loop).result()

    def submit(self, count: int, nap: float, _together: int) -> None:
        """Start workflows, each when the one before is accepted."""
        self._run(self._start(count, nap))

    def done(self) -> int:
        """Return how many results have come."""
        return self._done

    async def _start(self, count: int, nap: float) -> None:
        for _ in range(count):
            handle = await self._client.start_workflow(
                "noop", nap, id=str(uuid4()), task_queue=QUEUE
            )
            watch = asyncio.create_task(self._watch(handle))
            self._watched.add(watch)
            watch.add_done_callback(self._watched.discard)

    async def _watch(self, handle: WorkflowHandle) -> None:
        await handle.result()
        self._done += 1


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        asyncio.run(work())
    else:
        starter = Starter()
        serve(starter.submit, starter.done)
