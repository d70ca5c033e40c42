"""Plans that could lose or double an effect are refused, with what to write instead."""

from datetime import timedelta
from typing import Any

import pytest

from orchestration.contract import MARGIN, AgentContract
from orchestration.definition import RetryPolicy, Step, Workflow, parallel, sequence
from orchestration.errors import DefinitionError, UnknownNameError
from orchestration.safety import Position, check_safety, positions

MINUTE = timedelta(minutes=1)
SAFE = AgentContract(name="safe", idempotent=True, compensation=True)
UNDO = {"compensation": True}


def agent(**properties: Any) -> AgentContract:
    return AgentContract(name="hotels.book", **properties)


def check(place: str, contract: AgentContract, **step: Any) -> None:
    """Check a workflow that has the agent before, at or after its pivot."""
    this = Step("hotel", agent="hotels.book", pivot=place == "pivot", **step)
    pay = Step("pay", agent="safe", pivot=True)
    steps = {"before": [this, pay], "pivot": [this], "after": [pay, this]}[place]
    workflow = Workflow("stay", version=1, steps=sequence(*steps))
    check_safety(workflow, {"safe": SAFE, "hotels.book": contract})


# --- where a step stands -------------------------------------------------------------------------


def test_steps_stand_before_at_or_after_the_pivot() -> None:
    step = {name: Step(name, agent="x") for name in "abcde"}
    pivot = Step("p", agent="x", pivot=True)
    plan = sequence(
        parallel(step["a"], step["b"]), sequence(step["c"], pivot, step["d"]), step["e"]
    )
    placed = positions(Workflow("w", version=1, steps=plan))
    assert placed == {
        "a": Position.BEFORE, "b": Position.BEFORE, "c": Position.BEFORE,
        "p": Position.PIVOT, "d": Position.AFTER, "e": Position.AFTER,
    }  # fmt: skip


def test_without_a_pivot_every_step_stands_before_it() -> None:
    plan = parallel(Step("a", agent="x"), Step("b", agent="x"))
    assert set(positions(Workflow("w", version=1, steps=plan)).values()) == {Position.BEFORE}


# --- what settles a doubt ------------------------------------------------------------------------


@pytest.mark.proves("KIND-01", "RT-07", "CT-12")
@pytest.mark.parametrize("properties", [UNDO, {"probe": True, **UNDO}])
def test_an_effect_before_the_pivot_needs_something_that_settles_a_doubt(
    properties: dict[str, Any],
) -> None:
    with pytest.raises(
        DefinitionError,
        match=r"workflow 'stay': step 'hotel': agent 'hotels.book' .*nothing that could settle a "
        r"doubt.*idempotent=True.*a close.*closes_key=True",
    ):
        check("before", agent(**properties))


@pytest.mark.parametrize(
    "properties",
    [
        {"idempotent": True, **UNDO},
        {"close": True, **UNDO},
        {"compensation_closes_key": True, **UNDO},
        {"at_most_once": True, **UNDO},
        {"manual": True},
        {"effect": False},
    ],
)
def test_each_way_to_settle_a_doubt_is_enough_before_the_pivot(properties: dict[str, Any]) -> None:
    check("before", agent(**properties))


@pytest.mark.parametrize("properties", [{}, {"compensation_closes_key": True, **UNDO}])
def test_a_pivot_needs_something_that_settles_a_doubt_without_undoing_it(
    properties: dict[str, Any],
) -> None:
    with pytest.raises(DefinitionError, match=r"step 'hotel': .*settle a doubt.*idempotent=True"):
        check("pivot", agent(**properties))


@pytest.mark.parametrize(
    "properties",
    [{"idempotent": True}, {"close": True}, {"at_most_once": True}, {"manual": True}],
)
def test_a_pivot_needs_no_compensation(properties: dict[str, Any]) -> None:
    """KIND-02."""
    check("pivot", agent(**properties))


