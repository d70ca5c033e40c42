"""Payments: the traveller is charged. Every amount counts minor units (cents)."""

from datetime import timedelta
from typing import Any

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


payments.settles(charge, _order)
