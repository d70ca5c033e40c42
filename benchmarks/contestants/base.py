"""What a contestant is, and one of them while it runs.

A contestant says where it can run, what its servers, workers and client are called with, and which
services it needs. ``Running`` starts, asks, stops and kills the processes, the same for all.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import make_url

from benchmarks.measure import backends_seconds, processor_seconds, redis_seconds, with_children
from benchmarks.places import PEERS, ROOT, Places, plain
from tasks.processes import free_ports

Command = list[str]
PATIENCE = 300.0
_UP_WITHIN = 60.0
# Enough for each worker process to have opened its connections and filled its caches.
_WARM = 20


class NotMeasuredError(Exception):
    """A contestant cannot be measured here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One way to run three no-op steps."""

    name: str
    about: str
    """What runs, in the words of the table."""
    workers: Sequence[Command]
    client: Command
    environment: dict[str, str] = field(default_factory=dict)
    database: bool = True
    laid: bool = False
    """Whether its database has Atalaia's tables; otherwise it makes its own."""
    redis: bool = False
    peer: bool = False
    """Whether it runs in the environment of the peers."""
    preparations: Sequence[Command] = ()
    """What is run to the end before the servers and workers are started."""
    servers: Sequence[Command] = ()
    """What runs beside the workers and belongs to it; it is not killed when they are."""
    together: int = 1
    """How many sagas its client starts in one transaction."""

    def python(self) -> str:
        """Return the interpreter of its programs."""
        return str(PEERS / "python") if self.peer else sys.executable

    def why_not(self) -> str | None:
        """Return why it cannot be measured here, or nothing."""
        if not self.peer or (PEERS / "python").exists():
            return None
        tried = PEERS.with_name("install.log")
        if tried.exists():
            return f"its packages could not be installed: {_last_line(tried)}"
        return "its packages are not in .venv-bench, where `make bench` installs them"