@pytest.mark.proves("KIND-01", "INV-3")
@pytest.mark.parametrize(
    "properties", [{"idempotent": True}, {"close": True}, {"at_most_once": True}]
)
def test_an_effect_before_the_pivot_must_be_one_that_can_be_undone(
    properties: dict[str, Any],
) -> None:
    with pytest.raises(
        DefinitionError, match=r"step 'hotel': .*cannot be undone; give it a compensation"
    ):
        check("before", agent(**properties))


@pytest.mark.proves("KIND-03")
@pytest.mark.parametrize("properties", [{}, UNDO, {"probe": True}])
def test_a_step_after_the_pivot_must_be_one_that_can_be_repeated(
    properties: dict[str, Any],
) -> None:
    with pytest.raises(DefinitionError, match=r"step 'hotel': .*after the pivot.*idempotent=True"):
        check("after", agent(**properties))


@pytest.mark.parametrize(
    "properties",
    [
        {"idempotent": True},
        {"close": True},
        {"at_most_once": True},
        {"manual": True},
        {"effect": False},
    ],
)
def test_each_way_to_repeat_is_enough_after_the_pivot(properties: dict[str, Any]) -> None:
    check("after", agent(**properties))


# --- the key's retention -------------------------------------------------------------------------


@pytest.mark.proves("K-4")
@pytest.mark.parametrize("place", ["before", "pivot", "after"])
def test_retries_must_end_before_the_key_is_forgotten(place: str) -> None:
    """The last of two attempts of a minute may send for two minutes and one second."""
    step = {"timeout": MINUTE, "retry": RetryPolicy(max_attempts=2)}
    horizon = 2 * MINUTE + timedelta(seconds=1)
    long = agent(idempotent=True, key_retention=horizon + MARGIN + timedelta(seconds=1), **UNDO)
    check(place, long, **step)
    short = agent(idempotent=True, key_retention=horizon + MARGIN, **UNDO)
    with pytest.raises(
        DefinitionError,
        match=r"step 'hotel': may be tried again for 0:02:01, but agent 'hotels.book' remembers a "
        r"key for only 0:03:01; lower retry.max_attempts, timeout or schedule_to_close",
    ):
        check(place, short, **step)


def test_a_bound_on_all_attempts_bounds_the_horizon() -> None:
    short = agent(idempotent=True, key_retention=timedelta(minutes=20), **UNDO)
    with pytest.raises(DefinitionError, match="may be tried again"):
        check("before", short, retry=RetryPolicy(max_attempts=9))
    check("before", short, retry=RetryPolicy(max_attempts=9), schedule_to_close=10 * MINUTE)
    check("before", short, retry=RetryPolicy(max_attempts=9, total_timeout=10 * MINUTE))


# --- agents --------------------------------------------------------------------------------------


def test_an_unknown_agent_is_refused_with_the_nearest_name() -> None:
    workflow = Workflow("stay", version=1, steps=Step("hotel", agent="hotel.book"))
    with pytest.raises(
        UnknownNameError,
        match=r"workflow 'stay': step 'hotel': agent 'hotel.book' is not known; did you mean "
        r"'hotels.book'\?",
    ):
        check_safety(workflow, {"hotels.book": agent(), "safe": SAFE})


def test_an_unknown_agent_that_is_like_no_other_is_refused_with_all_names() -> None:
    workflow = Workflow("stay", version=1, steps=Step("hotel", agent="zzz"))
    with pytest.raises(UnknownNameError, match=r"known: hotels.book, safe"):
        check_safety(workflow, {"hotels.book": agent(), "safe": SAFE})


def test_every_reason_is_given_at_once() -> None:
    steps = sequence(Step("a", agent="hotels.book"), Step("b", agent="hotels.book"))
    with pytest.raises(DefinitionError) as refused:
        check_safety(Workflow("stay", version=1, steps=steps), {"hotels.book": agent()})
    assert len(str(refused.value).splitlines()) == 4
