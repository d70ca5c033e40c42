"""Saga: one running, or ended, instance of a workflow."""

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, String, UniqueConstraint, text

from models.base import Base, Id, Instant, Json, listed, optional, required, word
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

    id = required(Id, primary_key=True)
    definition_id = required(String(64), ForeignKey("definitions.id"))
    workflow = required(String(200))
    key = optional(String(200))
    """The caller's idempotency key of the start, unique within the workflow."""
    input = optional(Json)
    state = required(word())
    abort = optional(Json)
    """Why the saga turned back: ``{"reason": …, "step": …, "message": …}``; null while forward."""
    created_at = required(Instant)
    deadline_at = required(Instant)
    wake_at = optional(Instant)
    """When the deadline is to be acted on; null once it was, or when the saga has ended."""
    ended_at = optional(Instant)
    revision = required(Integer, server_default="0")
    """Raised by whatever later decisions depend on; what was decided on an earlier one is decided
    again."""
    trace = optional(String(55))
    """The W3C ``traceparent`` of its start; null where the starter had no trace."""


make_instead(Saga.__table__, "ix_sagas_live")
