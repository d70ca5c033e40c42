"""Every crash, in every small saga: enumerated, not drawn.

A scope is a list of small workflows, one for each combination of step properties that the safety
rules admit, with the ends that are forced on them. Each is first run without a fault; then once for
each crash at each boundary that it comes to; then, for each of those, once for each further crash
at each boundary that comes after the first. Many such sagas share one world, each with crashes of
its own: a pool child takes nobody with it.
"""

import argparse
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from rich.console import Console

from orchestration.contract import AgentContract
from orchestration.definition import RetryPolicy, Step, Workflow, parallel, sequence
from orchestration.safety import Position
from tasks.proof.dice import Dice
from tasks.proof.faults import FAULTS, Faults
from tasks.proof.invariants import Violation
from tasks.proof.plans import Plan, admitted
from tasks.proof.progress import be_quick, be_quiet, keep, progress
from tasks.proof.regression import Case
from tasks.proof.simulate import Outcome, Simulation

MINUTE = timedelta(minutes=1)
CALM = timedelta(minutes=1)
CRASH = "crash"
CROWD = 60
"""How many sagas share one world."""
CALLS = frozenset({"action", "compensation", "probe", "close", "client"})
SAME_ROWS = {"p4": "p3", "send": "p5", "p7": "p6", "p1": "p6", "p9": "p8"}
"""Boundaries that leave the same rows, and the same effects, behind as another one."""
GOOD = AgentContract(
    name="good", queue="all", idempotent=True, probe=True, close=True, compensation=True,
    compensation_closes_key=True,
)  # fmt: skip
QUERY = AgentContract(name="query", queue="all", effect=False)


@dataclass(frozen=True)
class Scenario:
    """One small workflow, and what is forced on each of its sagas."""

    name: str
    plan: Plan
    forced: tuple[tuple[str, str], ...] = ()
    """(site without the saga's name, fault)"""
    crashes: int = 2
    around: str = ""
    """Of two crashes one must strike this step; those of the others alone are tried elsewhere."""


@dataclass
class Count:
    """What was tried of a scenario, and what was found."""

    by_crashes: Counter[int] = field(default_factory=Counter)
    """Schedules, by the number of their crashes."""
    found: list[tuple[Scenario, dict[str, str], Outcome, Violation]] = field(default_factory=list)
    """With the crashes of the saga that shows it."""


def explore(simulation: Simulation, scenario: Scenario) -> Count:
    """Try every schedule of a scenario.

    One crash comes at every boundary; of two each comes at one of those boundaries that leave the
    same rows and the same effects behind.
    """
    count = Count()
    level: list[dict[str, str]] = [{}]
    for crashes in range(scenario.crashes + 1):
        asked = _run_all(simulation, scenario, level, count)
        count.by_crashes[crashes] = len(level)
        if crashes == scenario.crashes:
            break
        more = _one_more(level, asked, thorough=crashes == 0)
        level = [script for script in more if not crashes or _is_new(script, scenario.around)]
    return count


def _one_more(
    level: Sequence[dict[str, str]], asked: Sequence[dict[str, str]], *, thorough: bool
) -> Iterator[dict[str, str]]:
    """Yield each schedule with one more crash, behind those that it has."""
    for script, sites in zip(level, asked, strict=True):
        order = list(sites)
        last = max((order.index(site) for site in script if site in sites), default=-1)
        for site in order[last + 1 :]:
            for fault in _crashes(sites[site], thorough=thorough):
                yield script | {site: fault}


def _is_new(script: dict[str, str], step: str) -> bool:
    """Tell whether a schedule is like none that is tried elsewhere."""
    points = (fault.partition("@")[2] for fault in script.values())
    strikes = any(f"/{step} " in site or site.startswith("start ") for site in script)
    return (strikes or not step) and not any(point in SAME_ROWS for point in points)


def _crashes(role: str, *, thorough: bool) -> Iterator[str]:
    for fault in FAULTS[role]:
        kind, _, point = fault.partition("@")
        if kind == CRASH and (thorough or point not in SAME_ROWS):
            yield fault


