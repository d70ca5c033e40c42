"""Every crash, in every small saga: enumerated, not drawn.

A scope is a list of small workflows, one for each combination of step properties that the safety
rules admit, with the ends that are forced on them. Each is first run without a fault; then once for
each crash at each boundary that it comes to; then, for each of those, once for each further crash
at each boundary that comes after the first. Many such sagas share one world, each with crashes of
its own: a pool child takes nobody with it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from orchestration.contract import AgentContract
from orchestration.definition import RetryPolicy, Step, Workflow, parallel, sequence
from orchestration.safety import Position
from tasks.proof.dice import Dice
from tasks.proof.faults import FAULTS, Faults
from tasks.proof.invariants import Violation
from tasks.proof.plans import Plan, admitted
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


@dataclass
class Count:
    """What was tried, and what was found."""

    scenarios: int = 0
    schedules: int = 0
    by_crashes: dict[int, int] = field(default_factory=dict)
    found: list[tuple[Scenario, dict[str, str], Outcome, Violation]] = field(default_factory=list)


def explore(simulation: Simulation, scenario: Scenario, *, thorough: bool = False) -> Count:
    """Try every schedule of a scenario."""
    count = Count(scenarios=1)
    level: list[dict[str, str]] = [{}]
    for crashes in range(scenario.crashes + 1):
        asked = _run_all(simulation, scenario, level, count)
        count.by_crashes[crashes] = len(level)
        if crashes < scenario.crashes:
            level = list(_one_more(level, asked, thorough=thorough or crashes == 0))
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
        count.schedules += len(crowd)
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


def small_scope() -> Iterator[Scenario]:
    """Yield, for each admitted mix, the smallest workflow and one that has to be undone."""
    for position in Position:
        for contract in admitted(position):
            yield Scenario(f"alone {position}", _plan(_alone(contract, position), contract))
    refused = (("partner action */z 0", "refused"),)
    for contract in admitted(Position.BEFORE):
        own = _step("a", contract)
        undone = sequence(own, _step("z", GOOD))
        yield Scenario("then undone", _plan(undone, contract), refused, crashes=1)
        beside = parallel(own, _step("z", GOOD))
        yield Scenario("undone beside", _plan(beside, contract), refused, crashes=1)


def large_scope() -> Iterator[Scenario]:
    """Yield the small scope with two crashes everywhere, and three steps around each mix."""
    for scenario in small_scope():
        yield Scenario(scenario.name, scenario.plan, scenario.forced, crashes=2)
    refused = (("partner action */z 0", "refused"),)
    for contract in admitted(Position.BEFORE):
        steps = sequence(_step("y", GOOD), _step("a", contract), _step("z", GOOD))
        yield Scenario("between two", _plan(steps, contract), refused)


def _alone(contract: AgentContract, position: Position) -> Step | tuple[Step, ...]:
    if position is Position.AFTER:
        return _step("q", QUERY, pivot=True), _step("a", contract)
    return _step("a", contract, pivot=position is Position.PIVOT)


def _step(name: str, contract: AgentContract, *, pivot: bool = False) -> Step:
    policy = RetryPolicy(max_attempts=2, jitter="none")
    return Step(name, agent=contract.name, pivot=pivot, retry=policy, timeout=MINUTE)


def _plan(steps: object, contract: AgentContract) -> Plan:
    tree = sequence(*steps) if isinstance(steps, tuple) else steps
    workflow = Workflow("small", version=1, steps=tree, deadline=60 * MINUTE)  # type: ignore[arg-type]
    agents = {step.agent for step in workflow.by_name.values()}
    known = {given.name: given for given in (contract, GOOD, QUERY)}
    return Plan(workflow, {name: known[name] for name in agents})


def explore_all(simulation: Simulation, scenarios: Iterable[Scenario]) -> Count:
    """Try every schedule of many scenarios."""
    whole = Count()
    for scenario in scenarios:
        part = explore(simulation, scenario)
        whole.scenarios += 1
        whole.schedules += part.schedules
        whole.found += part.found
        for crashes, number in part.by_crashes.items():
            whole.by_crashes[crashes] = whole.by_crashes.get(crashes, 0) + number
    return whole
