"""Child processes: started in a group of their own, looked at, and ended for certain.

A child and whatever it forks form one process group. On Linux the child is ended with the process
that started it, even when that one is killed. Nothing is signalled but groups started here, and a
child is reaped only after its group was signalled, so that no pid can have been given away.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from types import FrameType

import psutil

from orchestration.errors import AtalaiaError

LOOK_SECONDS = 0.05
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0
SETTLED_SECONDS = 30.0
"""A child that ran that long is restarted as quickly as one that fails for the first time."""
TAIL_LINES = 20
# Below the ports that systems give to outgoing connections, which could take one at any moment.
_PORTS = range(15_000, 32_000)
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class StartError(AtalaiaError):
    """A process did not come up; the message ends with what its log says."""


class Child:
    """One process that is to run. ``ready`` tells whether it does its work; it must not block."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        ready: Callable[["Child"], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.ready = ready
        self.environment = dict(environment) if environment is not None else None
        self.process: subprocess.Popen[bytes] | None = None
        self.failures = 0
        self._log_start = 0
        self._started = 0.0
        self._again = 0.0

    @property
    def pid(self) -> int | None:
        """The pid of the process as last started."""
        return self.process.pid if self.process else None

    def start(self) -> None:
        """Start the process; what it prints goes to the end of its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Whoever starts children has one thread.
                preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509
            )
        self._started = time.monotonic()

    def runs(self) -> bool:
        """Tell whether the process runs; one that is dead but not yet reaped does not."""
        if self.process is None:
            return False
        try:
            return psutil.Process(self.process.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def signal(self, number: int) -> None:
        """Send a signal to the process itself."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def bury(self) -> int | None:
        """Kill what is left of the group, reap the process and return its exit status."""
        if self.process is None:
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        self.process = None
        return status

    def said(self) -> str:
        """Return what the process as last started has written to its log."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def tail(self) -> str:
        """Return the last lines of that."""
        lines = self.said().rstrip().splitlines()[-TAIL_LINES:]
        return "\n".join(lines) or "(it has written nothing)"

    def failed(self, why: str) -> StartError:
        """Return the error that says that this child did not come up."""
        return StartError(f"{self.name} {why}; the end of {self.log}:\n{self.tail()}")

    def tend(self) -> str | None:
        """Restart the process if it has died and its pause is over; return a line if so."""
        now = time.monotonic()
        if self.process is not None and not self.runs():
            self.failures = 0 if now - self._started > SETTLED_SECONDS else self.failures
            self._again = now + min(FIRST_PAUSE_SECONDS * 2**self.failures, LONGEST_PAUSE_SECONDS)
            self.failures += 1
            return f"{self.name} has ended ({ended_by(self.bury())})"
        if self.process is None and now >= self._again:
            self.start()
            return f"{self.name} was started again (pid {self.pid})"
        return None


def ended_by(status: int | None) -> str:
    """Say an exit status in words."""
    if status is not None and status < 0:
        return signal.Signals(-status).name
    return f"exit status {status}"


def wait_until_ready(
    children: Iterable[Child], within: float, check: Callable[[], None] = lambda: None
) -> None:
    """Wait for all children; raise ``StartError`` for the first that ends or takes too long.

    ``check`` is called with every look, and may raise.
    """
    waiting = list(children)
    deadline = time.monotonic() + within
    while waiting:
        check()
        for child in list(waiting):
            if not child.runs():
                raise child.failed(f"did not start ({ended_by(child.bury())})")
            if child.ready(child):
                waiting.remove(child)
        if waiting and time.monotonic() > deadline:
            raise waiting[0].failed(f"was not ready within {within:g} s")
        time.sleep(LOOK_SECONDS)


def stop(children: Iterable[Child], deadline: float) -> None:
    """Ask children to end, wait until ``deadline`` (monotonic seconds), then end them."""
    children = [child for child in children if child.process is not None]
    try:
        for child in children:
            child.signal(signal.SIGTERM)
        while any(child.runs() for child in children) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
    finally:
        for child in children:
            child.bury()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program as tidily as Ctrl-C does, with status 128 + number."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(128 + number)

    with ExitStack() as before:
        for number in (signal.SIGTERM, signal.SIGHUP):
            before.callback(signal.signal, number, signal.signal(number, end))
        yield


def die_with(parent: int) -> None:
    """Run in the child: lead a group of its own, and ask to be ended with the parent.

    Ctrl-C must reach the children in order, so that they can still hand back what they hold.
    """
    os.setsid()
    if _LIBC:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # It was gone before the wish was noted.
            os._exit(1)


def write_private(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner only from its first byte on."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.touch(0o600)
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def port_is_free(port: int) -> bool:
    """Tell whether nobody listens on a port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 on which nobody listens now."""
    # Nowhere in particular, so that two that ask before either has bound get different ones.
    start = time.monotonic_ns() // 1000 % len(_PORTS)
    ports = islice(cycle(_PORTS), start, start + len(_PORTS))
    found = list(islice(filter(port_is_free, ports), count))
    if len(found) < count:
        raise StartError("there are no free ports on 127.0.0.1")
    return found
