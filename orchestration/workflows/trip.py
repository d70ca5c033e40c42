"""The reference workflow: book a trip, take the money, send the receipt.

Flight and hotel are booked at the same time, then the car. Up to the payment everything can be
undone; once the traveller was charged there is only forward.
"""

from datetime import date, timedelta
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from orchestration.definition import RetryPolicy, Step, Workflow, parallel, sequence

Person = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f]+$"
    ),
]
"""A name in any script, on one line: a control character is never part of one."""
Place = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
"""An IATA location code."""
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
"""An ISO 4217 code."""
Amount = Annotated[int, Field(ge=1, le=10_000_000, strict=True)]
"""Money in minor units (cents), never a fraction."""
Reference = Annotated[str, StringConstraints(min_length=1, max_length=100)]
"""What the partner calls the thing that it made."""


class TripRequest(BaseModel):
    """What a traveller asks for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    traveller: Person
    origin: Place
    destination: Place
    departs_on: date
    nights: Annotated[int, Field(ge=1, le=30, strict=True)]
    amount: Amount
    currency: Currency = "EUR"

    @model_validator(mode="after")
    def _goes_somewhere(self) -> Self:
        if self.origin == self.destination:
            raise ValueError("origin and destination must differ")
        return self


class Booking(BaseModel):
    """A seat, a room or a car that a partner keeps for the traveller."""

    model_config = ConfigDict(frozen=True)

    reference: Reference
    item: str


class Charge(BaseModel):
    """Money taken from the traveller, in minor units."""

    model_config = ConfigDict(frozen=True)

    reference: Reference
    amount: Amount
    currency: Currency


class Receipt(BaseModel):
    """The letter that says what was paid."""

    model_config = ConfigDict(frozen=True)

    reference: Reference


trip = Workflow(
    "trip",
    version=1,
    input=TripRequest,
    deadline=timedelta(hours=1),
    steps=sequence(
        parallel(
            Step("flight", agent="flights.book", timeout=timedelta(minutes=5)),
            Step(
                "hotel",
                agent="hotels.book",
                timeout=timedelta(minutes=5),
                retry=RetryPolicy(max_attempts=4),
            ),
        ),
        Step("car", agent="cars.book"),
        Step("payment", agent="payments.charge", pivot=True),
        Step("receipt", agent="mail.receipt"),
    ),
)
