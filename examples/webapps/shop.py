"""What the three web apps have in common: an order is paid at a bank that answers late.

The bank stands for a service that accepts a payment, decides hours later and then calls a webhook.
Here it is a folder with one file for each payment, in which its decision can be written by hand.
"""

from pathlib import Path

from pydantic import BaseModel, Field

from orchestration import (
    Absent,
    Answer,
    Applied,
    OutcomeUnknown,
    Pending,
    Rejected,
    Step,
    Workflow,
    sequence,
)
from orchestration.settings import settings
from tasks.agent import Call, agent

CREDIT = 1000
"""What one order may cost; an app that finds it to be too much rolls everything back."""
ACCEPTED, PAID, REFUSED = "accepted", "paid", "refused"


class Order(BaseModel):
    """What a customer asks for."""

    number: int = Field(ge=1)
    article: str
    amount: int = Field(ge=1)


def bank(key: str) -> Path:
    """Return the file of the payment that the bank knows by ``key``."""
    folder = settings().home / "bank"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / key


@agent("shelf.reserve", queue="shelf", idempotent=True)
def reserve(call: Call[Order]) -> str:
    """Keep the article for this order."""
    return f"one {call.input.article}"


@reserve.compensation
def put_back(call: Call[Order], kept: str | None) -> None:
    """Put the article back."""


@agent("bank.pay", queue="bank", idempotent=True)
def pay(call: Call[Order]) -> str:
    """Ask the bank for the money. A real one is told here which webhook it shall call."""
    payment = bank(call.key)
    if not payment.exists():
        payment.write_text(ACCEPTED)
    raise OutcomeUnknown("the bank has accepted it and decides later")


@pay.probe
def decision(call: Call[Order]) -> Answer:
    """Ask the bank what it has decided."""
    payment = bank(call.key)
    match payment.read_text().strip() if payment.exists() else None:
        case None:
            return Absent()
        case word if word == PAID:
            return Applied(f"{call.input.amount} paid")
        case word if word == REFUSED:
            return Rejected("the bank has refused it")
    return Pending()


order = Workflow(
    "order",
    version=1,
    input=Order,
    steps=sequence(
        Step("goods", agent="shelf.reserve"), Step("payment", agent="bank.pay", pivot=True)
    ),
)