def _run_all(
    simulation: Simulation, scenario: Scenario, scripts: Sequence[dict[str, str]], count: Count
) -> list[dict[str, str]]:
    """Run schedules in crowds; return the sites that each of them came to, with their roles."""
    sites: list[dict[str, str]] = []
    for first in range(0, len(scripts), CROWD):
        crowd = scripts[first : first + CROWD]
        names = tuple(f"s{number}" for number in range(len(crowd)))
        script = {
            _of(name, site): fault
            for name, own in zip(names, crowd, strict=True)
            for site, fault in (*scenario.forced, *own.items())
        }
        faults = Faults(Dice(0), script=script)
        outcome = simulation.run(0, plan=scenario.plan, faults=faults, sagas=names, calm_at=CALM)
        for found in outcome.violations:
            name = outcome.labels.get(found.saga_id, "")
            own = crowd[names.index(name)] if name in names else {}
            count.found.append((scenario, own, outcome, found))
        sites += [_asked(faults, name) for name in names]
    return sites


def _of(name: str, site: str) -> str:
    """Return a site as it is called for one saga; in a scenario its name is an asterisk."""
    return site.replace("*", name, 1)


def _asked(faults: Faults, name: str) -> dict[str, str]:
    marks = f" {name}/", f" {name}"
    return {
        site.replace(name, "*", 1): role
        for site, role in faults.asked.items()
        if role in CALLS and (marks[0] in site or site.endswith(marks[1]))
    }


# --- scopes --------------------------------------------------------------------------------------


REFUSED = (("partner action */z 0", "refused"),)


def scope() -> Iterator[Scenario]:
    """Yield, for each admitted mix, workflows of one, two and three steps around it.

    Alone; undone because a step behind it, or beside it, is refused; between two others, which is
    undone; before a step that is inline, and inline itself; and, at the pivot and after it, with a
    step on either side. Two crashes that both strike
    its neighbours are the same for every mix, and are tried with the first of each kind.
    """
    known: set[str] = set()
    for scenario in _shapes():
        yield replace(scenario, around="a" if scenario.name in known else "")
        known.add(scenario.name)


def _shapes() -> Iterator[Scenario]:
    for position in Position:
        for contract in admitted(position):
            yield Scenario(f"alone {position}", _plan(_alone(contract, position), contract))
    for contract in admitted(Position.BEFORE):
        own, y, z = _step("a", contract), _step("y", GOOD), _step("z", GOOD)
        yield Scenario("then undone", _plan(sequence(own, z), contract), REFUSED)
        yield Scenario("undone beside", _plan(parallel(own, z), contract), REFUSED)
        yield Scenario("between two", _plan(sequence(y, own, z), contract), REFUSED)
        inline = sequence(own, _step("z", GOOD, inline=True))
        yield Scenario("inline behind", _plan(inline, contract))
        inline = sequence(y, _step("a", contract, inline=True), z)
        yield Scenario("inline between two", _plan(inline, contract), REFUSED)
    for contract in admitted(Position.PIVOT):
        steps = sequence(_step("y", GOOD), _step("a", contract, pivot=True), _step("z", GOOD))
        yield Scenario("pivot between two", _plan(steps, contract))
    for contract in admitted(Position.AFTER):
        steps = sequence(_step("y", GOOD), _step("q", GOOD, pivot=True), _step("a", contract))
        yield Scenario("after two", _plan(steps, contract))


def _alone(contract: AgentContract, position: Position) -> Step | tuple[Step, ...]:
    if position is Position.AFTER:
        return _step("q", QUERY, pivot=True), _step("a", contract)
    return _step("a", contract, pivot=position is Position.PIVOT)


def _step(name: str, contract: AgentContract, *, pivot: bool = False, inline: bool = False) -> Step:
    policy = RetryPolicy(max_attempts=2, jitter="none")
    return Step(name, agent=contract.name, pivot=pivot, retry=policy, timeout=MINUTE, inline=inline)


