"""How the travel agents speak to real partners: what they conclude from each kind of trouble."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import tasks.agents
from models.states import Operation
from orchestration import (
    Absent,
    Applied,
    Closed,
    Conflict,
    OutcomeUnknown,
    Pending,
    PermanentFailure,
    Rejected,
    RetryLater,
    Unclear,
)
from orchestration.registry import registry
from orchestration.telemetry import log_for
from orchestration.workflows.trip import TripRequest, trip
from tasks.agent import AGENTS, Call
from tasks.agents.partner import Partner, TravelSettings
from tests.support.partners import PartnerProcess, free_port
from tests.support.waiting import eventually

BODY = {"saga": "s-1", "step": "hotel", "customer": "Ines", "item": "LIS"}


TRIP = TripRequest(
    traveller="Ines",
    origin="OPO",
    destination="LIS",
    departs_on=date(2026, 5, 4),
    nights=3,
    amount=12_50,
)


def a_call(
    *, action_key: str = "", time_left: timedelta = timedelta(seconds=20), step: str = "hotel"
) -> Call[TripRequest]:
    key = uuid4().hex
    return Call(
        input=TRIP,
        results={"payment": {"reference": "PA-000001"}},
        saga_id="s-1",
        step=step,
        attempt=1,
        key=key,
        action_key=action_key or key,
        log=log_for("s-1", step, 1),
        ends_at=time.monotonic() + time_left.total_seconds(),
        renew=lambda _details: None,
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartnerProcess]:
    with PartnerProcess("hotels", tmp_path_factory.mktemp("books")) as partner:
        yield partner


@pytest.fixture
def remote(shared: PartnerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[PartnerProcess]:
    monkeypatch.setenv("ATALAIA_TRAVEL_HOTELS_URL", shared.url)
    yield shared
    shared.switch()


@pytest.fixture
def hotels() -> Partner:
    return Partner("hotels", lambda found: found["reference"])


def test_the_partners_are_expected_where_the_demo_starts_them() -> None:
    settings = TravelSettings()
    ports = [getattr(settings, name).port for name in type(settings).model_fields]
    assert ports == [8801, 8802, 8803, 8804, 8805]


def test_an_order_gives_the_result_and_its_repetition_the_same(
    remote: PartnerProcess, hotels: Partner
) -> None:
    call = a_call()
    reference = hotels.order(call, BODY)
    assert reference.startswith("HO-")
    assert hotels.order(call, BODY) == reference


def test_a_partner_that_cannot_be_reached_has_certainly_done_nothing(
    monkeypatch: pytest.MonkeyPatch, hotels: Partner
) -> None:
    monkeypatch.setenv("ATALAIA_TRAVEL_HOTELS_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(RetryLater, match="hotels cannot be reached"):
        hotels.order(a_call(), BODY)
    assert isinstance(hotels.find(a_call(), BODY), Unclear)
    assert isinstance(hotels.close(a_call(), BODY), Unclear)


@pytest.mark.proves("D-15")
@pytest.mark.parametrize(
    ("faults", "signal"),
    [
        ({"lost_reply": {}}, OutcomeUnknown),
        ({"cached_500": {}}, OutcomeUnknown),
        ({"in_flight_409": {}}, OutcomeUnknown),
        ({"throttle_429": {"retry_after": 3}}, RetryLater),
        ({"down": {}}, RetryLater),
        ({"down": {"mode": "drop"}}, OutcomeUnknown),
        ({"sold_out": {}}, PermanentFailure),
    ],
)
def test_each_fault_is_understood(
    remote: PartnerProcess, hotels: Partner, faults: dict[str, Any], signal: type[Exception]
) -> None:
    remote.switch(**faults)
    with pytest.raises(signal):
        hotels.order(a_call(), BODY)


@pytest.mark.proves("SAS-08")
def test_an_answer_that_takes_longer_than_the_time_left_is_unknown(
    remote: PartnerProcess, hotels: Partner
) -> None:
    remote.switch(slow={"after": 10})
    call = a_call(time_left=timedelta(seconds=1))
    with pytest.raises(OutcomeUnknown, match="ReadTimeout"):
        hotels.order(call, BODY)
    remote.switch()
    assert isinstance(hotels.find(call, BODY), Applied)


@pytest.mark.parametrize("left", [timedelta(0), timedelta(seconds=-5)])
def test_nothing_is_sent_when_no_time_is_left(
    remote: PartnerProcess, hotels: Partner, left: timedelta
) -> None:
    call = a_call(time_left=left)
    with pytest.raises(RetryLater, match="no time is left"):
        hotels.order(call, BODY)
    assert call.key not in remote.books()["deliveries"]


class TestFind:
    def test_applied(self, remote: PartnerProcess, hotels: Partner) -> None:
        call = a_call()
        reference = hotels.order(call, BODY)
        assert hotels.find(call, BODY) == Applied(reference)

    def test_absent(self, remote: PartnerProcess, hotels: Partner) -> None:
        assert hotels.find(a_call(), BODY) == Absent()

    def test_rejected(self, remote: PartnerProcess, hotels: Partner) -> None:
        remote.switch(sold_out={})
        call = a_call()
        with pytest.raises(PermanentFailure):
            hotels.order(call, BODY)
        assert hotels.find(call, BODY) == Rejected("sold_out")

    def test_a_conflict_names_what_differs(self, remote: PartnerProcess, hotels: Partner) -> None:
        call = a_call()
        hotels.order(call, BODY)
        other = BODY | {"item": "OPO"}
        with pytest.raises(OutcomeUnknown, match="key_reused"):
            hotels.order(call, other)
        assert hotels.find(call, other) == Conflict("the key stands for an order with other item")

    def test_pending(self, remote: PartnerProcess, hotels: Partner) -> None:
        remote.switch(slow={"before": 0.5, "count": 1})
        call = a_call()
        with ThreadPoolExecutor(1) as pool:
            action = pool.submit(hotels.order, call, BODY)
            eventually(
                lambda: hotels.find(call, BODY) == Pending(), within=10, describe="it is pending"
            )
            assert action.result().startswith("HO-")

    def test_unclear_when_the_partner_is_down(
        self, remote: PartnerProcess, hotels: Partner
    ) -> None:
        remote.switch(down={})
        assert isinstance(hotels.find(a_call(), BODY), Unclear)


class TestCloseAndCancel:
    def test_a_closed_key_is_found_closed_and_refused(
        self, remote: PartnerProcess, hotels: Partner
    ) -> None:
        call = a_call()
        assert hotels.close(call, BODY) == Closed()
        assert hotels.find(call, BODY) == Closed()
        with pytest.raises(OutcomeUnknown, match="key_closed"):
            hotels.order(call, BODY)

    def test_closing_what_was_booked_gives_the_result(
        self, remote: PartnerProcess, hotels: Partner
    ) -> None:
        call = a_call()
        reference = hotels.order(call, BODY)
        assert hotels.close(call, BODY) == Applied(reference)

    def test_a_cancel_can_be_repeated(self, remote: PartnerProcess, hotels: Partner) -> None:
        call = a_call()
        hotels.order(call, BODY)
        undo = a_call(action_key=call.key)
        remote.switch(lost_reply={"on": ["cancel"], "count": 1})
        with pytest.raises(OutcomeUnknown):
            hotels.cancel(undo)
        hotels.cancel(undo)
        assert hotels.find(call, BODY) == Closed()

    def test_a_cancel_of_nothing_keeps_the_action_out(
        self, remote: PartnerProcess, hotels: Partner
    ) -> None:
        call = a_call()
        hotels.cancel(a_call(action_key=call.key))
        with pytest.raises(OutcomeUnknown, match="key_closed"):
            hotels.order(call, BODY)
        assert not [one for one in remote.books()["effects"] if one["key"] == call.key]


EXAMPLES = [
    ("flights", "flights.book", "flight", {"reference": "FL-000001", "item": "OPO-LIS"}),
    ("hotels", "hotels.book", "hotel", {"reference": "HO-000001", "item": "LIS"}),
    ("cars", "cars.book", "car", {"reference": "CA-000001", "item": "LIS"}),
    (
        "payments",
        "payments.charge",
        "payment",
        {"reference": "PA-000001", "amount": 12_50, "currency": "EUR"},
    ),
    ("mail", "mail.receipt", "receipt", {"reference": "MA-000001"}),
]


def test_the_trip_is_safe_with_these_agents() -> None:
    assert set(tasks.agents.__all__) == {service for service, *_ in EXAMPLES}
    assert set(registry.bind(trip).contracts) == {name for _, name, *_ in EXAMPLES}


@pytest.mark.parametrize(("service", "name", "step", "result"), EXAMPLES)
def test_each_agent_does_finds_closes_and_undoes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    service: str,
    name: str,
    step: str,
    result: dict[str, Any],
) -> None:
    agent, call = AGENTS[name], a_call(step=step)
    with PartnerProcess(service, tmp_path) as remote:
        monkeypatch.setenv(f"ATALAIA_TRAVEL_{service.upper()}_URL", remote.url)
        assert agent.invoke(Operation.PROBE, call) == Absent()
        made = agent.invoke(Operation.ACTION, call)
        assert agent.result_to_json(made) == result
        assert agent.invoke(Operation.PROBE, call) == Applied(made)
        assert agent.invoke(Operation.CLOSE, call) == Applied(made)
        assert agent.invoke(Operation.CLOSE, a_call(step=step)) == Closed()
        if agent.contract.compensation:
            agent.invoke(Operation.COMPENSATION, a_call(action_key=call.key, step=step), None)
            assert agent.invoke(Operation.PROBE, call) == Closed()
        (effect,) = remote.books()["effects"]
    assert (effect["saga"], effect["step"]) == ("s-1", step)
    assert (effect["cancelled_at"] is not None) == agent.contract.compensation
