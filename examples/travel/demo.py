"""The demo: `python -m examples.travel.demo`.

Forty trips are booked with five partners through real worker processes, on the embedded stack.
Meanwhile some partners sell out, lose replies, throttle or go out of service, and agents are
killed between their partner's effect and its record here. At the end the partners' own books are
compared with how the sagas ended; the exit status is 1 if they disagree or nothing was rescued.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from examples.travel.board import Board
from examples.travel.books import COMPLETED, Reconciliation, reconcile
from examples.travel.fleet import Fleet
from examples.travel.trouble import Kill, Trouble
from orchestration.errors import AtalaiaError
from orchestration.settings import Settings
from tasks.processes import ended_by_signals
from tasks.stack import Stack

DESTINATIONS = ("LIS", "ROM", "BER", "PRG", "VIE", "OSL", "ATH", "DUB")
FEW_ROOMS, FEW_CARS = "ROM", "BER"
FEWEST_TRIPS = len(DESTINATIONS)
ENDED = frozenset({"completed", "compensated", "cancelled"})
PATIENCE_SECONDS = 75.0
LOOK_SECONDS = 0.1
SHOW_SECONDS = 0.3
INTERRUPTED = 130


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; a bad one ends the process with a line on stderr and status 2."""
    parser = argparse.ArgumentParser(prog="atalaia demo", description=__doc__)
    parser.add_argument("--trips", type=_trips, default=40, help="how many trips to book")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--stay", action="store_true", help="keep everything up until Ctrl-C")
    parser.add_argument("--home", type=_home, help="an empty folder for all files, which is kept")
    return parser.parse_args(arguments)


def _trips(text: str) -> int:
    if not text.isdecimal() or not FEWEST_TRIPS <= int(text) <= 1000:  # noqa: PLR2004 - the API's own limit
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {FEWEST_TRIPS} to 1000")
    return int(text)


def _home(text: str) -> Path:
    home = Path(text).resolve()
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise argparse.ArgumentTypeError(f"{text} is not an empty folder")
    return home


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How the demo ended."""

    sagas: Mapping[str, dict[str, Any]]
    audit: Reconciliation
    kills: Sequence[Kill]
    killed: Mapping[str, int]
    rescued: frozenset[str]
    seconds: Mapping[str, float]

    @property
    def good(self) -> bool:
        """Whether the books agree and something was rescued."""
        return self.audit.agrees and bool(self.rescued)

    def count(self, state: str) -> int:
        """Return how many sagas ended in a state."""
        return sum(saga["state"] == state for saga in self.sagas.values())

    def line(self) -> str:
        """Return the last line of the demo."""
        return (
            f"demo: {len(self.sagas)} sagas, {self.count(COMPLETED)} completed, "
            f"{self.count('compensated')} compensated, "
            f"{len(self.audit.orphaned)} orphaned effects, "
            f"{len(self.audit.duplicated)} duplicated effects, "
            f"{len(self.rescued)} rescued by the supervisor"
        )

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return {
            "sagas": len(self.sagas),
            "completed": self.count(COMPLETED),
            "compensated": self.count("compensated"),
            "cancelled": self.count("cancelled"),
            "orphaned_effects": len(self.audit.orphaned),
            "duplicated_effects": len(self.audit.duplicated),
            "rescued": len(self.rescued),
            "killed": dict(self.killed),
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "kills": [told_of(kill, self.sagas[kill.saga]) for kill in self.kills],
            "audit": self.audit.document(),
            "good": self.good,
        }


def told_of(kill: Kill, saga: Mapping[str, Any]) -> dict[str, Any]:
    """Return what became of a killed attempt; durations in seconds from the kill."""
    attempt = next(a for a in saga["attempts"] if (a["path"], a["no"]) == (kill.step, kill.attempt))
    step = next(s for s in saga["steps"] if s["path"] == kill.step)
    return {
        "saga": kill.saga,
        "step": kill.step,
        "attempt": kill.attempt,
        "with_worker": kill.with_worker,
        "lease": attempt["state"],
        "lease_taken_back_after": _seconds(kill.at, attempt["ended_at"]),
        "step_settled_after": _seconds(kill.at, step["settled_at"]),
        "saga_ended": saga["state"],
    }


def _seconds(since: datetime, instant: str | None) -> float | None:
    if instant is None:
        return None
    return round((datetime.fromisoformat(instant) - since).total_seconds(), 2)


class Demo:
    """One run, on a stack and a fleet that are up."""

    def __init__(self, stack: Stack, fleet: Fleet, board: Board) -> None:
        self.stack = stack
        self.fleet = fleet
        self.board = board
        self.web = httpx.Client(base_url=str(stack.addresses.web), trust_env=False, timeout=30)
        self.trouble = Trouble(fleet, stack, self.show)
        self.submitted: list[str] = []
        self._told: set[Kill] = set()
        self._shown_at = 0.0

    def show(self, saga: str) -> dict[str, Any]:
        """Return a saga as the web app shows it."""
        shown: dict[str, Any] = self.web.get(f"/sagas/{saga}").raise_for_status().json()
        return shown

    def run(self, trips: int, ready_after: float) -> Figures:
        """Book the trips, make trouble, wait until all of them have ended, and audit."""
        began = time.monotonic()
        self.trouble.begin()
        for number in range(trips):
            self.submitted.append(self._submit(number))
            self._look()
        self.board.say(f"{trips} trips submitted to {self.stack.addresses.web}")
        self._wait_until_ended(time.monotonic() + PATIENCE_SECONDS)
        ended = time.monotonic()
        self.trouble.end()
        sagas = {saga: self.show(saga) for saga in self.submitted}
        states = {saga: str(shown["state"]) for saga, shown in sagas.items()}
        return Figures(
            sagas=sagas,
            audit=reconcile(self.fleet.books(), states),
            kills=self.trouble.kills,
            killed=self.trouble.killed,
            rescued=frozenset(saga for saga, shown in sagas.items() if self._was_rescued(shown)),
            seconds={"start": ready_after, "sagas": ended - began},
        )

    def _submit(self, number: int) -> str:
        body = {"workflow": "trip", "key": f"demo-{number:04}", "input": trip(number)}
        saga: str = self.web.post("/sagas", json=body).raise_for_status().json()["id"]
        return saga

    def _look(self) -> bool:
        """Do and show what is due; tell whether all sagas have ended, as far as was looked."""
        for line in (*self.stack.tend(), *self.fleet.tend(), *self.trouble.look()):
            self.board.say(line)
        self.board.killed = len(self.trouble.kills)
        if time.monotonic() - self._shown_at < SHOW_SECONDS:
            return False
        self._shown_at = time.monotonic()
        self._tell_rescues()
        counts = self._counts()
        self.board.show(counts)
        return sum(counts[state] for state in ENDED) == len(self.submitted)

    def _tell_rescues(self) -> None:
        for kill in self.trouble.kills:
            if kill in self._told:
                continue
            told = told_of(kill, self.show(kill.saga))
            if told["step_settled_after"] is not None:
                self._told.add(kill)
                self.board.rescued += told["lease"] == "expired"
                self.board.say(
                    f"step {kill.step} of saga {kill.saga}: lease {told['lease']} after "
                    f"{told['lease_taken_back_after']} s, settled after "
                    f"{told['step_settled_after']} s"
                )

    def _wait_until_ended(self, deadline: float) -> None:
        while not self._look() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)

    def _counts(self) -> Counter[str]:
        answer = self.web.get("/sagas", params={"limit": 1000}).raise_for_status()
        ours = set(self.submitted)
        return Counter(str(saga["state"]) for saga in answer.json() if saga["id"] in ours)

    def _was_rescued(self, saga: Mapping[str, Any]) -> bool:
        """Tell whether a killed agent's lease was taken back, and the saga has ended since."""
        taken_back = (
            attempt["state"] == "expired" and attempt["pid"] in self.trouble.killed_pids
            for attempt in saga["attempts"]
        )
        return saga["state"] in ENDED and any(taken_back)