def _plan(steps: object, contract: AgentContract) -> Plan:
    tree = sequence(*steps) if isinstance(steps, tuple) else steps
    workflow = Workflow("small", version=1, steps=tree, deadline=60 * MINUTE)  # type: ignore[arg-type]
    agents = {step.agent for step in workflow.by_name.values()}
    known = {given.name: given for given in (contract, GOOD, QUERY)}
    return Plan(workflow, {name: known[name] for name in agents})


# --- the command ---------------------------------------------------------------------------------


@dataclass
class Total:
    """What was tried of many scenarios; a violation with a run that shows it."""

    scenarios: int = 0
    by_crashes: Counter[int] = field(default_factory=Counter)
    found: list[tuple[str, Case]] = field(default_factory=list)

    def add(self, other: "Total") -> None:
        """Add what was tried elsewhere."""
        self.scenarios += other.scenarios
        self.by_crashes.update(other.by_crashes)
        self.found += other.found

    def __str__(self) -> str:
        """Return it in one line."""
        none, one, two = (self.by_crashes[crashes] for crashes in range(3))
        return (
            f"exhaustive: {self.scenarios} scenarios, {self.by_crashes.total()} schedules "
            f"({none} without, {one} with one, {two} with two crashes), "
            f"{len(self.found)} violations"
        )


def explore_all(scenarios: Iterable[Scenario]) -> Total:
    """Try every schedule of some scenarios in this process."""
    be_quiet()
    be_quick()
    simulation, total = Simulation(), Total()
    for scenario in scenarios:
        count = explore(simulation, scenario)
        total.scenarios += 1
        total.by_crashes.update(count.by_crashes)
        for _, own, _, violation in count.found:
            total.found.append((scenario.name, _alone_again(scenario, own, str(violation))))
    return total


def _alone_again(scenario: Scenario, own: dict[str, str], shows: str) -> Case:
    """Return the run of one saga out of a crowd."""
    script = {_of("s0", site): fault for site, fault in (*scenario.forced, *own.items())}
    return Case(seed=0, plan=scenario.plan, sagas=("s0",), script=script, shows=shows)


def main(arguments: list[str] | None = None) -> int:
    """Enumerate the scope, or one scenario of every ``--share``, and return the exit status."""
    parser = argparse.ArgumentParser(prog="exhaustive", description=__doc__)
    parser.add_argument("--share", type=int, default=1, help="take one scenario of so many")
    parser.add_argument("--offset", type=int, help="which one of them; by default any one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, default=Path(".simulation"), help="for violations")
    options = parser.parse_args(arguments)
    console = Console()
    offset = secrets.randbelow(options.share) if options.offset is None else options.offset
    if options.share > 1:
        console.print(f"this share: --share {options.share} --offset {offset}", highlight=False)
    scenarios = list(scope())[offset :: options.share]
    total = _explore_with_progress(console, scenarios, options.processes)
    for number, (name, case) in enumerate(total.found[:20]):
        path = keep(case, options.keep, f"{name} {number}")
        console.print(f"{name}: {case.shows}; kept in {path}", soft_wrap=True, highlight=False)
    sys.stdout.write(f"{total}\n")
    return int(bool(total.found))


def _explore_with_progress(
    console: Console, scenarios: Sequence[Scenario], processes: int
) -> Total:
    total = Total()
    with progress(console) as bar, ProcessPoolExecutor(processes) as pool:
        task = bar.add_task("exhaustive", total=len(scenarios))
        blocks = [scenarios[first : first + 2] for first in range(0, len(scenarios), 2)]
        for part in pool.map(explore_all, blocks):
            total.add(part)
            told = f"{total.by_crashes.total():,} schedules, {len(total.found)} violations"
            bar.update(task, advance=part.scenarios, description=told)
    return total


if __name__ == "__main__":
    sys.exit(main())
