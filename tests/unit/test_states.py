"""Every pair of states is a legal move or is not, as written down here a second time."""

from enum import StrEnum
from itertools import product
from typing import Any

import pytest

from models.states import (
    ATTEMPT_MOVES,
    SAGA_LIVE,
    SAGA_MOVES,
    SAGA_TERMINAL,
    STEP_DONE_FORWARD,
    STEP_LIVE,
    STEP_MOVES,
    STEP_SETTLED,
    STEP_UNSETTLED,
    AttemptState,
    SagaState,
    StepState,
)

SAGA = {
    "running": "compensating halted completed compensated cancelled",
    "compensating": "halted compensated cancelled",
    "halted": "running compensating completed compensated cancelled",
    "completed": "",
    "compensated": "",
    "cancelled": "",
}
OPEN = "dispatched retrying unknown halted succeeded failed abandoned compensated"
STEP = {
    "waiting": "dispatched leased retrying unknown halted skipped abandoned",
    "dispatched": f"{OPEN} leased skipped",
    "leased": OPEN,
    "retrying": f"{OPEN} skipped",
    "unknown": f"{OPEN} skipped",
    "halted": f"{OPEN} skipped",
    "succeeded": "dispatched halted compensated",
    "failed": "",
    "skipped": "",
    "abandoned": "",
    "compensated": "",
}
ATTEMPT = {
    "open": "succeeded failed unknown expired",
    "succeeded": "",
    "failed": "",
    "unknown": "",
    "expired": "",
}
MACHINES: list[tuple[Any, type[StrEnum], dict[str, str]]] = [
    (SAGA_MOVES, SagaState, SAGA),
    (STEP_MOVES, StepState, STEP),
    (ATTEMPT_MOVES, AttemptState, ATTEMPT),
]
PAIRS = [
    pytest.param(moves, before, after, expected, id=f"{states.__name__}-{before}-{after}")
    for moves, states, expected in MACHINES
    for before, after in product(states, states)
]


@pytest.mark.proves("COL-04", "INV-14")
@pytest.mark.parametrize(("moves", "before", "after", "expected"), PAIRS)
def test_a_pair_of_states_is_a_legal_move_or_not(
    moves: Any, before: StrEnum, after: StrEnum, expected: dict[str, str]
) -> None:
    assert (after in moves[before]) == (str(after) in expected[before].split())


def test_the_sets_of_states_follow_from_the_moves() -> None:
    assert {"completed", "compensated", "cancelled"} == SAGA_TERMINAL
    assert {"running", "compensating"} == SAGA_LIVE
    assert {"dispatched", "leased", "retrying", "unknown"} == STEP_LIVE
    assert {s for s, after in STEP_MOVES.items() if not after} | {"succeeded"} == STEP_SETTLED
    assert set(StepState) == STEP_UNSETTLED | STEP_SETTLED
    assert STEP_DONE_FORWARD <= STEP_SETTLED


@pytest.mark.parametrize("moves", [SAGA_MOVES, STEP_MOVES, ATTEMPT_MOVES])
def test_every_state_can_be_reached(moves: Any) -> None:
    first = next(iter(moves))
    reached, ahead = {first}, [first]
    while ahead:
        new = moves[ahead.pop()] - reached
        reached |= new
        ahead += new
    assert reached == set(moves)
