"""The travel partners as real processes: their promises, each of their faults, and SIGKILL."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.partners import PartnerProcess
from tests.support.waiting import eventually

BOOKING = {
    "saga": "s-1",
    "step": "hotel",
    "customer": "Ines",
    "item": "LIS",
    "quantity": 1,
}
CHARGE = {
    "saga": "s-1",
    "step": "payment",
    "customer": "Ines",
    "item": "trip",
    "amount": 12_50,
    "currency": "EUR",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartnerProcess]:
    with PartnerProcess("hotels", tmp_path_factory.mktemp("books"), {"SOLD": 0}) as partner:
        yield partner


@pytest.fixture
def hotels(shared: PartnerProcess) -> Iterator[PartnerProcess]:
    """One process for all tests that do not kill it; each test uses keys of its own."""
    yield shared
    shared.switch()


def a_key() -> str:
    return uuid4().hex


def order(
    partner: PartnerProcess, key: str, *, expires_in: float | None = None, **changes: Any
) -> httpx.Response:
    headers = {"Idempotency-Key": key}
    if expires_in is not None:
        headers["Atalaia-Expires-In"] = str(expires_in)
    body = CHARGE if partner.service == "payments" else BOOKING
    return partner.http.post("/orders", json=body | changes, headers=headers)


def find(partner: PartnerProcess, key: str) -> httpx.Response:
    return partner.http.get(f"/orders/by-key/{key}")


def until_found(partner: PartnerProcess, key: str, status: int) -> None:
    eventually(
        lambda: find(partner, key).status_code == status,
        within=15,
        describe=f"the look-up answers {status}",
    )


def close(partner: PartnerProcess, key: str) -> httpx.Response:
    return partner.http.post(f"/orders/by-key/{key}/close")


def cancel(partner: PartnerProcess, key: str, cancel_key: str) -> httpx.Response:
    path = f"/orders/by-key/{key}/cancel"
    return partner.http.post(path, headers={"Idempotency-Key": cancel_key})


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def effects(partner: PartnerProcess, key: str) -> list[dict[str, Any]]:
    return [effect for effect in partner.books()["effects"] if effect["key"] == key]


class TestKeys:
    def test_the_same_request_is_answered_with_the_stored_first_result(
        self, hotels: PartnerProcess
    ) -> None:
        key = a_key()
        first, second = order(hotels, key), order(hotels, key)
        assert first.status_code == second.status_code == 201
        assert first.json() == second.json()
        assert "Idempotent-Replayed" not in first.headers
        assert second.headers["Idempotent-Replayed"] == "true"
        assert len(effects(hotels, key)) == 1
        assert hotels.books()["deliveries"][key] == 2

    def test_another_request_under_the_key_is_refused(self, hotels: PartnerProcess) -> None:
        key = a_key()
        order(hotels, key)
        assert code(order(hotels, key, item="OPO")) == (422, "key_reused")
        assert len(effects(hotels, key)) == 1

    def test_a_missing_key_is_refused(self, hotels: PartnerProcess) -> None:
        assert code(hotels.http.post("/orders", json=BOOKING)) == (400, "key_missing")

    @pytest.mark.parametrize(
        "change",
        [{"quantity": 0}, {"quantity": "1"}, {"amount": -5}, {"item": " "}, {"colour": "red"}],
    )
    def test_an_invalid_order_is_refused_and_not_stored(
        self, hotels: PartnerProcess, change: dict[str, Any]
    ) -> None:
        key = a_key()
        assert code(order(hotels, key, **change)) == (400, "invalid_request")
        assert find(hotels, key).status_code == 404
        assert order(hotels, key).status_code == 201

    def test_two_simultaneous_requests_with_one_key_execute_once(
        self, hotels: PartnerProcess
    ) -> None:
        for _ in range(10):
            key, start = a_key(), threading.Barrier(4)

            def race(key: str = key, start: threading.Barrier = start) -> httpx.Response:
                start.wait()
                return order(hotels, key)

            with ThreadPoolExecutor(4) as pool:
                answers = [future.result() for future in [pool.submit(race) for _ in range(4)]]
            assert {answer.status_code for answer in answers} <= {201, 409}
            assert len({a.text for a in answers if a.status_code == 201}) == 1
            assert len(effects(hotels, key)) == 1

    def test_a_request_past_its_lifetime_has_no_effect(self, hotels: PartnerProcess) -> None:
        key = a_key()
        assert code(order(hotels, key, expires_in=0)) == (408, "request_expired")
        assert find(hotels, key).status_code == 404
        hotels.switch(slow={"before": 0.2})
        assert code(order(hotels, key, expires_in=0.1)) == (408, "request_expired")
        hotels.switch()
        assert order(hotels, key, expires_in=5).status_code == 201

    def test_a_look_up_names_the_order_so_that_a_conflict_can_be_seen(
        self, hotels: PartnerProcess
    ) -> None:
        key = a_key()
        assert code(find(hotels, key)) == (404, "absent")
        booked = order(hotels, key).json()
        found = find(hotels, key).json()
        assert found == booked
        assert found["state"] == "applied"
        assert found["request"].items() >= BOOKING.items()


class TestClosing:
    def test_a_closed_key_never_takes_effect(self, hotels: PartnerProcess) -> None:
        key = a_key()
        assert close(hotels, key).json() == {"state": "closed"}
        assert code(order(hotels, key)) == (410, "key_closed")
        assert find(hotels, key).json() == {"state": "closed"}
        assert close(hotels, key).json() == {"state": "closed"}
        assert effects(hotels, key) == []

    def test_closing_what_was_applied_says_so_and_changes_nothing(
        self, hotels: PartnerProcess
    ) -> None:
        key = a_key()
        booked = order(hotels, key).json()
        assert close(hotels, key).json() == booked
        assert order(hotels, key).status_code == 201

    def test_closing_stops_an_order_that_is_being_worked_on(self, hotels: PartnerProcess) -> None:
        key = a_key()
        hotels.switch(slow={"before": 0.5})
        with ThreadPoolExecutor(1) as pool:
            action = pool.submit(order, hotels, key)
            until_found(hotels, key, 202)
            assert close(hotels, key).json() == {"state": "closed"}
            assert code(action.result()) == (410, "key_closed")
        assert effects(hotels, key) == []

    def test_a_close_that_races_with_the_order_has_one_winner(self, hotels: PartnerProcess) -> None:
        for _ in range(10):
            key, start = a_key(), threading.Barrier(2)

            def act(key: str = key, start: threading.Barrier = start) -> httpx.Response:
                start.wait()
                return order(hotels, key)

            with ThreadPoolExecutor(1) as pool:
                action = pool.submit(act)
                start.wait()
                closed = close(hotels, key).json()["state"] == "closed"
                assert action.result().status_code == (410 if closed else 201)
            assert len(effects(hotels, key)) == (0 if closed else 1)


class TestCancelling:
    def test_a_cancel_undoes_the_effect_once_and_closes_the_key(
        self, hotels: PartnerProcess
    ) -> None:
        key, undo = a_key(), a_key()
        reference = order(hotels, key).json()["reference"]
        first, second = cancel(hotels, key, undo), cancel(hotels, key, undo)
        assert first.json() == second.json() == {"state": "cancelled", "references": [reference]}
        assert second.headers["Idempotent-Replayed"] == "true"
        assert code(order(hotels, key)) == (410, "key_closed")
        assert find(hotels, key).json() == {"state": "cancelled"}
        (effect,) = effects(hotels, key)
        assert effect["cancelled_at"] >= effect["created_at"]
        assert effect["cancel_key"] == undo

    def test_a_cancel_that_overtakes_the_action_closes_its_key(
        self, hotels: PartnerProcess
    ) -> None:
        key = a_key()
        assert cancel(hotels, key, a_key()).json() == {"state": "closed", "references": []}
        assert code(order(hotels, key)) == (410, "key_closed")
        assert effects(hotels, key) == []

    def test_a_cancel_under_another_key_finds_nothing_left(self, hotels: PartnerProcess) -> None:
        key = a_key()
        order(hotels, key)
        cancel(hotels, key, a_key())
        assert cancel(hotels, key, a_key()).json() == {"state": "closed", "references": []}
        assert find(hotels, key).json() == {"state": "cancelled"}

    def test_a_cancel_key_belongs_to_one_action(self, hotels: PartnerProcess) -> None:
        undo = a_key()
        cancel(hotels, a_key(), undo)
        assert code(cancel(hotels, a_key(), undo)) == (422, "key_reused")

    def test_a_cancel_needs_a_key_of_its_own(self, hotels: PartnerProcess) -> None:
        answer = hotels.http.post(f"/orders/by-key/{a_key()}/cancel")
        assert code(answer) == (400, "key_missing")


class TestFaults:
    def test_sold_out_by_stock_is_stored_as_the_result(self, hotels: PartnerProcess) -> None:
        key = a_key()
        assert code(order(hotels, key, item="SOLD")) == (409, "sold_out")
        again = order(hotels, key, item="SOLD")
        assert code(again) == (409, "sold_out")
        assert again.headers["Idempotent-Replayed"] == "true"
        assert find(hotels, key).json()["state"] == "rejected"

    def test_sold_out_by_switch(self, hotels: PartnerProcess) -> None:
        hotels.switch(sold_out={"count": 1})
        assert code(order(hotels, a_key())) == (409, "sold_out")
        assert order(hotels, a_key()).status_code == 201

    def test_slow_before_the_effect_shows_as_pending_and_in_flight(
        self, hotels: PartnerProcess
    ) -> None:
        key = a_key()
        hotels.switch(slow={"before": 0.5, "count": 1})
        with ThreadPoolExecutor(1) as pool:
            action = pool.submit(order, hotels, key)
            until_found(hotels, key, 202)
            assert find(hotels, key).json() == {"state": "pending"}
            assert code(order(hotels, key)) == (409, "in_flight")
            assert action.result().status_code == 201

    def test_slow_after_the_effect_has_the_effect_made_already(
        self, hotels: PartnerProcess
    ) -> None:
        key = a_key()
        hotels.switch(slow={"after": 0.5})
        with ThreadPoolExecutor(1) as pool:
            action = pool.submit(order, hotels, key)
            until_found(hotels, key, 200)
            assert not action.done()
            assert action.result().status_code == 201

    def test_a_lost_reply_has_the_effect_and_no_answer(self, hotels: PartnerProcess) -> None:
        key = a_key()
        hotels.switch(lost_reply={"count": 1})
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            order(hotels, key)
        assert find(hotels, key).json()["state"] == "applied"
        assert order(hotels, key).headers["Idempotent-Replayed"] == "true"

    @pytest.mark.parametrize(("made", "state"), [(True, "applied"), (False, "rejected")])
    def test_a_500_is_kept_under_the_key_and_the_look_up_tells_the_truth(
        self, hotels: PartnerProcess, made: bool, state: str
    ) -> None:
        key = a_key()
        hotels.switch(cached_500={"count": 1, "effect": made})
        assert code(order(hotels, key)) == (500, "internal_error")
        assert code(order(hotels, key)) == (500, "internal_error")
        assert find(hotels, key).json()["state"] == state
        assert len(effects(hotels, key)) == int(made)

    def test_in_flight_is_claimed_for_the_next_n_requests(self, hotels: PartnerProcess) -> None:
        key = a_key()
        hotels.switch(in_flight_409={"count": 2})
        answers = [order(hotels, key).status_code for _ in range(3)]
        assert answers == [409, 409, 201]

    def test_throttling_comes_before_the_key_is_looked_at(self, hotels: PartnerProcess) -> None:
        key = a_key()
        order(hotels, key)
        hotels.switch(throttle_429={"count": 1, "retry_after": 2.5})
        answer = order(hotels, key)
        assert code(answer) == (429, "throttled")
        assert answer.headers["Retry-After"] == "2.5"
        assert order(hotels, key).status_code == 201

    def test_lagging_reads_see_the_books_as_they_were(self, hotels: PartnerProcess) -> None:
        key = a_key()
        order(hotels, key)
        hotels.switch(lagging_reads={"staleness": 60})
        assert code(find(hotels, key)) == (404, "absent")
        hotels.switch(lagging_reads={"staleness": 0})
        assert find(hotels, key).json()["state"] == "applied"
        cancel(hotels, key, a_key())
        made_at = datetime.fromisoformat(effects(hotels, key)[0]["created_at"])
        age = (datetime.now(UTC) - made_at).total_seconds()
        hotels.switch(lagging_reads={"staleness": age + 60})
        assert code(find(hotels, key)) == (404, "absent")

    def test_forgotten_keys_execute_again(self, hotels: PartnerProcess) -> None:
        key = a_key()
        order(hotels, key)
        hotels.switch(forgets_keys={"after": 60})
        order(hotels, key)
        assert len(effects(hotels, key)) == 1
        hotels.switch(forgets_keys={"after": 0})
        assert find(hotels, key).status_code == 404
        assert order(hotels, key).status_code == 201
        assert len(effects(hotels, key)) == 2
        assert len(cancel(hotels, key, a_key()).json()["references"]) == 2

    def test_a_closed_key_is_never_forgotten(self, hotels: PartnerProcess) -> None:
        key = a_key()
        close(hotels, key)
        hotels.switch(forgets_keys={"after": 0})
        assert code(order(hotels, key)) == (410, "key_closed")

    def test_down_refuses_everything_and_does_nothing(self, hotels: PartnerProcess) -> None:
        key = a_key()
        hotels.switch(down={})
        answers = [order(hotels, key), find(hotels, key), close(hotels, key)]
        answers.append(cancel(hotels, key, a_key()))
        assert {code(answer) for answer in answers} == {(503, "unavailable")}
        hotels.switch(down={"mode": "drop"})
        with pytest.raises(httpx.RemoteProtocolError):
            order(hotels, key)
        hotels.switch()
        assert find(hotels, key).status_code == 404
        assert key not in hotels.books()["deliveries"]

    def test_hold_makes_the_effect_and_keeps_the_reply_back(self, hotels: PartnerProcess) -> None:
        key = a_key()
        hotels.switch(hold={"hold": 60, "count": 1})
        with ThreadPoolExecutor(1) as pool:
            action = pool.submit(order, hotels, key)
            held = hotels.wait_for_hold()
            assert (held["key"], held["saga"], held["step"]) == (key, "s-1", "hotel")
            assert find(hotels, key).json()["state"] == "applied"
            assert not action.done()
            hotels.switch()
            assert action.result().status_code == 201
        assert hotels.http.get("/holds").json() == []

    def test_a_hold_ends_when_the_caller_is_gone(self, hotels: PartnerProcess) -> None:
        key = a_key()
        hotels.switch(hold={"hold": 60})
        caller = socket.create_connection(("127.0.0.1", hotels.port))
        with caller:
            body = json.dumps(BOOKING)
            caller.sendall(
                f"POST /orders HTTP/1.1\r\nHost: partner\r\nIdempotency-Key: {key}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                f"{body}".encode()
            )
            assert hotels.wait_for_hold()["key"] == key
        eventually(
            lambda: hotels.http.get("/holds").json() == [],
            within=10,
            describe="the partner lets go of the reply",
        )
        assert len(effects(hotels, key)) == 1

    def test_a_fault_can_be_pointed_at_an_operation(self, hotels: PartnerProcess) -> None:
        key = a_key()
        hotels.switch(lost_reply={"on": ["cancel"]})
        assert order(hotels, key).status_code == 201
        undo = a_key()
        with pytest.raises(httpx.RemoteProtocolError):
            cancel(hotels, key, undo)
        hotels.switch()
        assert cancel(hotels, key, undo).headers["Idempotent-Replayed"] == "true"

    def test_random_faults_repeat_with_their_seed(self, hotels: PartnerProcess) -> None:
        def draws(seed: int) -> list[int]:
            hotels.switch(sold_out={"probability": 0.5, "seed": seed})
            return [order(hotels, a_key()).status_code for _ in range(20)]

        first = draws(7)
        assert set(first) == {201, 409}
        assert draws(7) == first
        assert draws(8) != first

    @pytest.mark.parametrize(
        "faults",
        [
            {"gremlins": {}},
            {"slow": {"before": -1}},
            {"slow": {"count": 0}},
            {"down": {"mode": "maybe"}},
            {"lost_reply": {"probability": 2}},
            {"cached_500": {"on": ["lookup"]}},
            {"hold": {}},
        ],
    )
    def test_bad_switches_are_refused_and_the_old_ones_stay(
        self, hotels: PartnerProcess, faults: dict[str, Any]
    ) -> None:
        hotels.switch(throttle_429={"retry_after": 3})
        assert code(hotels.http.put("/faults", json=faults)) == (400, "invalid_request")
        kept = hotels.http.get("/faults").json()["faults"]
        assert kept["throttle_429"]["retry_after"] == 3
        assert list(kept) == ["throttle_429"]


class TestMoney:
    def test_a_charge_and_its_refund_balance(self, tmp_path: Path) -> None:
        with PartnerProcess("payments", tmp_path) as payments:
            key = a_key()
            reference = order(payments, key).json()["reference"]
            cancel(payments, key, a_key())
            moves = [
                (move["debit"], move["credit"], move["amount"], move["currency"])
                for move in payments.books()["transfers"]
                if move["reference"] == reference
            ]
            assert moves == [
                ("customer:Ines", "merchant", 1250, "EUR"),
                ("merchant", "customer:Ines", 1250, "EUR"),
            ]
            for part in ("amount", "currency"):
                assert code(order(payments, a_key(), **{part: None})) == (400, "invalid_request")
            payments.switch(sold_out={})
            assert code(order(payments, a_key())) == (409, "declined")


class TestSigkill:
    def test_everything_answered_survives(self, tmp_path: Path) -> None:
        partner = PartnerProcess("hotels", tmp_path, {"LIS": 1})
        with partner:
            key, closed = a_key(), a_key()
            booked = order(partner, key).json()
            close(partner, closed)
            partner.switch(throttle_429={"count": 2})
            order(partner, key)
            before = partner.books()
        with partner:
            assert partner.books() == before
            assert partner.http.get("/faults").json()["struck"] == {"throttle_429": 1}
            assert order(partner, key).status_code == 429
            assert order(partner, key).json() == booked
            assert code(order(partner, closed)) == (410, "key_closed")
            assert code(order(partner, a_key())) == (409, "sold_out")
            cancel(partner, key, a_key())
            assert order(partner, a_key()).status_code == 201

    def test_a_kill_after_the_effect_and_before_the_reply_keeps_the_effect(
        self, tmp_path: Path
    ) -> None:
        partner = PartnerProcess("hotels", tmp_path)
        with partner, ThreadPoolExecutor(1) as pool:
            key = a_key()
            partner.switch(hold={"hold": 60, "count": 1})
            action = pool.submit(order, partner, key)
            partner.wait_for_hold()
            assert partner.process is not None
            partner.process.kill()
            assert isinstance(action.exception(), httpx.TransportError)
        with partner:
            assert find(partner, key).json()["state"] == "applied"
            assert len(effects(partner, key)) == 1

    def test_a_kill_before_the_effect_leaves_nothing(self, tmp_path: Path) -> None:
        partner = PartnerProcess("hotels", tmp_path)
        with partner, ThreadPoolExecutor(1) as pool:
            key = a_key()
            partner.switch(slow={"before": 60, "count": 1})
            action = pool.submit(order, partner, key)
            until_found(partner, key, 202)
            assert partner.process is not None
            partner.process.kill()
            assert isinstance(action.exception(), httpx.TransportError)
        with partner:
            assert find(partner, key).status_code == 404
            assert order(partner, key).status_code == 201
