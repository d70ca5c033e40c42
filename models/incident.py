"""Incident: something that needs a human, why, and how it was resolved."""

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, String, text

from models.base import Base, Id, Instant, LongText, optional, required, word
from models.mysql import knows_partial_indexes, make_instead

_OPEN = text("resolved_at IS NULL")


class Incident(Base):
    """One question to an operator. At most one is open for each saga, path and kind."""

    __tablename__ = "incidents"
    __table_args__ = (
        CheckConstraint("(resolved_at IS NULL) = (resolution IS NULL)", name="resolved_with_word"),
        Index(
            "ix_incidents_open",
            "saga_id",
            "path",
            "kind",
            unique=True,
            postgresql_where=_OPEN,
            sqlite_where=_OPEN,
        ).ddl_if(callable_=knows_partial_indexes),
        Index(None, "saga_id"),
    )

    id = required(Integer, primary_key=True, autoincrement=True)
    saga_id = required(Id, ForeignKey("sagas.id"))
    path = required(String(200))
    """The step's path; empty for the saga as a whole."""
    kind = required(word(40))
    message = required(LongText)
    opened_at = required(Instant)
    resolved_at = optional(Instant)
    resolution = optional(word(40))
    resolved_by = optional(String(200))
    reason = optional(LongText)


make_instead(Incident.__table__, "ix_incidents_open")
