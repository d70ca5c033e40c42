"""How the travel agents speak to real partners: what they conclude from each kind of trouble."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import pytest

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
from tasks.agent import Call
from tasks.agents.partner import Partner, TravelSettings
from tests.support.partners import PartnerProcess, free_port
from tests.support.waiting import eventually

BODY = {"saga": "s-1", "step": "hotel", "customer": "Ines", "item": "LIS"}


@dataclass
class FakeCall:
    key: str = field(default_factory=lambda: uuid4().hex)
    action_key: str = ""
    time_left: timedelta = timedelta(seconds=20)


def a_call(**fields: Any) -> Call[Any]:
    return cast("Call[Any]", FakeCall(**fields))


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
