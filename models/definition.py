"""Definition: a workflow with its agents' contracts, as running sagas were started with it."""

from sqlalchemy import Integer, String, UniqueConstraint

from models.base import Base, Instant, Json, required


class Definition(Base):
    """One version of one workflow. Written once, never changed; sagas point to it."""

    __tablename__ = "definitions"
    __table_args__ = (UniqueConstraint("workflow", "version"),)

    id = required(String(64), primary_key=True)
    """SHA-256 of the canonical JSON document, in hex."""
    workflow = required(String(200))
    version = required(Integer)
    document = required(Json)
    created_at = required(Instant)
