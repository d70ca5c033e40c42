"""Attempt: one lease granted to one agent run. Opened by the grant, closed once, then immutable.

What arrives after it was closed changes no state and is kept in ``late``, as evidence.
"""

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Integer, String

from models.base import Base, Id, Instant, Json, listed, optional, required, word
from models.states import AttemptState


class Attempt(Base):
    """One try of a step's action or compensation."""

    __tablename__ = "attempts"
    __table_args__ = (
        ForeignKeyConstraint(["saga_id", "path"], ["steps.saga_id", "steps.path"]),
        CheckConstraint(listed("state", AttemptState), name="state_known"),
        CheckConstraint("(state = 'open') = (ended_at IS NULL)", name="ended_iff_closed"),
    )

    saga_id = required(Id, primary_key=True)
    path = required(String(200), primary_key=True)
    no = required(Integer, primary_key=True)
    direction = required(word())
    incarnation = required(Integer)
    state = required(word())
    node = required(String(200))
    pid = required(Integer)
    granted_at = required(Instant)
    ended_at = optional(Instant)
    heartbeat_at = optional(Instant)
    details = optional(Json)
    """What the agent said with its last heartbeat."""
    error = optional(Json)
    late = optional(Json)
    """An outcome that came after the end: ``{"outcome": …, "result": …, "error": …, "at": …}``."""
