"""A first workflow, as the README shows it: hold a seat, then take the money.

Run it with ``ATALAIA_AGENTS=examples.first ATALAIA_WORKFLOWS=examples.first atalaia up``.
"""

from pydantic import BaseModel

from orchestration import Step, Workflow, sequence
from tasks.agent import Call, agent


class Order(BaseModel):
    """What a guest asks for."""

    guest: str


@agent("seats.hold", idempotent=True)
def hold(call: Call[Order]) -> str:
    """Hold a seat; a real agent calls the theatre here and sends ``call.key`` along."""
    return f"row 7, held for {call.input.guest}"


@hold.compensation
def release(call: Call[Order], seat: str | None) -> None:
    """Give the seat back by ``call.action_key``; a real one may not know which seat it was."""


@agent("cards.charge", idempotent=True)
def charge(call: Call[Order]) -> str:
    """Take the money, once for one key."""
    return f"paid: {call.results['seat']}"


steps = sequence(Step("seat", agent="seats.hold"), Step("pay", agent="cards.charge", pivot=True))
first = Workflow("first", version=1, input=Order, steps=steps)
