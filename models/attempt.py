"""Attempt: one lease granted to one agent run. Opened by the grant, closed once, then immutable.

What arrives after it was closed changes no state and is kept in ``late``, as evidence.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, String
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Id, Instant, Json, listed, word
from models.states import AttemptState


class Attempt(Base):
    """One try of a step's action or compensation."""

    __tablename__ = "attempts"
    __table_args__ = (
        ForeignKeyConstraint(["saga_id", "path"], ["steps.saga_id", "steps.path"]),
        CheckConstraint(listed("state", AttemptState), name="state_known"),
        CheckConstraint("(state = 'open') = (ended_at IS NULL)", name="ended_iff_closed"),
    )

    saga_id: Mapped[UUID] = mapped_column(Id, primary_key=True)
    path: Mapped[str] = mapped_column(String(200), primary_key=True)
    no: Mapped[int] = mapped_column(primary_key=True)
    direction: Mapped[str] = mapped_column(word())
    incarnation: Mapped[int]
    state: Mapped[str] = mapped_column(word())
    node: Mapped[str] = mapped_column(String(200))
    pid: Mapped[int]
    granted_at: Mapped[datetime] = mapped_column(Instant)
    ended_at: Mapped[datetime | None] = mapped_column(Instant)
    heartbeat_at: Mapped[datetime | None] = mapped_column(Instant)
    details: Mapped[Any] = mapped_column(Json, nullable=True)
    """What the agent said with its last heartbeat."""
    error: Mapped[dict[str, Any] | None] = mapped_column(Json)
    late: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """An outcome that came after the end: ``{"outcome": …, "result": …, "error": …, "at": …}``."""
