"""What the tree of a workflow asks for, given where its steps stand. Pure.

A node kind is two questions: which steps may start now and is the node done (forward), and which
steps may be undone now and is the node unwound (backward). New kinds answer the same two.
"""

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from models.states import STEP_DONE_FORWARD, Direction, SagaState, StepState
from orchestration.definition import Definition, Parallel, Sequence, Step
from orchestration.safety import Position, positions
from orchestration.snapshot import SagaSnapshot, StepSnapshot

Tree = Step | Sequence | Parallel
Steps = Mapping[str, StepSnapshot]

_UNWOUND = frozenset(
    {StepState.SKIPPED, StepState.FAILED, StepState.ABANDONED, StepState.COMPENSATED}
)


def ready(node: Tree, steps: Steps) -> tuple[bool, list[str]]:
    """Return whether ``node`` is done, and the paths of the steps in it that may start."""
    if isinstance(node, Step):
        state = steps[node.name].state
        return state in STEP_DONE_FORWARD, [node.name] if state is StepState.WAITING else []
    if isinstance(node, Sequence):
        for child in node.children:
            done, paths = ready(child, steps)
            if not done:
                return False, paths
        return True, []
    answers = [ready(child, steps) for child in node.children]
    return all(done for done, _ in answers), [path for _, paths in answers for path in paths]


def to_undo(node: Tree, steps: Steps, definition: Definition) -> tuple[bool, list[str]]:
    """Return whether ``node`` is unwound, and the paths of the steps that may be undone now.

    Within a sequence a step waits until everything after it is unwound; branches do not wait for
    each other (Garcia-Molina & Salem 1987, section 8).
    """
    if isinstance(node, Step):
        step = steps[node.name]
        if step.state in _UNWOUND:
            return True, []
        forward = step.direction is Direction.FORWARD
        if step.state is StepState.SUCCEEDED and forward:
            undone = _is_undone(step.name, definition)
            return not undone, [node.name] if undone else []
        return False, []
    if isinstance(node, Sequence):
        for child in reversed(node.children):
            unwound, paths = to_undo(child, steps, definition)
            if not unwound:
                return False, paths
        return True, []
    answers = [to_undo(child, steps, definition) for child in node.children]
    return all(done for done, _ in answers), [path for _, paths in answers for path in paths]


def _is_undone(name: str, definition: Definition) -> bool:
    """Tell whether an effect is taken back when its saga turns back, by hand if need be.

    At the pivot or after it there is one then only if commits were lost.
    """
    contract = definition.contract(name)
    if not contract.effect or contract.compensation or contract.manual:
        return contract.effect
    return not contract.at_most_once and positions(definition.workflow)[name] is not Position.BEFORE


def new_saga(definition: Definition, saga_id: UUID, now: datetime) -> SagaSnapshot:
    """Return a saga of which nothing is under way yet."""
    deadline_at = now + definition.workflow.deadline
    steps = {
        step.name: StepSnapshot(
            path=step.name,
            kind="agent",
            agent=step.agent,
            queue=definition.contracts[step.agent].queue,
            direction=Direction.FORWARD,
            state=StepState.WAITING,
        )
        for step in definition.workflow.by_name.values()
    }
    return SagaSnapshot(
        id=saga_id,
        state=SagaState.RUNNING,
        deadline_at=deadline_at,
        wake_at=deadline_at,
        steps=steps,
    )
