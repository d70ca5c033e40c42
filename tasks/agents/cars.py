"""Cars: one car for the days of the stay."""

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
        "item": trip.destination,
        "details": {"from": trip.departs_on.isoformat(), "days": trip.nights},
    }


cars = Partner("cars", _booking)


@agent("cars.book", queue="cars", idempotent=True, key_retention=timedelta(hours=24))
def book(call: Call[TripRequest]) -> Booking:
    """Book the car; the partner executes once for one key."""
    booking: Booking = cars.order(call, _order(call))
    return booking


cars.settles(book, _order)
