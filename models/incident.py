"""Incident: something that needs a human, why, and how it was resolved."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Id, Instant, LongText, word
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

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    saga_id: Mapped[UUID] = mapped_column(Id, ForeignKey("sagas.id"))
    path: Mapped[str] = mapped_column(String(200))
    """The step's path; empty for the saga as a whole."""
    kind: Mapped[str] = mapped_column(word(40))
    message: Mapped[str] = mapped_column(LongText)
    opened_at: Mapped[datetime] = mapped_column(Instant)
    resolved_at: Mapped[datetime | None] = mapped_column(Instant)
    resolution: Mapped[str | None] = mapped_column(word(40))
    resolved_by: Mapped[str | None] = mapped_column(String(200))
    reason: Mapped[str | None] = mapped_column(LongText)


make_instead(Incident.__table__, "ix_incidents_open")  # type: ignore[arg-type]
