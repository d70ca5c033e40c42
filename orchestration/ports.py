"""What the decided part asks of the executed part."""

from collections.abc import Sequence
from typing import Protocol

from orchestration.events import Dispatch


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
