"""Mail: the receipt. It goes out after the pivot, so it is only ever repeated, never undone."""

from datetime import timedelta
from typing import Any

from orchestration.workflows.trip import Receipt, TripRequest
from tasks.agent import Call, agent
from tasks.agents.partner import Partner


def _receipt(found: dict[str, Any]) -> Receipt:
    return Receipt(reference=found["reference"])


def _order(call: Call[TripRequest]) -> dict[str, Any]:
    """Describe the same order for every attempt, so that one key always means one request."""
    return {
        "saga": call.saga_id,
        "step": call.step,
        "customer": call.input.traveller,
        "item": "receipt",
        "details": {"payment": call.results["payment"]["reference"]},
    }


mail = Partner("mail", _receipt)


@agent("mail.receipt", queue="mail", idempotent=True, key_retention=timedelta(hours=24))
def receipt(call: Call[TripRequest]) -> Receipt:
    """Send the traveller a receipt; the partner sends once for one key."""
    sent: Receipt = mail.order(call, _order(call))
    return sent


mail.settles(receipt, _order, undoes=False)