def trip(number: int) -> dict[str, Any]:
    """Return what one traveller asks for."""
    leaves = date(2027, 5, 1) + timedelta(days=number % 28)
    return {
        "traveller": f"Traveller {number + 1}",
        "origin": "MAD",
        "destination": DESTINATIONS[number % len(DESTINATIONS)],
        "departs_on": leaves.isoformat(),
        "nights": 2 + number % 5,
        "amount": 50_000 + 1_000 * number,
    }


def stock(trips: int) -> dict[str, dict[str, int]]:
    """Return too few rooms at one place and too few cars at another."""
    wanted = Counter(trip(number)["destination"] for number in range(trips))
    return {
        "hotels": {FEW_ROOMS: wanted[FEW_ROOMS] // 2},
        "cars": {FEW_CARS: wanted[FEW_CARS] // 2},
    }


def settings(home: Path) -> Settings:
    """Return the settings of a stack of the demo's own, whatever the environment says."""
    return Settings(
        home=home,
        database_url=None,
        broker_url=None,
        node_name=None,
        workflows=("orchestration.workflows",),
        agents=("tasks.agents",),
        web_port=0,
        flower_port=0,
    )


def play(options: argparse.Namespace, home: Path, console: Console) -> bool:
    """Run the demo once and tell whether it ended well."""
    board = Board(console)
    board.say(f"starting partners, broker, workers, supervisor with beat, Flower and web in {home}")
    fleet = Fleet(home, stock(options.trips))
    with fleet, Stack(settings(home), workers=2, environment=fleet.environment) as stack:
        fleet.wait_until_ready()
        ready_after = time.monotonic() - board.start
        with board:
            board.say("everything is up")
            demo = Demo(stack, fleet, board)
            figures = demo.run(options.trips, ready_after)
        _report(figures, options, console)
        if options.stay:
            _stay(stack, fleet)
    return figures.good


def _report(figures: Figures, options: argparse.Namespace, console: Console) -> None:
    audit = figures.audit
    verdict = "they agree" if audit.agrees else "THEY DISAGREE"
    books = f"books: {audit.effects} effects, {audit.cancelled} of them cancelled; {verdict}"
    for line in (*audit.lines(), f"{books} with how the sagas ended"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    print(json.dumps(figures.document()) if options.json else figures.line(), flush=True)


def _stay(stack: Stack, fleet: Fleet) -> None:
    """Keep everything up until Ctrl-C, which is how this is meant to end."""
    for line in stack.addresses.lines():
        print(line)
    for name, url in fleet.urls.items():
        print(f"{name:8} {url}/books")
    print("stop with Ctrl-C", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            for line in (*stack.tend(), *fleet.tend()):
                print(line, flush=True)
            time.sleep(LOOK_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    options = parse(arguments)
    console = Console(stderr=options.json)
    home = options.home or Path(tempfile.mkdtemp(prefix="atalaia-demo-"))
    keep = True
    try:
        with ended_by_signals():
            good = play(options, home, console)
        keep = not good
    except (KeyboardInterrupt, SystemExit) as end:
        keep = False
        return INTERRUPTED if isinstance(end, KeyboardInterrupt) else int(str(end.code))
    except (AtalaiaError, httpx.HTTPError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        if keep or options.home:
            print(f"the files are kept in {home}", file=sys.stderr)
        else:
            shutil.rmtree(home, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
