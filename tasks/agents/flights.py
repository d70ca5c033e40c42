"""Flights: a seat to the destination."""

from datetime import timedelta
from typing import Any

from orchestration.workflows.trip import Booking, TripRequest
from tasks.agent import Call, agent
from tasks.agents.partner import Partner


def _booking(found: dict[str, Any]) -> Booking:
    return Booking(reference=found["reference"], item=found["request"]["item"])


def _order(call: Call[TripRequest]) -> dict[str, Any]:
    """Describe the same order for every attempt, so that one key always means one request."""
    trip = call.input
    return {
        "saga": call.saga_id,
        "step": call.step,
        "customer": trip.traveller,
        "item": f"{trip.origin}-{trip.destination}",
        "details": {"departs_on": trip.departs_on.isoformat()},
    }


flights = Partner("flights", _booking)


@agent("flights.book", queue="flights", idempotent=True, key_retention=timedelta(hours=24))
def book(call: Call[TripRequest]) -> Booking:
    """Book the flight; the partner executes once for one key."""
    booking: Booking = flights.order(call, _order(call))
    return booking


flights.settles(book, _order)
