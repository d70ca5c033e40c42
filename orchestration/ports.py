"""What the decided part asks of the executed part, and of chance."""

import secrets
import time
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from orchestration.events import Dispatch


def new_saga_id() -> UUID:
    """Return a UUID of version 7 (RFC 9562): its order is roughly the order of starts."""
    milliseconds = time.time_ns() // 1_000_000
    value = milliseconds << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


class Dispatcher(Protocol):
    """The broker: a doorbell that may lie. Nothing is true because a message was sent or not."""

    def publish(self, dispatches: Sequence[Dispatch]) -> None:
        """Send each message. Never raises: what was not sent is sent again by the supervisor."""

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in ``queue``, or ``None`` if that cannot be told."""


class Clock(Protocol):
    """A process's own clock, for durations only; the module ``time`` is one."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""


class SilentDispatcher:
    """Sends nothing; the supervisor's redelivery does it all, only later."""

    def publish(self, dispatches: Sequence[Dispatch]) -> None:
        """Do nothing."""

    def depth(self, queue: str) -> int | None:
        """Know nothing."""
        del queue
        return None
