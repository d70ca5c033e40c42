"""The inputs and the outputs of ``decide``: what can happen to a saga, and what is then written.

A decision holds the row before and after, so the store writes exactly the difference, guarded by
the attempt and the state that the decision was taken on.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from models.states import AttemptState, Direction, Operation
from orchestration.signals import Answer
from orchestration.snapshot import SagaSnapshot, StepSnapshot


class _Unset:
    """The absence of a payload, as ``None`` is one."""


UNSET: Any = _Unset()


# --- what can happen -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Started:
    """The saga was just created."""


@dataclass(frozen=True, kw_only=True)
class Nudged:
    """Nothing happened; whatever should be under way is derived again from the rows."""


class FailureKind(StrEnum):
    """What an agent's failure says about its effect."""

    PERMANENT = "permanent"
    """Certainly no effect, and no use in repeating."""
    LATER = "later"
    """Certainly no effect; to be repeated."""
    UNKNOWN = "unknown"
    ERROR = "error"
    """An ordinary exception: classified by the retry policy, otherwise unknown."""
    INVALID_RESULT = "invalid_result"
    """The effect exists, but its result does not fit what the agent declares."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """The agent returned. ``result`` is JSON."""

    result: Any = None


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The agent raised. ``type`` is the exception's class name."""

    kind: FailureKind
    type: str
    message: str
    delay: timedelta | None = None
    result: Any = None

    @property
    def error(self) -> dict[str, Any]:
        """The failure as it is recorded."""
        return {"type": self.type, "message": self.message}


Outcome = Done | Failed


@dataclass(frozen=True, kw_only=True)
class Reported:
    """An attempt ended with its agent's own word."""

    path: str
    attempt: int
    direction: Direction
    incarnation: int
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A probe or a close was answered."""

    path: str
    inquiry_no: int
    answer: Answer


@dataclass(frozen=True, kw_only=True)
class Woken:
    """The step's wake-up time has passed."""

    path: str
    queued: bool = False
    """Its message still waits in a long queue."""
    unserved: bool = False
    """No living node knows its definition and its agent."""


@dataclass(frozen=True, kw_only=True)
class Hastened:
    """The partner of a step has rung: there is news. What it is, is asked and not believed."""

    path: str


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The process that held the lease of this attempt is gone."""

    path: str
    attempt: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """A worker process died with the message of this attempt before it took the lease."""

    path: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class DeadlinePassed:
    """The saga's deadline has passed."""


@dataclass(frozen=True, kw_only=True)
class Cancelled:
    """Somebody asked for the saga to be undone."""

    by: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Distrusted:
    """The database has lost commits: whatever it says was never sent may have been."""

    by: str
    reason: str


class Remedy(StrEnum):
    """What an operator can decide about a step that waits for one."""

    RETRY = "retry"
    PROBE = "probe"
    CLOSE = "close"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    COMPENSATED = "compensated"
    SKIP = "skip"
    ACKNOWLEDGE = "acknowledge"


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """An operator decided."""

    path: str
    remedy: Remedy
    by: str
    reason: str
    result: Any = UNSET


Event = (
    Started
    | Nudged
    | Reported
    | Answered
    | Woken
    | Hastened
    | Lost
    | Crashed
    | DeadlinePassed
    | Cancelled
    | Distrusted
    | Resolved
)


# --- what is then written --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MoveStep:
    """Change a step row, if it still has the attempt and the state of ``before``."""

    before: StepSnapshot
    after: StepSnapshot
    verb: str
    why: str
    row: str | None = None
    closes: AttemptState | None = None
    """How the open attempt ends, if this move ends it."""
    result: Any = UNSET
    quiet: bool = False
    """Told by the attempts already; not to be journaled."""
    answer: str | None = None
    """The kind of the answer that a row of the table was applied to."""


@dataclass(frozen=True, kw_only=True)
class OpenAttempt:
    """Insert the attempt of a step that is leased in the same transaction."""

    step: StepSnapshot
    """As it is once it is leased."""
    node: str


@dataclass(frozen=True, kw_only=True)
class AddStep:
    """Insert a row that watches for, or undoes, a late effect."""

    step: StepSnapshot
    why: str
    row: str
    result: Any = None
    copy_result_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class MoveSaga:
    """Change the saga row."""

    before: SagaSnapshot
    after: SagaSnapshot
    verb: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Send:
    """Tell an agent that there is something to do. A hint: the row decides."""

    operation: Operation
    path: str
    agent: str
    number: int
    """The attempt that the grant will open, or the number of the inquiry."""


@dataclass(frozen=True, kw_only=True)
class OpenIncident:
    """Ask for a human, once for each path and kind."""

    path: str
    kind: str
    message: str


@dataclass(frozen=True, kw_only=True)
class CloseIncidents:
    """The question of a path has been answered; ``kind`` narrows it to one."""

    path: str
    resolution: str
    by: str
    reason: str
    kind: str | None = None


@dataclass(frozen=True, kw_only=True)
class Refuse:
    """A write that came too late changes nothing; it is named, counted and kept as evidence."""

    path: str
    attempt: int
    name: str
    evidence: dict[str, Any] = field(default_factory=dict)
    to_attempt: bool = False
    """Whether the evidence belongs to an attempt row."""


Decision = (
    MoveStep | OpenAttempt | AddStep | MoveSaga | Send | OpenIncident | CloseIncidents | Refuse
)


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """One message for the broker: ids only."""

    saga_id: UUID
    path: str
    number: int
    name: str
    queue: str
    time_limit: timedelta | None
