"""Node: one incarnation of one worker process group, known by its heartbeat.

One row, and one write an interval, whatever the number of steps it runs.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Id, Instant, Json
from models.mysql import knows_partial_indexes, make_instead

_ALIVE = text("ended_at IS NULL")


class Node(Base):
    """One worker from its start to its end. A restart under the same name is a new row."""

    __tablename__ = "nodes"
    __table_args__ = (
        Index(
            "ix_nodes_alive", "heartbeat_at", postgresql_where=_ALIVE, sqlite_where=_ALIVE
        ).ddl_if(callable_=knows_partial_indexes),
    )

    id: Mapped[UUID] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    pid: Mapped[int]
    agents: Mapped[list[Any]] = mapped_column(Json)
    """The agents that this node can run."""
    definitions: Mapped[list[Any]] = mapped_column(Json)
    """The ids of the definitions that this node's code knows."""
    started_at: Mapped[datetime] = mapped_column(Instant)
    heartbeat_at: Mapped[datetime] = mapped_column(Instant)
    swept_at: Mapped[datetime | None] = mapped_column(Instant)
    """When this node last finished a sweep; the newest over all nodes is the supervisor's pulse."""
    ended_at: Mapped[datetime | None] = mapped_column(Instant)


make_instead(Node.__table__, "ix_nodes_alive")  # type: ignore[arg-type]
