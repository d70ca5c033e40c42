"""The one list of invariants, for every layer of the tests. See `tasks.proof.invariants`."""

from tasks.proof.invariants import INVARIANTS, Violation, check
from tasks.proof.record import Effect, Record, Request, Rows, read_rows

__all__ = [
    "INVARIANTS",
    "Effect",
    "Record",
    "Request",
    "Rows",
    "Violation",
    "check",
    "read_rows",
]
