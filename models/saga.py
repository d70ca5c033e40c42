"""Saga: one running, or ended, instance of a workflow."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Id, Instant, Json, listed, word
from models.mysql import knows_partial_indexes, make_instead
from models.states import SAGA_LIVE, SAGA_TERMINAL, SagaState


class Saga(Base):
    """One instance. Its row is the lock under which every decision about it is taken."""

    __tablename__ = "sagas"
    __table_args__ = (
        UniqueConstraint("workflow", "key"),
        CheckConstraint(listed("state", SagaState), name="state_known"),
        CheckConstraint(
            f"({listed('state', SAGA_TERMINAL)}) = (ended_at IS NOT NULL)",
            name="ended_iff_terminal",
        ),
        CheckConstraint(
            "state NOT IN ('compensating', 'compensated', 'cancelled') OR abort IS NOT NULL",
            name="undone_for_a_reason",
        ),
        Index(
            "ix_sagas_wake",
            "wake_at",
            postgresql_where=text("wake_at IS NOT NULL"),
            sqlite_where=text("wake_at IS NOT NULL"),
        ),
        Index(
            "ix_sagas_live",
            "id",
            postgresql_where=text(listed("state", SAGA_LIVE)),
            sqlite_where=text(listed("state", SAGA_LIVE)),
        ).ddl_if(callable_=knows_partial_indexes),
        Index(
            "ix_sagas_ended",
            "ended_at",
            "id",
            postgresql_where=text("ended_at IS NOT NULL"),
            sqlite_where=text("ended_at IS NOT NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(Id, primary_key=True)
    definition_id: Mapped[str] = mapped_column(ForeignKey("definitions.id"))
    workflow: Mapped[str] = mapped_column(String(200))
    key: Mapped[str | None] = mapped_column(String(200))
    """The caller's idempotency key of the start, unique within the workflow."""
    input: Mapped[Any] = mapped_column(Json, nullable=True)
    state: Mapped[str] = mapped_column(word())
    abort: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """Why the saga turned back: ``{"reason": …, "step": …, "message": …}``; null while forward."""
    created_at: Mapped[datetime] = mapped_column(Instant)
    deadline_at: Mapped[datetime] = mapped_column(Instant)
    wake_at: Mapped[datetime | None] = mapped_column(Instant)
    """When the deadline is to be acted on; null once it was, or when the saga has ended."""
    ended_at: Mapped[datetime | None] = mapped_column(Instant)
    revision: Mapped[int] = mapped_column(server_default="0")
    """Raised by every event; what was decided on an earlier one is decided again."""
    trace: Mapped[str | None] = mapped_column(String(55))
    """The W3C ``traceparent`` of its start; null where the starter had no trace."""


make_instead(Saga.__table__, "ix_sagas_live")  # type: ignore[arg-type]
