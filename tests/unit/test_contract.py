"""What an agent declares comes back from JSON, and says where its messages go."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.states import Operation
from orchestration.contract import KILL_GRACE, MARGIN, AgentContract

DAY = timedelta(days=1)
durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400))


@given(
    st.builds(
        AgentContract,
        name=st.sampled_from(["hotels.book", "x"]),
        effect=st.booleans(),
        idempotent=st.booleans(),
        key_retention=st.none() | durations,
        probe=st.booleans(),
        probe_staleness=durations,
        close=st.booleans(),
        compensation=st.booleans(),
        compensation_closes_key=st.booleans(),
        at_most_once=st.booleans(),
        manual=st.booleans(),
        request_lifetime=st.none() | durations,
        pending_limit=durations,
    )
)
def test_a_contract_comes_back_from_json_without_loss(contract: AgentContract) -> None:
    again = AgentContract.from_document(json.loads(json.dumps(contract.document())))
    assert again == contract


@pytest.mark.parametrize(
    ("operation", "name", "queue"),
    [
        (Operation.ACTION, "hotels.book", "hotels"),
        (Operation.COMPENSATION, "hotels.book.compensation", "hotels.recovery"),
        (Operation.PROBE, "hotels.book.probe", "hotels.recovery"),
        (Operation.CLOSE, "hotels.book.close", "hotels.recovery"),
    ],
)
def test_recovery_goes_to_a_queue_of_its_own(operation: Operation, name: str, queue: str) -> None:
    assert AgentContract(name="hotels.book", queue="hotels").route(operation) == (name, queue)


@pytest.mark.proves("T-3")
def test_the_horizon_counts_everything_that_can_delay_a_request_or_its_sight() -> None:
    contract = AgentContract(
        name="x", request_lifetime=timedelta(seconds=30), probe_staleness=timedelta(seconds=2)
    )
    timeout = timedelta(minutes=1)
    assert contract.settle_horizon(timeout) == timedelta(seconds=92) + KILL_GRACE


def test_without_an_enforced_lifetime_there_is_no_horizon() -> None:
    assert AgentContract(name="x").settle_horizon(DAY) is None


@pytest.mark.proves("K-4")
def test_a_key_is_used_up_to_a_margin_before_it_is_forgotten() -> None:
    contract = AgentContract(name="x", key_retention=DAY)
    assert contract.key_alive(DAY - MARGIN - timedelta(microseconds=1))
    assert not contract.key_alive(DAY - MARGIN)
    assert AgentContract(name="x").key_alive(1000 * DAY)
