"""What each answer of a partner means to the agent that asked.

Two questions are kept apart: did the effect take place, and is it worth trying again. `MEANINGS`
is data, tested row by row; what it does not name is an outcome that is not known.
"""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import httpx

from orchestration import OutcomeUnknown, PermanentFailure, RetryLater

LONGEST_RETRY_AFTER = timedelta(minutes=5)
"""A partner that asks for more patience than this is asked again all the same."""

MEANINGS: Mapping[tuple[int, str], type[RetryLater | PermanentFailure | OutcomeUnknown]] = {
    (400, "invalid_request"): PermanentFailure,
    (400, "key_missing"): PermanentFailure,
    (408, "request_expired"): RetryLater,
    (409, "declined"): PermanentFailure,
    (409, "in_flight"): OutcomeUnknown,
    (409, "sold_out"): PermanentFailure,
    (409, "undeliverable"): PermanentFailure,
    # Nothing happened, but another key may still succeed: the probe will say that it is closed.
    (410, "key_closed"): OutcomeUnknown,
    # The key stands for another request. Whether that took effect is for the probe to find out.
    (422, "key_reused"): OutcomeUnknown,
    (429, "throttled"): RetryLater,
    (503, "unavailable"): RetryLater,
}


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def code(response: httpx.Response) -> str:
    """Return the error code in the body, or an empty string."""
    error = _json(response).get("error")
    return str(error.get("code", "")) if isinstance(error, dict) else ""


def understand(response: httpx.Response) -> dict[str, Any]:
    """Return what a successful answer says; raise what any other one means."""
    content = _json(response)
    if response.is_success and "state" in content:
        return content
    name = code(response)
    meaning = MEANINGS.get((response.status_code, name), OutcomeUnknown)
    reason = f"{response.url.path} answered {response.status_code} {name or 'without a code'}"
    if meaning is RetryLater:
        raise RetryLater(reason, retry_after(response.headers.get("Retry-After")))
    raise meaning(reason)


def retry_after(header: str | None) -> timedelta | None:
    """Read a Retry-After in seconds, bounded; a date needs a common clock and is passed over."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    if not math.isfinite(seconds) or seconds < 0:
        return None
    return timedelta(seconds=min(seconds, LONGEST_RETRY_AFTER.total_seconds()))
