"""JournalEntry: append-only, one row for each decision that the attempts do not tell by themselves.

Grants and reports are told by ``attempts``; the journal tells starts, retries, expiries, probes and
their answers, refusals, compensations, incidents, cancellations and ends, each with its reason.
"""

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String

from models.base import Base, Id, Instant, Json, LongText, optional, required, word

_Number = BigInteger().with_variant(Integer, "sqlite")


class JournalEntry(Base):
    """One transition: who moved what from where to where, when and why."""

    __tablename__ = "journal"
    __table_args__ = (Index(None, "saga_id", "id"),)

    id = required(_Number, primary_key=True, autoincrement=True)
    saga_id = required(Id, ForeignKey("sagas.id"))
    path = required(String(200))
    """The step's path; empty for the saga itself."""
    attempt = required(Integer)
    verb = required(word())
    from_state = required(word())
    to_state = required(word())
    at = required(Instant)
    actor = required(String(200))
    reason = required(LongText)
    row = optional(word(8))
    """The row of the recovery table that decided, where one did."""
    details = optional(Json)
