"""Random workflows: every mix of step properties that is admitted, in every shape."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import product
from typing import Any

from orchestration.contract import AgentContract
from orchestration.definition import (
    Parallel,
    RetryPolicy,
    Sequence,
    Step,
    Workflow,
    parallel,
    sequence,
)
from orchestration.errors import DefinitionError
from orchestration.safety import Position, check_safety
from tasks.proof.dice import Dice

MINUTE = timedelta(minutes=1)
RETENTION = timedelta(minutes=45)
POLICIES = (
    RetryPolicy(),
    RetryPolicy(max_attempts=1),
    RetryPolicy(max_attempts=2, non_retryable_errors=("DeclinedError",)),
    RetryPolicy(total_timeout=2 * MINUTE),
)
TIMEOUTS = (MINUTE, 5 * MINUTE)

Properties = dict[str, Any]
_SENDING: tuple[Properties, ...] = (
    {},
    {"idempotent": True},
    {"idempotent": True, "key_retention": RETENTION},
    {"key_retention": RETENTION},
)
_ASKING: tuple[Properties, ...] = (
    {},
    {"probe": True, "probe_staleness": timedelta(seconds=5)},
    {
        "probe": True,
        "probe_staleness": timedelta(seconds=5),
        "request_lifetime": timedelta(seconds=30),
    },
)
_CLOSING: tuple[Properties, ...] = ({}, {"close": True})
_UNDOING: tuple[Properties, ...] = (
    {},
    {"compensation": True},
    {"compensation": True, "compensation_closes_key": True},
)
_AGREEING: tuple[Properties, ...] = ({}, {"at_most_once": True}, {"manual": True})


def mixes() -> Iterator[Properties]:
    """Yield every mix of properties that an agent can be declared with."""
    yield {"effect": False}
    for parts in product(_SENDING, _ASKING, _CLOSING, _UNDOING, _AGREEING):
        yield {name: value for part in parts for name, value in part.items()}


@cache
def admitted(position: Position) -> tuple[AgentContract, ...]:
    """Return every contract that may stand at a position, by the safety rules."""
    found = []
    for number, properties in enumerate(mixes()):
        contract = AgentContract(name=f"agent{number}", queue="all", **properties)
        if _is_admitted(contract, position):
            found.append(contract)
    return tuple(found)


def _is_admitted(contract: AgentContract, position: Position) -> bool:
    query = AgentContract(name="query", effect=False)
    own = Step("own", agent=contract.name, timeout=MINUTE, pivot=position is Position.PIVOT)
    steps = [own]
    if position is Position.AFTER:
        steps.insert(0, Step("pivot", agent="query", pivot=True))
    plan = Workflow("plan", version=1, steps=sequence(*steps))
    try:
        check_safety(plan, {contract.name: contract, "query": query})
    except DefinitionError:
        return False
    return True


@dataclass(frozen=True)
class Plan:
    """A workflow and the contracts of its agents."""

    workflow: Workflow
    contracts: dict[str, AgentContract]


@cache
def every() -> tuple[tuple[Position, AgentContract], ...]:
    """Return every contract at every position at which it is admitted."""
    return tuple((position, given) for position in Position for given in admitted(position))


class Planner:
    """Makes the workflow of one seed.

    One contract at one position stands in it for certain, another one for each seed, so that as
    many seeds as there are try them all. ``favours`` is a role: agents that can play it, such as
    those that can be asked to close a key, are then preferred.
    """

    def __init__(self, dice: Dice, favours: str = "", most_steps: int = 5) -> None:
        self.dice = dice
        self.featured: tuple[Position, AgentContract] | None = every()[dice.seed % len(every())]
        self.property = favours.rpartition(" ")[2]
        self.most_steps = most_steps
        self.names = iter("abcdefghijklmnop")
        self.contracts: dict[str, AgentContract] = {}

    def plan(self) -> Plan:
        """Return a random plan that is admitted."""
        assert self.featured is not None
        wanted, _ = self.featured
        nodes = [self._tree(Position.BEFORE, 2)]
        if wanted is not Position.BEFORE or self.dice.roll("has a pivot") < 0.5:  # noqa: PLR2004 - as often as not
            nodes.append(self._step(Position.PIVOT, "pivot"))
            if wanted is Position.AFTER or self.dice.roll("goes on") < 0.6:  # noqa: PLR2004 - a little more often
                nodes.append(self._tree(Position.AFTER, 1))
        deadline = self.dice.pick("deadline", (40 * MINUTE, timedelta(days=1)))
        workflow = Workflow("random", version=1, steps=sequence(*nodes), deadline=deadline)
        return Plan(workflow, self.contracts)

    def _tree(self, position: Position, depth: int) -> Step | Sequence | Parallel:
        site = f"tree {position} {depth} {len(self.contracts)}"
        kind = self.dice.pick(site, ("step", "sequence", "parallel")) if depth else "step"
        if kind == "step" or len(self.contracts) >= self.most_steps:
            return self._step(position, site)
        children = [self._tree(position, depth - 1) for _ in range(2)]
        return sequence(*children) if kind == "sequence" else parallel(*children)

    def _step(self, position: Position, site: str) -> Step:
        contract = self._contract(position, site)
        self.contracts[contract.name] = contract
        limits = (None, None, None)
        beats = self.dice.roll(f"{site} beats") < 0.1  # noqa: PLR2004 - one in ten
        return Step(
            next(self.names),
            agent=contract.name,
            pivot=position is Position.PIVOT,
            retry=self.dice.pick(f"{site} retry", POLICIES),
            timeout=MINUTE if contract.key_retention else self.dice.pick(f"{site} t", TIMEOUTS),
            schedule_to_start=self.dice.pick(f"{site} start", (*limits, MINUTE / 2)),
            schedule_to_close=self.dice.pick(f"{site} close", (*limits, 10 * MINUTE)),
            heartbeat_timeout=MINUTE * 0.75 if beats else None,
            inline=self.dice.roll(f"{site} inline") < 0.3,  # noqa: PLR2004 - one in three or so
        )

    def _contract(self, position: Position, site: str) -> AgentContract:
        if self.featured is not None and self.featured[0] is position:
            _, contract = self.featured
            self.featured = None
            return contract
        able = [given for given in admitted(position) if getattr(given, self.property, False)]
        return self.dice.pick(f"{site} agent", able or admitted(position))
