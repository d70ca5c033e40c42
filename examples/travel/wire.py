"""What travels between a partner and its callers: orders in, replies out.

An error reply is always `{"error": {"code", "message"}}`. The code decides, never the status
alone: a partner answers 409 both for a key that is in flight and for an item that is sold out.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=120)]
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]


@dataclass(frozen=True, kw_only=True)
class Service:
    """One kind of partner: its name, the prefix of its references, the code of its refusals."""

    name: str
    prefix: str
    refusal: str
    charges: bool = False


SERVICES = {
    service.name: service
    for service in (
        Service(name="flights", prefix="FL", refusal="sold_out"),
        Service(name="hotels", prefix="HO", refusal="sold_out"),
        Service(name="cars", prefix="CA", refusal="sold_out"),
        Service(name="payments", prefix="PA", refusal="declined", charges=True),
        Service(name="mail", prefix="MA", refusal="undeliverable"),
    )
}


class Order(BaseModel):
    """One request for one effect. `amount` counts minor units (cents) of `currency`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    saga: Name
    step: Name
    customer: Name
    item: Name
    quantity: Annotated[int, Field(ge=1, le=100, strict=True)] = 1
    amount: Annotated[int, Field(ge=1, le=100_000_000, strict=True)] | None = None
    currency: Currency | None = None
    details: dict[Name, str | int] = Field(default_factory=dict, max_length=20)

    def fingerprint(self) -> str:
        """Return the digest by which two requests under one key are compared."""
        canonical = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Reply:
    """A status and a JSON object, as sent or as stored under a key."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    fresh: bool = False  # this very request made the effect


def refusal(status: int, code: str, message: str, **headers: str) -> Reply:
    """Build an error reply; header names are given with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"error": {"code": code, "message": message}}, named)