class Running:
    """A contestant with its processes, on a database and a Redis of its own."""

    def __init__(self, contestant: Contestant, places: Places, url: str) -> None:
        self.contestant = contestant
        self.places = places
        self.database = make_url(url).database or ""
        self.runs = places.home / "runs"
        self.log = places.home / f"{contestant.name}.log"
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "BENCH_DATABASE_URL": plain(url),
            "BENCH_REDIS_URL": places.redis_url,
            "BENCH_RUNS": str(self.runs),
        }
        self._fill = {
            "{python}": contestant.python(),
            "{url}": url,
            "{plain}": plain(url),
            "{redis}": places.redis_url,
            "{home}": str(places.home),
            "{fresh}": tempfile.mkdtemp(dir=places.home),
            "{port}": str(free_ports(1)[0]),
        }
        # What is installed was compiled once; so is what runs from here.
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for name, value in contestant.environment.items():
            self.environment[name] = self._filled(value)
        self._servers: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._client: subprocess.Popen[bytes] | None = None
        self.client_seconds = 0.0

    # --- starting and ending -------------------------------------------------------------------

    def prepare(self) -> None:
        """Run what has to be done once, and start what runs beside the workers."""
        self.log.unlink(missing_ok=True)
        self.runs.unlink(missing_ok=True)
        for command in self.contestant.preparations:
            with self.log.open("ab") as log:
                done = subprocess.run(
                    self._called(command), env=self.environment, stdout=log, stderr=log,
                    cwd=ROOT, check=False,
                )  # fmt: skip
            if done.returncode:
                raise NotMeasuredError(f"`{command[-1]}` failed: {self._tail()}")
        self._servers = [self._spawn(command) for command in self.contestant.servers]

    def start_workers(self) -> None:
        """Start the workers; nobody waits until they are up."""
        self._workers = [self._spawn(command) for command in self.contestant.workers]

    def start(self) -> None:
        """Prepare and start everything, and wait until it has done some first sagas."""
        self.prepare()
        self.start_up()

    def start_up(self) -> None:
        """Start the workers and the client, and wait until some first sagas are done."""
        self.start_workers()
        self._client = self._spawn(self.contestant.client, talks=True)
        self.submit(_WARM)
        if not self.wait(_UP_WITHIN):
            raise NotMeasuredError(f"it was not up within {_UP_WITHIN:.0f} s: {self._tail()}")

    def signal_workers(self, number: signal.Signals) -> None:
        """Signal the workers and whatever they have started."""
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, number)

    def kill_workers(self) -> None:
        """SIGKILL all workers at once, and wait until they are gone."""
        self.signal_workers(signal.SIGKILL)
        for worker in self._workers:
            worker.wait()

    def stop(self) -> None:
        """Kill everything; what a contestant would do at its end is no part of the comparison."""
        for process in (self._client, *self._workers, *self._servers):
            if process is None:
                continue
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
        self._client, self._workers, self._servers = None, [], []

    # --- asking the client -----------------------------------------------------------------------

    def submit(self, count: int, nap: float = 0.0) -> float:
        """Start sagas; return the seconds until the last one was accepted."""
        together = self.contestant.together
        answer = self.ask("submit", count=count, nap=nap, together=together)
        self.client_seconds += answer["cpu"]
        seconds: float = answer["seconds"]
        return seconds

    def wait(self, within: float = PATIENCE) -> bool:
        """Wait until all sagas are done; tell whether they are."""
        return bool(self.ask("wait", within=within)["all"])

    def one_by_one(self, count: int) -> list[float]:
        """Return the seconds of single sagas on the idle system."""
        seconds: list[float] = self.ask("one_by_one", count=count, within=PATIENCE)["seconds"]
        return seconds

    def ask(self, question: str, **values: object) -> Any:
        """Ask the client, which answers when it is done with it."""
        client = self._client
        assert client is not None
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            client.stdin.write(json.dumps({"ask": question, **values}).encode() + b"\n")
            client.stdin.flush()
        except BrokenPipeError:
            raise NotMeasuredError(f"its client has ended: {self._tail()}") from None
        if not select.select([client.stdout], [], [], 2 * PATIENCE)[0]:
            raise NotMeasuredError(f"its client does not answer: {self._tail()}")
        if not (line := client.stdout.readline()):
            raise NotMeasuredError(f"its client has ended: {self._tail()}")
        return json.loads(line)

    # --- looking at it ---------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """Return the workers and what runs beside them, with all their children."""
        return with_children(process.pid for process in (*self._workers, *self._servers))

    def beside(self) -> list[psutil.Process]:
        """Return what runs beside the workers, with all its children."""
        return with_children(process.pid for process in self._servers)

    def processor_seconds(self) -> dict[str, float]:
        """Return what the parts of the contestant have used so far."""
        used = {"workers": processor_seconds(self.processes()), "client": self.client_seconds}
        if self.contestant.database:
            used["postgresql"] = backends_seconds(self.places, self.database)
        if self.contestant.redis:
            used["redis"] = redis_seconds(self.places)
        return used

    # --- processes -------------------------------------------------------------------------------

    def _filled(self, word: str) -> str:
        for name, value in self._fill.items():
            word = word.replace(name, value)
        return word

    def _called(self, command: Command) -> Command:
        return [self._filled(word) for word in command]

    def _spawn(self, command: Command, *, talks: bool = False) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._called(command),
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else log,
                stderr=log,
                start_new_session=True,
            )

    def _tail(self) -> str:
        return _last_line(self.log)


@contextmanager
def running(contestant: Contestant, places: Places) -> Iterator[Running]:
    """Yield a contestant on a fresh database and an empty Redis; end all of it afterwards."""
    if why := contestant.why_not():
        raise NotMeasuredError(why)
    with ExitStack() as stack:
        places.redis.flushdb()
        url = stack.enter_context(places.database(laid=contestant.laid))
        found = Running(contestant, places, url)
        stack.callback(found.stop)
        yield found


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][-300:] if lines else "it has written no log"


def module(name: str, *words: str) -> Command:
    """Return the command of one of the programs beside this package."""
    return ["{python}", "-m", f"benchmarks.programs.{name}", *words]
