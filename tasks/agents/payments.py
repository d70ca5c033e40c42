"""Payments: the traveller is charged. Every amount counts minor units (cents)."""

from datetime import timedelta
from typing import Any

from orchestration import Answer
from orchestration.workflows.trip import Charge, TripRequest
from tasks.agent import Call, agent
from tasks.agents.partner import Partner


def _charge(found: dict[str, Any]) -> Charge:
    asked = found["request"]
    return Charge(reference=found["reference"], amount=asked["amount"], currency=asked["currency"])


def _order(call: Call[TripRequest]) -> dict[str, Any]:
    """Describe the same order for every attempt, so that one key always means one request."""
    trip = call.input
    return {
        "saga": call.saga_id,
        "step": call.step,
        "customer": trip.traveller,
        "item": "trip",
        "amount": trip.amount,
        "currency": trip.currency,
    }


payments = Partner("payments", _charge)


@agent("payments.charge", queue="payments", idempotent=True, key_retention=timedelta(hours=24))
def charge(call: Call[TripRequest]) -> Charge:
    """Take the price of the trip from the traveller; the partner executes once for one key."""
    charged: Charge = payments.order(call, _order(call))
    return charged


@charge.probe(staleness=timedelta(seconds=2))
def find(call: Call[TripRequest]) -> Answer:
    """Ask the partner what became of the charge."""
    return payments.find(call, _order(call))


@charge.close
def void(call: Call[TripRequest]) -> Answer:
    """Have the partner refuse the charge from now on, unless it was made already."""
    return payments.close(call, _order(call))


@charge.compensation(closes_key=True)
def refund(call: Call[TripRequest], _charged: Charge | None) -> None:
    """Give the money back by the charge's key, or make sure that it is never taken."""
    payments.cancel(call)
