"""What is read from a database and the partners' books: the invariants look at all of it."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from models.states import SagaState
from tests.support.core import Core, line
from tests.support.invariants import check
from tests.support.records import assert_all_hold, record_of


class Payments:
    """The books of a partner that charges, written by the test."""

    def __init__(self) -> None:
        self.effects: list[Any] = []
        self.transfers: list[Any] = []

    def charge(self, saga: str, step: str, key: str, at: datetime) -> None:
        self.effects.append(
            {
                "saga": saga, "step": step, "key": key, "reference": f"PA-{len(self.effects)}",
                "created_at": at.isoformat(), "cancelled_at": None, "request": {"amount": 700},
            }
        )  # fmt: skip
        self.move("customer:Ada", "merchant")

    def refund(self, at: datetime) -> None:
        self.effects[-1]["cancelled_at"] = at.isoformat()
        self.move("merchant", "customer:Ada")

    def move(self, debit: str, credit: str) -> None:
        moved = {"reference": self.effects[-1]["reference"], "amount": 700}
        self.transfers.append(moved | {"debit": debit, "credit": credit})

    @property
    def books(self) -> dict[str, Any]:
        return {"service": "payments", "effects": self.effects, "transfers": self.transfers}


@pytest.fixture
def core(engine: Engine) -> Core:
    return Core(engine, line("a", "b"))


@pytest.fixture
def payments(core: Core) -> Payments:
    """A saga that is completed and one that is cancelled, and the books that fit them."""
    payments = Payments()
    completed, cancelled = core.start(), core.start()
    for saga, path in (completed, "a"), (completed, "b"), (cancelled, "a"):
        work = core.take(saga, path)
        payments.charge(str(saga), path, work.key, core.now)
        core.report(work)
    core.scheduler.cancel(cancelled, by="ada")
    work = core.later(seconds=1).take(cancelled, "a")
    payments.refund(core.now)
    core.report(work)
    assert [row.state for row in map(core.saga, (completed, cancelled))] == [
        SagaState.COMPLETED,
        SagaState.CANCELLED,
    ]
    return payments


def test_books_that_fit_the_rows_violate_nothing(core: Core, payments: Payments) -> None:
    assert_all_hold(core.store, [payments.books])


def twice(payments: Payments) -> None:
    payments.effects.append(payments.effects[0])
    payments.transfers.append(payments.transfers[0])


def never(payments: Payments) -> None:
    del payments.effects[1], payments.transfers[1]


def not_undone(payments: Payments) -> None:
    payments.effects[2]["cancelled_at"] = None
    del payments.transfers[3]


def too_early(payments: Payments) -> None:
    at = datetime.fromisoformat(payments.effects[0]["created_at"]) - timedelta(seconds=1)
    payments.effects[0]["created_at"] = at.isoformat()


def undone_too_early(payments: Payments) -> None:
    payments.effects[2]["cancelled_at"] = payments.effects[2]["created_at"]


def not_paid(payments: Payments) -> None:
    del payments.transfers[1]


def paid_for_nothing(payments: Payments) -> None:
    payments.transfers.append(payments.transfers[0] | {"reference": "PA-unknown"})


def not_paid_back(payments: Payments) -> None:
    del payments.transfers[3]


@pytest.mark.parametrize(
    ("wrong", "invariants"),
    [
        (twice, {"INV-1", "INV-2", "INV-9"}),
        (never, {"INV-2"}),
        (not_undone, {"INV-3", "INV-9"}),
        (too_early, {"INV-7"}),
        (undone_too_early, {"INV-7"}),
        (not_paid, {"INV-9"}),
        (not_paid_back, {"INV-9"}),
        (paid_for_nothing, {"INV-9"}),
    ],
)
def test_whatever_is_wrong_in_the_books_is_a_violation(
    core: Core, payments: Payments, wrong: Callable[[Payments], None], invariants: set[str]
) -> None:
    wrong(payments)
    found = check(record_of(core.store, [payments.books]))
    assert {violation.invariant for violation in found} == invariants


def test_a_saga_that_has_not_ended_is_a_violation_only_when_all_is_at_rest(core: Core) -> None:
    core.start()
    assert [v.invariant for v in check(record_of(core.store, []))] == ["INV-11"]
    assert check(record_of(core.store, [], settled=False)) == []


def test_effects_for_sagas_of_another_database_are_left_out(core: Core, payments: Payments) -> None:
    payments.charge("another", "a", "key", core.now)
    assert_all_hold(core.store, [payments.books])
