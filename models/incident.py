"""Incident: something that needs a human, why, and how it was resolved."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Instant, word

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
        ),
        Index(None, "saga_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    saga_id: Mapped[UUID] = mapped_column(Uuid, ForeignKey("sagas.id"))
    path: Mapped[str] = mapped_column(String(200))
    """The step's path; empty for the saga as a whole."""
    kind: Mapped[str] = mapped_column(word(40))
    message: Mapped[str] = mapped_column(Text)
    opened_at: Mapped[datetime] = mapped_column(Instant)
    resolved_at: Mapped[datetime | None] = mapped_column(Instant)
    resolution: Mapped[str | None] = mapped_column(word(40))
    resolved_by: Mapped[str | None] = mapped_column(String(200))
    reason: Mapped[str | None] = mapped_column(Text)
