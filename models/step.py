"""Step: one step of one saga, and everything that fences it.

``attempt`` is the fencing token: each grant of a lease raises it, and every later write names it
together with the state. The row is the outbox, too: a dispatched row whose message was lost is
found by ``wake_at`` and sent again.
"""

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, String, text

from models.base import Base, Id, Instant, Json, listed, optional, required, word
from models.states import STEP_LIVE, STEP_SETTLED, Direction, StepState

_LIVE = text(listed("state", STEP_LIVE))


class Step(Base):
    """One step. Its path is its name, or for nodes that multiply a name with an index."""

    __tablename__ = "steps"
    __table_args__ = (
        CheckConstraint(listed("state", StepState), name="state_known"),
        CheckConstraint(listed("direction", Direction), name="direction_known"),
        CheckConstraint(
            f"({listed('state', STEP_LIVE)}) = (wake_at IS NOT NULL)", name="wake_iff_live"
        ),
        CheckConstraint(
            f"({listed('state', STEP_SETTLED)}) = (settled_at IS NOT NULL)",
            name="settled_iff_settled",
        ),
        CheckConstraint(
            "(state = 'leased') = (deadline_at IS NOT NULL AND node_id IS NOT NULL)",
            name="leased_iff_held",
        ),
        CheckConstraint("(state = 'unknown') OR (inquiry IS NULL)", name="asked_only_if_unknown"),
        Index("ix_steps_wake", "state", "wake_at", postgresql_where=_LIVE, sqlite_where=_LIVE),
        Index(
            "ix_steps_held_by_node",
            "node_id",
            postgresql_where=text("state = 'leased'"),
            sqlite_where=text("state = 'leased'"),
        ),
    )

    saga_id = required(Id, ForeignKey("sagas.id"), primary_key=True)
    path = required(String(200), primary_key=True)
    kind = required(word())
    """``agent``, or ``watch`` for a row that looks out for, and undoes, a late effect."""
    agent = required(String(200))
    queue = required(String(200))
    direction = required(word())
    state = required(word())
    attempt = required(Integer)
    incarnation = required(Integer)
    """Raised only after a definite no; part of the idempotency key."""
    failure_count = required(Integer)
    """Failed attempts in this direction; what the retry policy counts."""
    dispatch_count = required(Integer)
    """Messages sent for the next attempt; spaces out the re-sending."""
    crash_count = required(Integer)
    """Worker processes lost with the message before any lease was taken."""
    inquiry = optional(word())
    """``probe`` or ``close``: what was asked last about an unknown outcome."""
    inquiry_no = required(Integer)
    """Raised by every question; only the answer to the last one is taken."""
    asked_count = required(Integer)
    """Questions asked about the present attempt; spaces out the asking."""
    node_id = optional(Id)
    pid = optional(Integer)
    ready_at = optional(Instant)
    """First dispatch in this direction: where schedule-to-close counts from."""
    dispatched_at = optional(Instant)
    """The present dispatch: where schedule-to-start counts from."""
    doubt_at = optional(Instant)
    """First send under the present key that may have taken effect; null: certainly none did."""
    granted_at = optional(Instant)
    asked_at = optional(Instant)
    deadline_at = optional(Instant)
    wake_at = optional(Instant)
    settled_at = optional(Instant)
    result = optional(Json)
    """The action's validated result, which its compensation receives."""
    error = optional(Json)
    """The last failure: ``{"type": …, "message": …}``."""
