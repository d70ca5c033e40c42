"""What is refused before a saga can ever be started: plans that could lose or double an effect.

Each rule names the step and what to write instead. The rules follow from the recovery table: a
step for which no row of it ends well, once its outcome is in doubt, must not be run automatically.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from orchestration.contract import MARGIN, AgentContract
from orchestration.definition import Parallel, Sequence, Step, Workflow, steps_of
from orchestration.errors import DefinitionError, UnknownNameError


class Position(StrEnum):
    """Where a step stands, seen from the point of no return."""

    BEFORE = "before"
    PIVOT = "pivot"
    AFTER = "after"


def positions(workflow: Workflow) -> dict[str, Position]:
    """Return the position of every step. Without a pivot all of them stand before it."""
    found: dict[str, Position] = {}
    _place(workflow.steps, found, passed=False)
    return found


def _place(node: Step | Sequence | Parallel, found: dict[str, Position], *, passed: bool) -> bool:
    """Place the steps of ``node``; return whether the pivot lies behind its end."""
    if isinstance(node, Step):
        here = Position.PIVOT if node.pivot else Position.BEFORE
        found[node.name] = Position.AFTER if passed else here
        return passed or node.pivot
    if isinstance(node, Sequence):
        for child in node.children:
            passed = _place(child, found, passed=passed)
        return passed
    branches = [_place(child, found, passed=passed) for child in node.children]
    return any(branches)


def check_safety(workflow: Workflow, contracts: Mapping[str, AgentContract]) -> None:
    """Refuse an unsafe plan with every reason at once."""
    problems = [
        f"workflow {workflow.name!r}: step {step!r}: {problem}"
        for step, problem in problems_of(workflow, contracts)
    ]
    if problems:
        raise DefinitionError("\n".join(problems))


def problems_of(
    workflow: Workflow, contracts: Mapping[str, AgentContract]
) -> Iterator[tuple[str, str]]:
    """Yield each step that is unsafe and why; raise ``UnknownNameError`` for a missing agent."""
    where = f"workflow {workflow.name!r}: "
    for step in steps_of(workflow.steps):
        if step.agent not in contracts:
            raise UnknownNameError("agent", step.agent, contracts, f"{where}step {step.name!r}: ")
    placed = positions(workflow)
    for step in steps_of(workflow.steps):
        for problem in _problems(step, contracts[step.agent], placed[step.name]):
            yield step.name, problem


def _problems(step: Step, contract: AgentContract, position: Position) -> Iterator[str]:
    if not contract.effect or contract.manual:
        return
    agent = f"agent {contract.name!r}"
    if position is Position.AFTER:
        if not (contract.idempotent or contract.close or contract.at_most_once):
            yield (
                f"{agent} stands after the pivot, where the step must be repeated until it "
                "succeeds; declare it idempotent=True, give it a close, or declare it "
                "at_most_once=True or manual=True"
            )
    else:
        yield from _problems_before(contract, position, agent)
    yield from _retention_problems(step, contract, agent)


def _problems_before(contract: AgentContract, position: Position, agent: str) -> Iterator[str]:
    before = position is Position.BEFORE
    barrier = before and contract.compensation and contract.compensation_closes_key
    if not (contract.idempotent or contract.close or barrier or contract.at_most_once):
        where, undo = (
            ("before", "give it a close, or a compensation with closes_key=True")
            if before
            else ("at", "or give it a close")
        )
        yield (
            f"{agent} has an effect {where} the pivot and nothing that could settle a doubt about "
            f"it; declare it idempotent=True with a key_retention, {undo} "
            "(or declare it at_most_once=True or manual=True)"
        )
    if before and not contract.compensation:
        yield (
            f"{agent} has an effect before the pivot that cannot be undone; give it a "
            "compensation, make it the pivot, or declare the agent manual=True or effect=False"
        )


def _retention_problems(step: Step, contract: AgentContract, agent: str) -> Iterator[str]:
    if not contract.idempotent or contract.key_retention is None:
        return
    horizon = step.retry.horizon(step.timeout) + step.timeout
    if step.schedule_to_close is not None:
        horizon = min(horizon, step.schedule_to_close)
    if horizon + MARGIN >= contract.key_retention:
        yield (
            f"may be tried again for {horizon}, but {agent} remembers a key for only "
            f"{contract.key_retention}; lower retry.max_attempts, timeout or "
            f"schedule_to_close until they end {MARGIN} before that"
        )
