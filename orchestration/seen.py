"""Seen: a saga as it was read a moment ago, so that it need not be read, or locked, again.

A worker reads a saga with the lease that it is given. When it reports a moment later, nothing else
has happened to the saga, nearly always. So it is decided on what was seen then, and written only if
the saga's revision is what it was (optimistic concurrency control: Kung & Robinson 1981). If it is
not, nothing is written, and the event is decided under the saga's lock, as any other.

The present is then the database's time at the reading, and what has passed here since that was
answered. So it is never ahead of the database's, and behind it by what the answer took at most, and
by what the statement waits for a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import floor
from typing import Any

from models.states import SAGA_LIVE, STEP_LIVE
from orchestration.events import AddStep, Decision, MoveSaga, MoveStep, OpenIncident, Refuse
from orchestration.snapshot import SagaSnapshot, StepSnapshot, changed

LASTS = 5.0
"""For so many seconds a saga that was seen is worth a try without a lock."""
PROMPT = timedelta(milliseconds=50)
"""A reading that takes longer is not worth one; so far may such a present be behind at most."""
_NEEDS_ROWS = (AddStep, OpenIncident, Refuse)
"""What is written depends on rows that were not seen."""


@dataclass(frozen=True, kw_only=True)
class Locked:
    """A saga under its lock: what it is, what it runs, and the database's time."""

    saga: SagaSnapshot
    definition_id: str
    trace: str | None
    troubled: bool
    """Whether an incident of it is open."""
    now: datetime
    results: Callable[[], dict[str, Any]] = field(repr=False)
    """Reads those of its steps that have succeeded, by path."""


@dataclass(frozen=True, kw_only=True)
class Read:
    """A step with what an agent is given, and its saga, as they were at one moment."""

    step: StepSnapshot
    result: Any
    input: Any
    results: dict[str, Any]
    """Those of the steps that have succeeded, by path."""
    saga: SagaSnapshot | None
    """With all of its steps; ``None`` if they are too many to be read for one of them."""
    definition_id: str
    trace: str | None
    troubled: bool
    now: datetime


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A saga of which no incident was open. ``read_at`` is when it was, in monotonic seconds."""

    saga: SagaSnapshot
    trace: str | None
    now: datetime
    read_at: float

    def present(self, monotonic: float) -> datetime | None:
        """Return the time at which it is ``monotonic`` here; ``None`` if all that is too old."""
        passed = monotonic - self.read_at
        if not 0 <= passed <= LASTS:
            return None
        # SQLite's clock has whole milliseconds only, and time may not go back in its rows.
        digits = 6 if self.now.microsecond % 1000 else 3
        return self.now + timedelta(seconds=floor(passed * 10**digits) / 10**digits)

    def is_alone(self, path: str) -> bool:
        """Tell whether the saga is under way, and no other step of it is."""
        steps = self.saga.steps.values()
        others = any(step.state in STEP_LIVE for step in steps if step.path != path)
        return self.saga.state in SAGA_LIVE and not others

    def after(self, decisions: Sequence[Decision]) -> "Seen":
        """Return the saga as it is once ``decisions`` are written."""
        return replace(self, saga=after(self.saga, decisions))


def after(saga: SagaSnapshot, decisions: Sequence[Decision]) -> SagaSnapshot:
    """Return a saga as it is once ``decisions`` are written."""
    steps = dict(saga.steps)
    for decision in decisions:
        match decision:
            case MoveStep(after=step) | AddStep(step=step):
                steps[step.path] = step
            case MoveSaga(after=moved):
                saga = moved
    return changed(saga, steps=steps, revision=saga.revision + 1)


def needs_rows(decisions: Sequence[Decision]) -> bool:
    """Tell whether decisions can be written only by somebody who holds the saga's lock."""
    return any(isinstance(decision, _NEEDS_ROWS) for decision in decisions)
