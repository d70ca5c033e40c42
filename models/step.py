"""Step: one step of one saga, and everything that fences it.

``attempt`` is the fencing token: each grant of a lease raises it, and every later write names it
together with the state. The row is the outbox, too: a dispatched row whose message was lost is
found by ``wake_at`` and sent again.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Id, Instant, Json, listed, word
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

    saga_id: Mapped[UUID] = mapped_column(Id, ForeignKey("sagas.id"), primary_key=True)
    path: Mapped[str] = mapped_column(String(200), primary_key=True)
    kind: Mapped[str] = mapped_column(word())
    """``agent``, or ``watch`` for a row that looks out for, and undoes, a late effect."""
    agent: Mapped[str] = mapped_column(String(200))
    queue: Mapped[str] = mapped_column(String(200))
    direction: Mapped[str] = mapped_column(word())
    state: Mapped[str] = mapped_column(word())
    attempt: Mapped[int]
    incarnation: Mapped[int]
    """Raised only after a definite no; part of the idempotency key."""
    failure_count: Mapped[int]
    """Failed attempts in this direction; what the retry policy counts."""
    dispatch_count: Mapped[int]
    """Messages sent for the next attempt; spaces out the re-sending."""
    crash_count: Mapped[int]
    """Worker processes lost with the message before any lease was taken."""
    inquiry: Mapped[str | None] = mapped_column(word())
    """``probe`` or ``close``: what was asked last about an unknown outcome."""
    inquiry_no: Mapped[int]
    """Raised by every question; only the answer to the last one is taken."""
    asked_count: Mapped[int]
    """Questions asked about the present attempt; spaces out the asking."""
    node_id: Mapped[UUID | None] = mapped_column(Id)
    pid: Mapped[int | None]
    ready_at: Mapped[datetime | None] = mapped_column(Instant)
    """First dispatch in this direction: where schedule-to-close counts from."""
    dispatched_at: Mapped[datetime | None] = mapped_column(Instant)
    """The present dispatch: where schedule-to-start counts from."""
    doubt_at: Mapped[datetime | None] = mapped_column(Instant)
    """First send under the present key that may have taken effect; null: certainly none did."""
    granted_at: Mapped[datetime | None] = mapped_column(Instant)
    asked_at: Mapped[datetime | None] = mapped_column(Instant)
    deadline_at: Mapped[datetime | None] = mapped_column(Instant)
    wake_at: Mapped[datetime | None] = mapped_column(Instant)
    settled_at: Mapped[datetime | None] = mapped_column(Instant)
    result: Mapped[Any] = mapped_column(Json, nullable=True)
    """The action's validated result, which its compensation receives."""
    error: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """The last failure: ``{"type": …, "message": …}``."""
