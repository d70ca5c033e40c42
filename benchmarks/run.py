"""Compare Atalaia with its peers, in one run on one machine: three no-op steps, again and again.

Usage: ``python -m benchmarks.run [--quick] [--only NAME …]``. The contestants take turns, each
alone with a fresh database and an empty Redis; the figures are medians over the rounds. Prints a
table; the last line is one JSON object. Notes on the way go to the standard error.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
import psycopg

from benchmarks import report
from benchmarks.bout import Figures, Size, bout, writes_of
from benchmarks.contestants import ALL, QUICK
from benchmarks.contestants.base import Contestant, NotMeasuredError
from benchmarks.places import Places, open_places
from benchmarks.recovery import recovery

T = TypeVar("T")

_QUICK_SECONDS = 45.0
_FAILURES = (NotMeasuredError, AssertionError, OSError, psutil.Error, psycopg.Error)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured, and how often."""

    contestants: Sequence[Contestant]
    rounds: int
    size: Size
    seconds: float = float("inf")
    """No further round is begun that would not end within so many."""
    recovery_within: float | None
    """How long a recovery is waited for; ``None`` leaves it out, and the counting of writes."""


class Run:
    """All bouts of one run; a contestant that fails once is left out from then on, and said so."""

    def __init__(self, plan: Plan, places: Places) -> None:
        self.plan = plan
        self.places = places
        self.bouts: dict[str, list[Figures]] = {one.name: [] for one in plan.contestants}
        self.extras: dict[str, report.Result] = {one.name: {} for one in plan.contestants}
        self.failed: dict[str, str] = {}

    def measure(self) -> dict[str, report.Result]:
        """Do all rounds, then what is measured once; return the results by name."""
        began = time.monotonic()
        for done in range(self.plan.rounds):
            if not self._fits(done, time.monotonic() - began):
                break
            for one in self.plan.contestants:
                figures = self._try(one, f"round {done + 1}", bout, self.plan.size)
                if figures is not None:
                    self.bouts[one.name].append(figures)
        for one in self.plan.contestants if self.plan.recovery_within is not None else ():
            self.extras[one.name] |= self._try(one, "writes", writes_of, self.plan.size.sagas) or {}
            within = self.plan.recovery_within
            self.extras[one.name] |= self._try(one, "recovery", recovery, within) or {}
        return {one.name: self._result(one) for one in self.plan.contestants}

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        return max(map(len, self.bouts.values()))

    def _fits(self, done: int, taken: float) -> bool:
        """Tell whether one more round would end in time, if it takes as long as those before."""
        return done == 0 or taken / done * (done + 1) <= self.plan.seconds

    def _try(self, one: Contestant, what: str, measure: Callable[..., T], *how: object) -> T | None:
        if one.name in self.failed:
            return None
        try:
            found = measure(one, self.places, *how)
        except _FAILURES as error:
            self.failed[one.name] = f"{what}: {error}"
            print(f"{one.name}: not measured: {what}: {error}", file=sys.stderr, flush=True)
            return None
        print(f"{what}: {one.name} {found}", file=sys.stderr, flush=True)
        return found

    def _result(self, one: Contestant) -> report.Result:
        if one.name in self.failed:
            return {"not_measured": self.failed[one.name]}
        return report.medians(self.bouts[one.name]) | self.extras[one.name]


def main() -> int:
    """Measure and tell."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What was started is ended then, too.
    wanted = _arguments().parse_args()
    plan = _plan(wanted)
    abouts = {one.name: one.about for one in plan.contestants}
    with open_places(os.environ.get("ATALAIA_TEST_REDIS_URL")) as places:
        conditions = places.conditions()
        run = Run(plan, places)
        results = run.measure()
    conditions["load_average_after"] = round(os.getloadavg()[0], 2)
    report.show(abouts, results)
    found = {"conditions": conditions, "rounds": run.rounds, "sagas": plan.size.sagas}
    found |= {"results": results, **report.summary(results)}
    if wanted.into:
        told = report.circumstances(found, f"make bench{_words(sys.argv[1:])}")
        told += "\n\n" + report.markdown(abouts, results)
        wanted.into.write_text(report.document(wanted.into.read_text(), told))
    print(json.dumps(found))
    return 0


def _words(given: Sequence[str]) -> str:
    """Return the arguments of this run as they are given to make; the document's is left out."""
    words = [word for word in given if word != "--into" and not word.endswith(".md")]
    return f' BENCH="{" ".join(words)}"' if words else ""


def _plan(wanted: argparse.Namespace) -> Plan:
    known = {one.name: one for one in ALL}
    contestants = [known[name] for name in wanted.only] or list(QUICK if wanted.quick else ALL)
    sagas, rounds, singles = (100, 3, 20) if wanted.quick else (500, 5, 50)
    return Plan(
        contestants=contestants,
        rounds=wanted.rounds or rounds,
        seconds=_QUICK_SECONDS if wanted.quick else float("inf"),
        size=Size(sagas=wanted.sagas or sagas, singles=wanted.singles or singles),
        recovery_within=None if wanted.quick else 60.0,
    )


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the plain chain and Atalaia only")
    parser.add_argument(
        "--only", nargs="+", default=[], choices=[one.name for one in ALL], metavar="NAME",
        help="these contestants only: " + ", ".join(one.name for one in ALL),
    )  # fmt: skip
    parser.add_argument("--sagas", type=int, help="sagas in each bout")
    parser.add_argument("--rounds", type=int, help="bouts of each contestant")
    parser.add_argument("--singles", type=int, help="sagas on the idle system in each bout")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put the table into a document")
    return parser


if __name__ == "__main__":
    sys.exit(main())
