"""The switches by which a partner misbehaves on purpose, as real remotes do.

Every fault may be limited to the next `count` requests, made random by `probability` with a
`seed` (the draws repeat exactly), and pointed at some operations by `on`. The whole set is
replaced at once, so a half-applied set is never seen. Durations are given in seconds.
"""

import json
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

Operation = Literal["order", "lookup", "close", "cancel"]
EVERYWHERE: frozenset[Operation] = frozenset({"order", "lookup", "close", "cancel"})
ORDERS: frozenset[Operation] = frozenset({"order"})
LOOKUPS: frozenset[Operation] = frozenset({"lookup"})
NO_TIME = timedelta(0)
Duration = Annotated[timedelta, Field(ge=NO_TIME, le=timedelta(hours=1))]


class Fault(BaseModel):
    """What every fault has: how often it strikes, and on which operations."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_timedelta="float")
    possible: ClassVar[frozenset[Operation]] = EVERYWHERE
    usual: ClassVar[frozenset[Operation]] = ORDERS

    count: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None = None
    probability: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: int = 0
    on: frozenset[Operation] = frozenset()

    @model_validator(mode="after")
    def _only_where_it_can_strike(self) -> Self:
        impossible = self.on - self.possible
        if impossible:
            raise ValueError(
                f"this fault cannot strike on {sorted(impossible)}; possible: "
                f"{sorted(self.possible)}"
            )
        return self

    def strikes_on(self, operation: Operation) -> bool:
        """Whether this operation is one of those the fault is pointed at."""
        return operation in (self.on or self.usual)


class Slow(Fault):
    """Takes its time before the effect, after it, or both."""

    before: Duration = NO_TIME
    after: Duration = NO_TIME


class LostReply(Fault):
    """Does what was asked, then drops the connection without a reply."""


class Cached500(Fault):
    """Answers 500 and keeps that answer under the key, with or without the effect made."""

    possible = ORDERS
    effect: bool = True


class InFlight409(Fault):
    """Claims that a request with this key is still being worked on."""

    possible = ORDERS


class Throttle429(Fault):
    """Turns the request away before looking at its key."""

    retry_after: Duration = timedelta(seconds=1)


class LaggingReads(Fault):
    """Look-ups see the books as they were this long ago."""

    possible = usual = LOOKUPS
    staleness: Duration


class ForgetsKeys(Fault):
    """Results older than this are forgotten: the same key executes again."""

    possible = ORDERS | LOOKUPS
    usual = ORDERS | LOOKUPS
    after: Duration


class SoldOut(Fault):
    """Refuses for a business reason, whatever the stock says."""

    possible = ORDERS


class Down(Fault):
    """Out of service: answers 503, or drops the connection at once."""

    usual = EVERYWHERE
    mode: Literal["503", "drop"] = "503"


class Hold(Fault):
    """Makes the effect, then holds the reply.

    It goes out after this long, or as soon as the switches change; a caller that is gone ends it.
    """

    possible = frozenset({"order", "cancel"})
    hold: Duration


class Faults(BaseModel):
    """The complete set of switches; whatever is not named is off."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_timedelta="float")

    slow: Slow | None = None
    lost_reply: LostReply | None = None
    cached_500: Cached500 | None = None
    in_flight_409: InFlight409 | None = None
    throttle_429: Throttle429 | None = None
    lagging_reads: LaggingReads | None = None
    forgets_keys: ForgetsKeys | None = None
    sold_out: SoldOut | None = None
    down: Down | None = None
    hold: Hold | None = None


FaultT = TypeVar("FaultT", bound=Fault)


class FaultBoard:
    """The switches as set, with what each has left; `save` keeps them over a restart."""

    def __init__(self, stored: str | None, save: Callable[[str], None]) -> None:
        self._save = save
        kept = json.loads(stored) if stored else {}
        self.faults = Faults.model_validate(kept.get("faults", {}))
        self._struck: dict[str, int] = kept.get("struck", {})
        self._draws: dict[str, int] = kept.get("draws", {})

    def replace(self, faults: Faults) -> None:
        """Set all switches at once and start their counts afresh."""
        self.faults, self._struck, self._draws = faults, {}, {}
        self._keep()

    def strikes(self, kind: type[FaultT], operation: Operation) -> FaultT | None:
        """Return the fault of this kind if it strikes now, which uses up one of its count."""
        name, fault = self._find(kind)
        if fault is None or not fault.strikes_on(operation):
            return None
        struck = self._struck.get(name, 0)
        if fault.count is not None and struck >= fault.count:
            return None
        if not self._drawn(name, fault):
            return None
        self._struck[name] = struck + 1
        self._keep()
        return fault

    def struck(self) -> dict[str, int]:
        """How often each fault struck since the switches were last set."""
        return dict(self._struck)

    def _find(self, kind: type[FaultT]) -> tuple[str, FaultT | None]:
        for name in Faults.model_fields:
            fault = getattr(self.faults, name)
            if isinstance(fault, kind):
                return name, fault
        return "", None

    def _drawn(self, name: str, fault: Fault) -> bool:
        if fault.probability >= 1:
            return True
        draw = self._draws.get(name, 0)
        self._draws[name] = draw + 1
        # Seeded by the draw's number, so that a restart continues the same sequence.
        return random.Random(f"{fault.seed}:{name}:{draw}").random() < fault.probability

    def _keep(self) -> None:
        document = {
            "faults": self.faults.model_dump(mode="json"),
            "struck": self._struck,
            "draws": self._draws,
        }
        self._save(json.dumps(document))
