"""What a simulated partner has under one key, what it returns, and what it needs around it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from pydantic import BaseModel

from orchestration.definition import Workflow
from orchestration.signals import Answer
from tasks.agent import Call
from tasks.proof.faults import Faults
from tasks.proof.record import Effect


class Made(BaseModel):
    """What an action returns."""

    made: str


class Place(Protocol):
    """What a partner needs of the world around it."""

    now: datetime
    faults: Faults
    workflow: Workflow

    def later(self, delay: timedelta, act: Callable[[], Any]) -> None:
        """Do something after ``delay``."""

    def sleep(self, seconds: float) -> None:
        """Let the calling process wait."""

    def can_wait(self) -> bool:
        """Tell whether the calling process can wait while others go on."""

    def beat(self, call: Call[Any]) -> None:
        """Send a heartbeat, if the step is one that sends any."""

    def given_up(self, saga_id: str, step: str) -> bool:
        """Tell whether a step was ended as without effect."""

    def reach(self, point: str) -> None:
        """Come to a boundary, where the calling process may stop."""

    def label(self, saga_id: str) -> str:
        """Return the short name of a saga."""

    def caller(self) -> str:
        """Return the role of the process that is calling."""


class DeclinedError(Exception):
    """What a partner's client raises where nothing was done, and nothing ever will be."""


@dataclass
class Entry:
    """What the partner has under one key of an action."""

    key: str
    saga_id: str
    step: str
    effects: list[Effect] = field(default_factory=list)
    first_at: datetime | None = None
    closed: bool = False
    answer: Answer | None = None
    """What it says of this key from now on, whoever asks."""
    pending_until: datetime | None = None
    failing: bool = False
    """It answers this key with the error that it once gave."""
    made: str = ""

    @property
    def standing(self) -> list[Effect]:
        """The effects that are not undone."""
        return [effect for effect in self.effects if effect.undone_at is None]
