"""The states of sagas, steps and attempts, and the only moves that are legal between them.

Standard library only, so that the pure core, the tables and the documents can share it. The tables
below are the single place that says which states exist; ``docs/state-machine.md`` is checked
against them and the database refuses rows that contradict them.
"""

from enum import StrEnum


class SagaState(StrEnum):
    """Where one saga stands. Listed in the order of a life."""

    RUNNING = "running"
    """Going forward. Entered at the start and from halted; left when all steps are settled."""
    COMPENSATING = "compensating"
    """Undoing. Entered when a step failed for good, on cancel, and at the deadline."""
    HALTED = "halted"
    """Nothing moves until an operator resolves an incident."""
    COMPLETED = "completed"
    """Terminal: every step took effect, or was allowed not to."""
    COMPENSATED = "compensated"
    """Terminal: the net effect of every step is zero."""
    CANCELLED = "cancelled"
    """Terminal: as compensated, because somebody asked for it."""


class StepState(StrEnum):
    """Where one step stands, whichever direction it is going in."""

    WAITING = "waiting"
    """Not yet started: its predecessors are not complete.

    After the database has lost commits it may have been sent all the same, and is then asked about
    before it is sent.
    """
    DISPATCHED = "dispatched"
    """Committed to be run and sent to the broker; nobody has taken the lease. Nothing was sent."""
    LEASED = "leased"
    """An agent holds the lease of the current attempt and may have called the remote service."""
    RETRYING = "retrying"
    """Waits for its back-off to end; the supervisor dispatches it again."""
    UNKNOWN = "unknown"
    """The outcome of the last attempt is not known; a probe or a close is to find out."""
    HALTED = "halted"
    """Parked: an operator must decide. It has exactly one open incident."""
    SUCCEEDED = "succeeded"
    """The effect exists and its result is recorded. Left only towards its compensation."""
    FAILED = "failed"
    """Terminal: certainly without effect, and not to be tried again."""
    SKIPPED = "skipped"
    """Terminal: never sent, because the saga turned back first."""
    ABANDONED = "abandoned"
    """Terminal: declared at-most-once and the outcome was never learnt."""
    COMPENSATED = "compensated"
    """Terminal: the effect was undone, or it was made impossible."""


class AttemptState(StrEnum):
    """How one attempt ended. An attempt is opened by a grant and closed exactly once."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The agent reported a failure, definite or not."""
    UNKNOWN = "unknown"
    """The agent reported that it does not know."""
    EXPIRED = "expired"
    """The lease was taken back: overdue, node lost, or worker process killed."""


class Direction(StrEnum):
    """Forward is the action, backward is its compensation."""

    FORWARD = "forward"
    BACKWARD = "backward"


class Operation(StrEnum):
    """What an agent can be asked to do."""

    ACTION = "action"
    COMPENSATION = "compensation"
    PROBE = "probe"
    CLOSE = "close"


SAGA_MOVES: dict[SagaState, frozenset[SagaState]] = {
    SagaState.RUNNING: frozenset(
        {
            SagaState.COMPENSATING,
            SagaState.HALTED,
            SagaState.COMPLETED,
            SagaState.COMPENSATED,
            SagaState.CANCELLED,
        }
    ),
    SagaState.COMPENSATING: frozenset(
        {SagaState.HALTED, SagaState.COMPENSATED, SagaState.CANCELLED}
    ),
    SagaState.HALTED: frozenset(
        {
            SagaState.RUNNING,
            SagaState.COMPENSATING,
            SagaState.COMPLETED,
            SagaState.COMPENSATED,
            SagaState.CANCELLED,
        }
    ),
    SagaState.COMPLETED: frozenset(),
    SagaState.COMPENSATED: frozenset(),
    SagaState.CANCELLED: frozenset(),
}

_RESOLUTIONS = frozenset(
    {
        StepState.DISPATCHED,
        StepState.RETRYING,
        StepState.UNKNOWN,
        StepState.HALTED,
        StepState.SUCCEEDED,
        StepState.FAILED,
        StepState.ABANDONED,
        StepState.COMPENSATED,
    }
)
"""What the recovery table, or an operator, may make of a step that is in doubt."""

STEP_MOVES: dict[StepState, frozenset[StepState]] = {
    StepState.WAITING: frozenset(
        {
            StepState.DISPATCHED,
            StepState.LEASED,
            StepState.RETRYING,
            StepState.UNKNOWN,
            StepState.HALTED,
            StepState.SKIPPED,
            StepState.ABANDONED,
        }
    ),
    StepState.DISPATCHED: _RESOLUTIONS | {StepState.LEASED, StepState.SKIPPED},
    StepState.LEASED: _RESOLUTIONS,
    StepState.RETRYING: _RESOLUTIONS | {StepState.SKIPPED},
    StepState.UNKNOWN: _RESOLUTIONS | {StepState.SKIPPED},
    StepState.HALTED: _RESOLUTIONS | {StepState.SKIPPED},
    StepState.SUCCEEDED: frozenset({StepState.DISPATCHED, StepState.HALTED, StepState.COMPENSATED}),
    StepState.FAILED: frozenset(),
    StepState.SKIPPED: frozenset(),
    StepState.ABANDONED: frozenset(),
    StepState.COMPENSATED: frozenset(),
}

ATTEMPT_MOVES: dict[AttemptState, frozenset[AttemptState]] = {
    AttemptState.OPEN: frozenset(set(AttemptState) - {AttemptState.OPEN}),
    AttemptState.SUCCEEDED: frozenset(),
    AttemptState.FAILED: frozenset(),
    AttemptState.UNKNOWN: frozenset(),
    AttemptState.EXPIRED: frozenset(),
}

SAGA_TERMINAL = frozenset(state for state, moves in SAGA_MOVES.items() if not moves)
SAGA_LIVE = frozenset({SagaState.RUNNING, SagaState.COMPENSATING})

STEP_LIVE = frozenset(
    {StepState.DISPATCHED, StepState.LEASED, StepState.RETRYING, StepState.UNKNOWN}
)
"""The states in which something must happen by ``wake_at``."""

STEP_UNSETTLED = STEP_LIVE | {StepState.WAITING, StepState.HALTED}
STEP_SETTLED = frozenset(StepState) - STEP_UNSETTLED
STEP_DONE_FORWARD = frozenset({StepState.SUCCEEDED, StepState.ABANDONED})
"""Settled so that the next step of a sequence may start."""
