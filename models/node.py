"""Node: one incarnation of one worker process group, known by its heartbeat.

One row, and one write an interval, whatever the number of steps it runs.
"""

from sqlalchemy import Index, Integer, String, text

from models.base import Base, Id, Instant, Json, optional, required
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

    id = required(Id, primary_key=True)
    name = required(String(200))
    pid = required(Integer)
    agents = required(Json)
    """The agents that this node can run."""
    definitions = required(Json)
    """The ids of the definitions that this node's code knows."""
    started_at = required(Instant)
    heartbeat_at = required(Instant)
    swept_at = optional(Instant)
    """When this node last finished a sweep; the newest over all nodes is the supervisor's pulse."""
    ended_at = optional(Instant)


make_instead(Node.__table__, "ix_nodes_alive")
