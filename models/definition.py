"""Definition: a workflow with its agents' contracts, as running sagas were started with it."""

from datetime import datetime
from typing import Any

from sqlalchemy import String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Instant, Json


class Definition(Base):
    """One version of one workflow. Written once, never changed; sagas point to it."""

    __tablename__ = "definitions"
    __table_args__ = (UniqueConstraint("workflow", "version"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the canonical JSON document, in hex."""
    workflow: Mapped[str] = mapped_column(String(200))
    version: Mapped[int]
    document: Mapped[dict[str, Any]] = mapped_column(Json)
    created_at: Mapped[datetime] = mapped_column(Instant)
