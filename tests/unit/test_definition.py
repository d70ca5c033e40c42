"""A workflow is data: it comes back from JSON unchanged, and what is wrong with it is refused."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from orchestration.contract import AgentContract
from orchestration.declared import LONGEST
from orchestration.definition import (
    Definition,
    Parallel,
    RetryOverride,
    RetryPolicy,
    Sequence,
    Step,
    Workflow,
    parallel,
    sequence,
    steps_of,
)
from orchestration.errors import DefinitionError, InputError
from orchestration.workflows.trip import trip

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    nights: int = Field(ge=1)
    city: str = "LIS"


def plan(*steps: Step | Sequence | Parallel, **properties: Any) -> Workflow:
    usual: dict[str, Any] = {"version": 1, "steps": sequence(*steps)}
    return Workflow("stay", **(usual | properties))


HOTEL = Step("hotel", agent="hotels.book")
STEP: Any = Step  # so that the type checker lets through what is to be refused
POLICY: Any = RetryPolicy
SEQUENCE: Any = sequence

# --- through JSON and back -----------------------------------------------------------------------

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}(\.[a-z0-9_]{1,8})?", fullmatch=True)
durations = st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=300))
maybe = st.none() | durations
coefficients = st.floats(1, 1000, allow_nan=False)
overrides = st.builds(
    RetryOverride,
    max_attempts=st.none() | st.integers(1, 99),
    initial_interval=maybe,
    backoff_coefficient=st.none() | coefficients,
    max_interval=maybe,
)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 99),
    initial_interval=durations,
    backoff_coefficient=coefficients,
    max_interval=maybe,
    jitter=st.sampled_from(["full", "none"]),
    non_retryable_errors=st.lists(names, max_size=2).map(tuple),
    overrides=st.dictionaries(names, overrides, max_size=2),
)
steps = st.builds(
    Step, name=names, agent=names, timeout=durations, retry=policies, pivot=st.booleans()
)
trees = st.recursive(
    steps,
    lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda children: st.sampled_from([sequence(*children), parallel(*children)])
    ),
    max_leaves=6,
)


def valid(tree: Any) -> Workflow | None:
    try:
        return Workflow("any", version=3, steps=tree, input=Request, deadline=timedelta(days=900))
    except DefinitionError:
        return None


@given(trees)
@pytest.mark.proves("SAS-02", "GM-08")
def test_a_workflow_comes_back_from_json_without_loss(tree: Any) -> None:
    workflow = valid(tree)
    if workflow is None:
        return
    again = Workflow.from_document(json.loads(json.dumps(workflow.document)))
    assert again == workflow
    assert again.steps == workflow.steps
    assert again.document == workflow.document


def test_a_definition_comes_back_from_json_with_the_contracts_of_its_agents() -> None:
    contract = AgentContract(
        name="hotels.book", queue="hotels", idempotent=True, key_retention=timedelta(hours=24),
        probe=True, probe_staleness=2 * SECOND, request_lifetime=timedelta(milliseconds=1500),
    )  # fmt: skip
    definition = Definition(plan(HOTEL), {"hotels.book": contract, "unused": contract})
    again = Definition.from_document(json.loads(json.dumps(definition.document)))
    assert again.contracts == {"hotels.book": contract}
    assert again.workflow == definition.workflow
    assert again.id == definition.id


def test_the_reference_workflow_comes_back_from_json() -> None:
    assert Workflow.from_document(json.loads(json.dumps(trip.document))) == trip


def test_any_change_of_content_gives_another_id() -> None:
    contract = AgentContract(name="hotels.book")
    other = AgentContract(name="hotels.book", idempotent=True)
    ids = {
        Definition(plan(HOTEL), {"hotels.book": contract}).id,
        Definition(plan(HOTEL, version=2), {"hotels.book": contract}).id,
        Definition(plan(HOTEL, deadline=MINUTE * 6), {"hotels.book": contract}).id,
        Definition(plan(HOTEL, input=Request), {"hotels.book": contract}).id,
        Definition(plan(HOTEL), {"hotels.book": other}).id,
    }
    assert len(ids) == 5


def test_a_workflow_is_its_content() -> None:
    assert plan(HOTEL) == plan(Step("hotel", agent="hotels.book"))
    assert plan(HOTEL) != plan(Step("hotel", agent="hotels.book", pivot=True))
    assert plan(HOTEL) != "stay"
    assert len({plan(HOTEL), plan(HOTEL)}) == 1
    assert repr(plan(HOTEL)) == "Workflow('stay', version=1)"


def test_steps_are_found_by_name_in_the_order_in_which_they_are_written() -> None:
    assert list(trip.by_name) == ["flight", "hotel", "car", "payment", "receipt"]
    assert [step.agent for step in steps_of(trip.steps)][-1] == "mail.receipt"


@pytest.mark.parametrize(
    "document",
    [
        {"type": "step", "name": "Hotel", "agent": "hotels.book"},
        {"type": "choice", "children": []},
        {"type": "sequence", "children": []},
        {"type": "step", "name": "hotel", "agent": "hotels.book", "colour": "red"},
        "hotel",
    ],
)
def test_a_document_that_is_no_workflow_is_refused_by_name(document: Any) -> None:
    whole = plan(HOTEL).document | {"steps": document}
    with pytest.raises(DefinitionError, match="workflow 'stay'"):
        Workflow.from_document(whole)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Step("Hotel", agent="x"), "Step 'Hotel': name: .*pattern"),
        (lambda: Step("hotel~late", agent="x"), "name: .*pattern"),
        (lambda: Step("h" * 101, agent="x"), "name: .*at most 100"),
        (lambda: STEP("hotel"), "Step 'hotel': agent: Field required"),
        (lambda: STEP("hotel", agent="x", tiemout=MINUTE), "Step 'hotel': tiemout"),
        (lambda: Step("hotel", agent="x", timeout=timedelta(0)), "timeout: .*greater than"),
        (lambda: Step("hotel", agent="x", timeout=LONGEST + SECOND), "timeout: .*less than"),
        (lambda: STEP("hotel", "x", agent="y"), "Step 'hotel': takes one name, got also 'x'"),
        (lambda: RetryPolicy(max_attempts=0), "RetryPolicy: max_attempts: .*greater than"),
        (lambda: RetryPolicy(backoff_coefficient=0.5), "backoff_coefficient: .*greater than"),
        (lambda: RetryPolicy(backoff_coefficient=1e9), "backoff_coefficient: .*less than"),
        (lambda: POLICY(jitter="some"), "jitter: .*'full' or 'none'"),
        (sequence, r"sequence\(\): children: .*at least 1"),
        (parallel, r"parallel\(\): children: .*at least 1"),
        (lambda: SEQUENCE("hotel"), r"sequence\(\): children"),
    ],
)
def test_a_part_that_is_wrong_is_refused_with_its_name_and_its_field(make: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        make()


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"version": 0}, "version must be a whole number from 1, got 0"),
        ({"version": "1"}, "version must be a whole number from 1, got '1'"),
        ({"version": True}, "version must be a whole number from 1, got True"),
        ({"deadline": timedelta(0)}, "deadline must be longer than zero"),
        ({"deadline": LONGEST + SECOND}, "deadline must be .* at most 3650 days"),
        ({"deadline": 60}, "deadline must be a timedelta"),
        ({"steps": [HOTEL]}, r"steps must be a Step, sequence\(\) or parallel\(\)"),
        ({"input": "TripRequest"}, "input must be a pydantic model"),
    ],
)
def test_a_workflow_that_is_wrong_is_refused_with_its_name(
    properties: dict[str, Any], words: str
) -> None:
    with pytest.raises(DefinitionError, match=f"workflow 'stay': {words}"):
        plan(HOTEL, **properties)


@pytest.mark.parametrize("name", ["Trip", "two words", "", "a..b", "x" * 101, 7])
def test_a_name_that_would_not_fit_is_refused(name: Any) -> None:
    with pytest.raises(DefinitionError, match="the name must be lower case"):
        Workflow(name, version=1, steps=HOTEL)


def test_a_step_that_stands_twice_is_refused() -> None:
    with pytest.raises(DefinitionError, match="step 'hotel' stands 2 times"):
        plan(HOTEL, parallel(HOTEL))


@pytest.mark.proves("KIND-01")
def test_two_pivots_on_a_path_are_refused_with_both_names() -> None:
    first, second = (Step(name, agent="x", pivot=True) for name in ("pay", "ship"))
    with pytest.raises(DefinitionError, match="steps 'pay' and 'ship' are both pivots"):
        plan(first, second)


@pytest.mark.proves("KIND-01")
def test_a_pivot_beside_other_branches_is_refused() -> None:
    pivot = Step("pay", agent="x", pivot=True)
    with pytest.raises(DefinitionError, match=r"step 'pay' is a pivot inside parallel\(\)"):
        plan(parallel(HOTEL, sequence(pivot)))
    assert plan(parallel(sequence(pivot))).by_name["pay"].pivot


@pytest.mark.proves("T-2", "SAS-08")
@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"heartbeat_timeout": 6 * MINUTE}, "heartbeat_timeout (0:06:00) .* timeout (0:05:00)"),
        ({"timeout": 61 * MINUTE}, "timeout (1:01:00) .* the workflow's deadline (1:00:00)"),
        (
            {"schedule_to_close": 4 * MINUTE},
            "timeout (0:05:00) .* schedule_to_close (0:04:00)",
        ),
        (
            {"schedule_to_start": 61 * MINUTE},
            "schedule_to_start (1:01:00) .* the workflow's deadline (1:00:00)",
        ),
        (
            {"retry": RetryPolicy(total_timeout=61 * MINUTE)},
            "retry.total_timeout (1:01:00) .* the workflow's deadline (1:00:00)",
        ),
        (
            {"schedule_to_close": 61 * MINUTE},
            "schedule_to_close (1:01:00) .* the workflow's deadline (1:00:00)",
        ),
    ],
)
def test_times_that_do_not_nest_are_refused_with_the_step_and_both_times(
    properties: dict[str, Any], words: str
) -> None:
    pattern = words.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(DefinitionError, match=f"step 'hotel': {pattern}"):
        plan(Step("hotel", agent="x", **properties), deadline=60 * MINUTE)


def test_every_reason_is_given_at_once() -> None:
    with pytest.raises(DefinitionError) as refused:
        plan(HOTEL, HOTEL, Step("a", agent="x", timeout=MINUTE * 9), deadline=MINUTE)
    lines = str(refused.value).splitlines()
    assert len(lines) == 4
    assert all(line.startswith("workflow 'stay': ") for line in lines)


# --- inputs --------------------------------------------------------------------------------------


def test_an_input_is_validated_and_completed() -> None:
    assert plan(HOTEL, input=Request).parse_input({"nights": 2}) == {"nights": 2, "city": "LIS"}
    assert plan(HOTEL, input=Request).parse_input(Request(nights=1)) == {"nights": 1, "city": "LIS"}


@pytest.mark.parametrize("value", [{"nights": 0}, {}, None, {"nights": 1, "x": 1}, "two nights"])
def test_an_input_that_does_not_fit_is_refused_with_its_field(value: Any) -> None:
    with pytest.raises(InputError, match="input of workflow 'stay': "):
        plan(HOTEL, input=Request).parse_input(value)


def test_an_input_without_a_model_is_taken_as_it_is() -> None:
    assert plan(HOTEL).parse_input([1, {"a": None}]) == [1, {"a": None}]


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), {"at": timedelta(0)}])
def test_an_input_without_a_model_must_be_json(value: Any) -> None:
    with pytest.raises(InputError, match="input of workflow 'stay' must be JSON"):
        plan(HOTEL).parse_input(value)


def test_an_input_without_a_model_is_the_same_after_a_trip_through_json() -> None:
    assert plan(HOTEL).parse_input({"items": (1, 2)}) == {"items": [1, 2]}


# --- retries -------------------------------------------------------------------------------------


@pytest.mark.proves("RT-02")
def test_delays_grow_by_the_coefficient_up_to_a_hundred_times_the_first() -> None:
    policy = RetryPolicy(initial_interval=2 * SECOND, backoff_coefficient=3)
    delays = [policy.backoff(n) / SECOND for n in range(1, 7)]
    assert delays == [2, 6, 18, 54, 162, 200]


def test_delays_grow_up_to_the_longest_that_is_given() -> None:
    policy = RetryPolicy(max_interval=5 * SECOND)
    assert [policy.backoff(n) / SECOND for n in (1, 2, 3, 4, 1000)] == [1, 2, 4, 5, 5]


@given(policies, st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_delay_lies_between_nothing_and_the_back_off(
    policy: RetryPolicy, failures: int, roll: float
) -> None:
    delay = policy.delay(failures, roll)
    backoff = policy.backoff(max(failures, 1))
    assert timedelta(0) <= delay <= backoff <= policy.ceiling
    if policy.jitter == "none":
        assert delay == backoff


def test_full_jitter_spreads_evenly_from_nothing() -> None:
    """B-1."""
    policy = RetryPolicy(initial_interval=8 * SECOND)
    assert [policy.delay(1, roll) / SECOND for roll in (0, 0.25, 0.5)] == [0, 2, 4]


def test_the_remotes_word_is_honoured_and_spread_a_little() -> None:
    policy = RetryPolicy(initial_interval=10 * SECOND)
    assert policy.delay(1, 0.0, 7 * SECOND) == 7 * SECOND
    assert policy.delay(1, 0.5, 7 * SECOND) == 7.5 * SECOND


@pytest.mark.parametrize(("word", "seconds"), [(-9 * SECOND, 0), (timedelta.max, 86400)])
def test_the_remotes_word_is_bounded(word: timedelta, seconds: int) -> None:
    assert RetryPolicy().delay(1, 0.0, word) / SECOND == seconds


def test_an_override_takes_from_the_policy_whatever_it_does_not_say() -> None:
    policy = RetryPolicy(
        max_attempts=5, overrides={"Throttled": RetryOverride(initial_interval=MINUTE)}
    )
    found = policy.for_error("Throttled")
    assert (found.max_attempts, found.initial_interval) == (5, MINUTE)
    assert policy.for_error("Other") is policy
    assert policy.for_error(None) is policy


def test_the_horizon_is_the_longest_time_from_the_first_send_to_the_last() -> None:
    policy = RetryPolicy(max_attempts=4, jitter="none")
    assert policy.horizon(MINUTE) == 3 * MINUTE + (1 + 2 + 4) * SECOND
    assert RetryPolicy(max_attempts=1).horizon(MINUTE) == timedelta(0)
    assert RetryPolicy(max_attempts=9, total_timeout=MINUTE).horizon(MINUTE) == MINUTE


def test_the_horizon_counts_the_override_that_lasts_longest() -> None:
    policy = RetryPolicy(max_attempts=1, overrides={"Busy": RetryOverride(max_attempts=3)})
    assert policy.horizon(MINUTE) == 2 * MINUTE + 3 * SECOND


def test_a_process_that_goes_on_inline_is_killed_within_the_time_that_the_horizon_counts() -> None:
    minute = timedelta(minutes=1)
    steps = [Step("a", agent="book", timeout=3 * minute), Step("d", agent="far", timeout=minute)]
    steps[1:1] = [Step(name, agent="book", timeout=minute, inline=True) for name in ("b", "c")]
    contracts = {name: AgentContract(name=name, queue=name) for name in ("book", "far")}
    definition = Definition(Workflow("w", version=1, steps=sequence(*steps)), contracts)
    # Whichever step the task began with, all that it may go on with is over by then.
    assert [definition.longest_task(name) for name in "abc"] == [5 * minute] * 3
    assert definition.longest_task("d") == minute
