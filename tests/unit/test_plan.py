"""What the tree asks for, given where its steps stand."""

import pytest

from models.states import Direction, StepState
from orchestration.definition import Definition, Step, Workflow, parallel, sequence
from orchestration.plan import ready, to_undo
from orchestration.snapshot import StepSnapshot
from tests.support.folding import contract

W, D, S, F = StepState.WAITING, StepState.DISPATCHED, StepState.SUCCEEDED, StepState.FAILED
K, A, C, H = StepState.SKIPPED, StepState.ABANDONED, StepState.COMPENSATED, StepState.HALTED
TREE = sequence(
    Step("a", agent="x"),
    parallel(sequence(Step("b", agent="x"), Step("c", agent="x")), Step("d", agent="x")),
    Step("e", agent="x"),
)
DEFINITION = Definition(Workflow("w", version=1, steps=TREE), {"x": contract("x")})


def rows(states: tuple[StepState, ...]) -> dict[str, StepSnapshot]:
    """The five steps; those that are being undone are the ones in a live state after success."""
    return {
        name: StepSnapshot(
            path=name, kind="agent", agent="x", queue="x", direction=Direction.FORWARD, state=state
        )
        for name, state in zip("abcde", states, strict=True)
    }


@pytest.mark.proves("SAS-01")
@pytest.mark.parametrize(
    ("states", "done", "paths"),
    [
        ((W, W, W, W, W), False, ["a"]),
        ((D, W, W, W, W), False, []),
        ((H, W, W, W, W), False, []),
        ((S, W, W, W, W), False, ["b", "d"]),
        ((A, W, W, W, W), False, ["b", "d"]),
        ((S, S, W, D, W), False, ["c"]),
        ((S, D, W, S, W), False, []),
        ((S, S, S, S, W), False, ["e"]),
        ((S, S, S, A, S), True, []),
        ((S, S, S, F, W), False, []),
    ],
)
def test_forward(states: tuple[StepState, ...], done: bool, paths: list[str]) -> None:
    assert ready(TREE, rows(states)) == (done, paths)


@pytest.mark.proves("GM-12")
@pytest.mark.parametrize(
    ("states", "done", "paths"),
    [
        ((F, K, K, K, K), True, []),
        ((S, F, K, K, K), False, ["a"]),
        ((S, S, F, S, K), False, ["b", "d"]),
        ((S, S, S, S, F), False, ["c", "d"]),
        ((S, S, C, D, F), False, ["b"]),
        ((S, C, C, D, F), False, []),
        ((S, C, C, H, F), False, []),
        ((S, A, C, C, F), False, ["a"]),
        ((C, C, C, C, F), True, []),
    ],
)
def test_backward(states: tuple[StepState, ...], done: bool, paths: list[str]) -> None:
    assert to_undo(TREE, rows(states), DEFINITION) == (done, paths)


def test_what_is_being_undone_is_not_undone_twice() -> None:
    steps = rows((S, K, K, K, K))
    fields = vars(steps["a"]) | {"direction": Direction.BACKWARD, "state": D}
    assert to_undo(TREE, steps | {"a": StepSnapshot(**fields)}, DEFINITION) == (False, [])


def test_what_had_no_effect_needs_no_undo() -> None:
    query = contract("x", effect=False, compensation=False)
    definition = Definition(DEFINITION.workflow, {"x": query})
    assert to_undo(TREE, rows((S, S, S, S, F)), definition) == (True, [])
