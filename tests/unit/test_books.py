"""The auditor finds each kind of disagreement, and nothing where the books agree."""

from typing import Any

import pytest

from examples.travel.books import EXPECTED, Reconciliation, reconcile


def effect(saga: str, step: str, number: int = 1, **changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "key": f"{saga}/{step}",
        "saga": saga,
        "step": step,
        "reference": f"{step}-{saga}-{number}",
        "cancelled_at": None,
        "request": {"customer": "Ines", "amount": None, "currency": None},
    }
    if step == "payment":
        record["request"] = {"customer": "Ines", "amount": 1250, "currency": "EUR"}
    return record | changes


def cancelled(saga: str, step: str, number: int = 1) -> dict[str, Any]:
    return effect(saga, step, number, cancelled_at="2026-01-01T00:00:00.000000+00:00")


def transfer(effect: dict[str, Any], *, back: bool = False, **changes: Any) -> dict[str, Any]:
    customer = f"customer:{effect['request']['customer']}"
    debit, credit = ("merchant", customer) if back else (customer, "merchant")
    move = {"id": 1, "reference": effect["reference"], "debit": debit, "credit": credit}
    money = {"amount": effect["request"]["amount"], "currency": effect["request"]["currency"]}
    return {**move, **money, **changes}


def book(service: str, *effects: dict[str, Any], transfers: Any = None) -> dict[str, Any]:
    if transfers is None and service == "payments":
        transfers = [transfer(one) for one in effects]
        transfers += [transfer(one, back=True) for one in effects if one["cancelled_at"]]
    return {"service": service, "effects": list(effects), "transfers": transfers or []}


def books_of(*sagas: str) -> dict[str, dict[str, Any]]:
    return {
        service: book(service, *(effect(saga, step) for saga in sagas))
        for service, step in EXPECTED.items()
    }


def audit(books: dict[str, dict[str, Any]], **sagas: str) -> Reconciliation:
    return reconcile(books.values(), sagas)


def test_books_of_completed_and_undone_sagas_agree() -> None:
    books = books_of("a")
    books["flights"]["effects"].append(cancelled("b", "flight"))
    found = audit(books, a="completed", b="compensated", c="cancelled")
    assert found.agrees
    assert list(found.lines()) == []
    assert (found.effects, found.cancelled) == (6, 1)


@pytest.mark.parametrize("state", ["compensated", "cancelled"])
def test_a_live_effect_of_an_undone_saga_is_orphaned(state: str) -> None:
    found = audit({"hotels": book("hotels", effect("b", "hotel"))}, b=state)
    assert [(one.service, one.saga, one.step) for one in found.orphaned] == [
        ("hotels", "b", "hotel")
    ]
    assert not found.agrees
    (line,) = found.lines()
    assert line == (
        "orphaned effect at hotels: saga b, step hotel: "
        f"hotel-b-1 still stands, but the saga was {state}"
    )


def test_a_live_effect_of_an_unknown_saga_is_orphaned() -> None:
    found = audit({"hotels": book("hotels", effect("ghost", "hotel"))})
    assert [one.saga for one in found.orphaned] == ["ghost"]


def test_a_cancelled_effect_of_an_unknown_saga_is_harmless() -> None:
    assert audit({"hotels": book("hotels", cancelled("ghost", "hotel"))}).agrees


def test_a_live_effect_of_a_step_that_no_trip_has_is_orphaned() -> None:
    books = books_of("a")
    books["hotels"]["effects"].append(effect("a", "sauna"))
    assert [one.step for one in audit(books, a="completed").orphaned] == ["sauna"]


@pytest.mark.parametrize("service", EXPECTED)
def test_a_completed_saga_needs_every_effect(service: str) -> None:
    books = books_of("a")
    books[service] = book(service)
    found = audit(books, a="completed")
    assert [(one.service, one.step) for one in found.missing] == [(service, EXPECTED[service])]
    assert not found.agrees


def test_a_cancelled_effect_does_not_complete_a_saga() -> None:
    books = books_of("a")
    books["hotels"] = book("hotels", cancelled("a", "hotel"))
    assert [one.service for one in audit(books, a="completed").missing] == ["hotels"]


@pytest.mark.proves("D-30")
def test_a_second_execution_is_a_duplicate_even_when_it_was_cancelled() -> None:
    books = books_of("a")
    books["hotels"]["effects"].append(cancelled("a", "hotel", 2))
    found = audit(books, a="completed")
    assert [one.detail for one in found.duplicated] == ["executed 2 times (hotel-a-1, hotel-a-2)"]
    assert not found.orphaned
    assert not found.missing


@pytest.mark.parametrize("state", ["running", "compensating", "halted"])
def test_a_saga_that_has_not_ended_is_named_and_not_judged(state: str) -> None:
    found = audit({"hotels": book("hotels", effect("a", "hotel"))}, a=state)
    assert found.unsettled == ("a",)
    assert not found.orphaned
    assert not found.missing
    assert not found.agrees


class TestMoney:
    paid = effect("a", "payment")
    refunded = cancelled("a", "payment")

    @pytest.mark.proves("INV-9")
    @pytest.mark.parametrize(
        ("record", "transfers", "problem"),
        [
            (paid, [], "payment-a-1 moved no money"),
            (paid, [transfer(paid, amount=1)], "payment-a-1 moved 1 EUR instead of 1250"),
            (
                paid,
                [transfer(paid), transfer(paid)],
                "payment-a-1 moved 2500 EUR instead of 1250",
            ),
            (refunded, [transfer(paid)], "payment-a-1 moved 1250 EUR instead of 0"),
            (
                refunded,
                [transfer(paid), transfer(paid, back=True), transfer(paid, back=True)],
                "payment-a-1 moved -1250 EUR instead of 0",
            ),
            (
                paid,
                [transfer(paid), transfer(paid, reference="lost")],
                "1250 EUR of customer:Ines moved for lost, which is not in the books",
            ),
            (
                paid,
                [transfer(paid), transfer(paid, id=7, credit="pocket")],
                "transfer 7 is not between a customer and the merchant",
            ),
        ],
    )
    def test_money_that_does_not_add_up_is_found(
        self, record: dict[str, Any], transfers: list[dict[str, Any]], problem: str
    ) -> None:
        found = reconcile([book("payments", record, transfers=transfers)], {"a": "running"})
        assert found.money == (problem,)
        assert f"money: {problem}" in list(found.lines())

    def test_a_refund_to_somebody_else_is_found(self) -> None:
        moves = [transfer(self.paid), transfer(self.paid, back=True, credit="customer:Rui")]
        found = reconcile([book("payments", self.refunded, transfers=moves)], {"a": "cancelled"})
        assert len(found.money) == 2


def test_the_document_is_json_with_the_verdict() -> None:
    document = audit(books_of("a"), a="completed").document()
    assert document["agrees"] is True
    assert document["orphaned"] == ()
