"""The idempotency key and the jitter are functions of what they are about, and of nothing else."""

from dataclasses import fields
from inspect import signature
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import Saga, Step
from models.states import Direction, StepState
from orchestration.snapshot import LATE, SagaSnapshot, StepSnapshot, idempotency_key, roll

SAGA = UUID("01900000-0000-7000-8000-000000000001")
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


@pytest.mark.proves("SAS-09", "IC-01", "K-1")
def test_the_key_is_the_same_whenever_and_wherever_it_is_computed() -> None:
    """A value from this version: another one would double whatever is under way at an upgrade."""
    expected = "73ad734c-9fc7-5226-b173-04417972c551"
    assert idempotency_key(SAGA, "hotel", FORWARD, 0) == expected


@pytest.mark.proves("SAS-09", "K-1")
def test_the_key_does_not_know_the_attempt() -> None:
    parameters = signature(idempotency_key).parameters
    assert list(parameters) == ["saga_id", "path", "direction", "incarnation"]


@pytest.mark.proves("K-1", "K-2")
def test_each_operation_has_a_key_of_its_own() -> None:
    keys = {
        idempotency_key(saga, path, direction, incarnation)
        for saga in (SAGA, uuid4())
        for path in ("hotel", "car")
        for direction in Direction
        for incarnation in (0, 1, 10)
    }
    assert len(keys) == 2 * 2 * 2 * 3


@given(st.uuids(), st.text(max_size=20), st.integers(0, 10_000))
def test_a_roll_is_in_its_interval_and_repeats_itself(saga: UUID, path: str, count: int) -> None:
    assert 0 <= roll(saga, path, count) < 1
    assert roll(saga, path, count) == roll(saga, path, count)


@pytest.mark.proves("RT-02")
def test_rolls_are_spread_evenly() -> None:
    rolls = [roll(uuid4(), "hotel", 1) for _ in range(4000)]
    tenths = [sum(tenth / 10 <= r < (tenth + 1) / 10 for r in rolls) for tenth in range(10)]
    assert 300 < min(tenths) <= max(tenths) < 500


def test_the_row_of_a_late_effect_belongs_to_the_step_that_it_is_about() -> None:
    row = StepSnapshot(
        path="hotel" + LATE, kind="watch", agent="x", queue="x", direction=FORWARD,
        state=StepState.UNKNOWN,
    )  # fmt: skip
    assert row.name == "hotel"


def test_a_snapshot_holds_the_columns_of_its_row_without_the_payload() -> None:
    columns = set(Step.__table__.columns.keys())
    assert {f.name for f in fields(StepSnapshot)} == columns - {"saga_id", "result"}
    assert {f.name for f in fields(SagaSnapshot)} - {"steps"} <= set(Saga.__table__.columns.keys())
