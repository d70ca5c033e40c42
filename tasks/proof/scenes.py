"""The scenes in which a workflow is tried: all is well, or something goes wrong at a partner.

Into each of them crashes are then put, at every boundary. A scene is a ``Scenario`` of the small
scope, over the user's own workflow and with what is forced on it.
"""

from collections.abc import Iterator

from orchestration.definition import Step
from orchestration.safety import Position, positions
from tasks.proof.exhaustive import Scenario
from tasks.proof.plans import Plan

WIRE = ("reply-lost", "late", "lost")
Forced = tuple[tuple[str, str], ...]


def scenes(plan: Plan) -> Iterator[Scenario]:
    """Yield every scene; the first is the one in which nothing is forced."""
    yield Scenario("nothing else goes wrong", plan)
    yield Scenario("cancelled", plan, (("cancel *", "cancel"),))
    for step in plan.workflow.by_name.values():
        for name, forced in _around(plan, step):
            yield Scenario(name, plan, forced)


def _around(plan: Plan, step: Step) -> Iterator[tuple[str, Forced]]:
    """Yield what may go wrong about one step: alone, always, and before the saga turns back."""
    turn = _turn(plan)
    back: Forced = (_action(turn, 0, "refused"),)
    yield f"{step.name} refused", (_action(step.name, 0, "refused"),)
    for fault in WIRE:
        once: Forced = (_action(step.name, 0, fault),)
        always = tuple(_action(step.name, n, fault) for n in range(step.retry.max_attempts))
        yield f"{step.name} {fault}", once
        if len(always) > 1 and fault != "late":
            yield f"{step.name} {fault} always", always
        if step.name != turn and fault != "lost":
            yield f"{step.name} {fault}, then back", once + back
    if step.name == turn or not plan.contracts[step.agent].compensation:
        return
    for fault in ("reply-lost", "late"):
        undoing = ((f"partner compensation */{step.name} 0", fault),)
        yield f"{step.name} back, {fault}", back + undoing
    lagging = (_action(step.name, 0, "reply-lost"), (f"partner probe */{step.name} 0", "lagging"))
    yield f"{step.name} lagging, then back", lagging + back


def _action(step: str, count: int, fault: str) -> tuple[str, str]:
    return f"partner action */{step} {count}", fault


def _turn(plan: Plan) -> str:
    """Return the last step from which a saga still turns back."""
    placed = positions(plan.workflow)
    return [name for name, at in placed.items() if at is not Position.AFTER][-1]
