"""What goes wrong in the demo, on purpose and at known moments.

An agent is killed at the worst instant there is: its partner has done what was asked and holds
the reply back, so the effect exists and nobody here knows. Which process to kill is read from the
attempt that holds the lease, and only a process of our own workers is ever killed.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil

from examples.travel.fleet import Fleet
from tasks.processes import Child
from tasks.stack import Stack

HOLD = {"hold": 30}
AGENTS = {"flights": 1, "hotels": 2}
"""The partners whose callers are killed, and how many of them."""
WITH_WORKER = "payments"
"""The partner whose caller is killed together with its whole worker."""
SWITCHES: dict[str, dict[str, Any]] = {
    "flights": {"hold": HOLD | {"count": AGENTS["flights"]}, "lost_reply": {"count": 4}},
    "hotels": {"hold": HOLD | {"count": AGENTS["hotels"]}, "cached_500": {"count": 2}},
    "cars": {"throttle_429": {"count": 6, "retry_after": 0.5}},
    "payments": {"hold": HOLD | {"count": 1}, "sold_out": {"count": 1}},
    "mail": {"lost_reply": {"count": 3}, "in_flight_409": {"count": 2}},
}
OUTAGE = "cars"
OUTAGE_FROM = timedelta(seconds=2)
OUTAGE_FOR = timedelta(seconds=3)


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One attempt whose process was killed between the partner's effect and its record here."""

    saga: str
    step: str
    attempt: int
    pid: int
    at: datetime
    partner: str
    with_worker: str | None = None


class Trouble:
    """Makes the trouble, one look at a time; ``show`` returns a saga as the web app shows it."""

    def __init__(self, fleet: Fleet, stack: Stack, show: Callable[[str], dict[str, Any]]) -> None:
        self.fleet = fleet
        self.stack = stack
        self.show = show
        self.kills: list[Kill] = []
        self.killed_pids: set[int] = set()
        self.killed = {"agents": 0, "workers": 0, "supervisors": 0}
        self._seen: set[str] = set()
        self._outage = self._have_an_outage()

    def begin(self) -> None:
        """Set the partners' switches."""
        for name, faults in SWITCHES.items():
            self.fleet.switch(name, faults)

    def end(self) -> None:
        """Let every partner behave."""
        for name in SWITCHES:
            self.fleet.switch(name, {})

    def look(self) -> Iterator[str]:
        """Do what is due now; yield a line for each thing done."""
        for partner in (*AGENTS, WITH_WORKER):
            for held in self.fleet.holds(partner):
                if held["key"] not in self._seen and (line := self._kill(partner, held)):
                    self._seen.add(held["key"])
                    yield line
        if line := next(self._outage, None):
            yield line

    def _have_an_outage(self) -> Iterator[str | None]:
        start = time.monotonic() + OUTAGE_FROM.total_seconds()
        while time.monotonic() < start:
            yield None
        self.fleet.switch(OUTAGE, {"down": {"mode": "503"}})
        yield f"partner {OUTAGE} is out of service"
        end = time.monotonic() + OUTAGE_FOR.total_seconds()
        while time.monotonic() < end:
            yield None
        self.fleet.switch(OUTAGE, {})
        yield f"partner {OUTAGE} is back"

    def _kill(self, partner: str, held: dict[str, str]) -> str | None:
        """Kill the process that waits for a held reply, if it can be told for certain."""
        attempt = self._open_attempt(held["saga"], held["step"])
        worker = self._worker_of(attempt["pid"]) if attempt else None
        if attempt is None or worker is None or worker.pid is None:
            return None
        whole = partner == WITH_WORKER
        kill = Kill(
            saga=held["saga"],
            step=held["step"],
            attempt=attempt["no"],
            pid=attempt["pid"],
            at=datetime.now(UTC),
            partner=partner,
            with_worker=worker.name if whole else None,
        )
        self.kills.append(kill)
        self.killed["agents"] += 1
        if whole:
            self._kill_worker_and_supervisor(worker.pid)
            return f"killed {worker.name} and the supervisor, with its beat, when {_said(kill)}"
        self.killed_pids.add(kill.pid)
        os.kill(kill.pid, signal.SIGKILL)
        return f"killed agent {kill.pid} when {_said(kill)}"

    def _kill_worker_and_supervisor(self, pid: int) -> None:
        """Kill a worker with all its processes, as if its machine had gone, and who sweeps."""
        self.killed_pids |= {child.pid for child in psutil.Process(pid).children()}
        os.killpg(pid, signal.SIGKILL)
        self.stack.supervisor.signal(signal.SIGKILL)
        self.killed["workers"] += 1
        self.killed["supervisors"] += 1

    def _open_attempt(self, saga: str, step: str) -> dict[str, Any] | None:
        for attempt in self.show(saga)["attempts"]:
            if attempt["path"] == step and attempt["state"] == "open":
                found: dict[str, Any] = attempt
                return found
        return None

    def _worker_of(self, pid: int) -> Child | None:
        """Return the worker of ours whose process this is."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid).ppid()
            return next((w for w in self.stack.workers if w.runs() and w.pid == parent), None)
        return None


def _said(kill: Kill) -> str:
    return (
        f"{kill.partner} had acted and nothing was recorded: step {kill.step}, "
        f"attempt {kill.attempt}, saga {kill.saga}"
    )
