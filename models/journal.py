"""JournalEntry: append-only, one row for each decision that the attempts do not tell by themselves.

Grants and reports are told by ``attempts``; the journal tells starts, retries, expiries, probes and
their answers, refusals, compensations, incidents, cancellations and ends, each with its reason.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Id, Instant, Json, LongText, word


class JournalEntry(Base):
    """One transition: who moved what from where to where, when and why."""

    __tablename__ = "journal"
    __table_args__ = (Index(None, "saga_id", "id"),)

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    saga_id: Mapped[UUID] = mapped_column(Id, ForeignKey("sagas.id"))
    path: Mapped[str] = mapped_column(String(200))
    """The step's path; empty for the saga itself."""
    attempt: Mapped[int]
    verb: Mapped[str] = mapped_column(word())
    from_state: Mapped[str] = mapped_column(word())
    to_state: Mapped[str] = mapped_column(word())
    at: Mapped[datetime] = mapped_column(Instant)
    actor: Mapped[str] = mapped_column(String(200))
    reason: Mapped[str] = mapped_column(LongText)
    row: Mapped[str | None] = mapped_column(word(8))
    """The row of the recovery table that decided, where one did."""
    details: Mapped[Any] = mapped_column(Json, nullable=True)
