"""World record: everything that the invariants look at, whoever made it happen.

The rows of the database, and what the partners' own books say was done.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, TextClause, select, text

from models import Attempt, Incident, JournalEntry, Saga, Step
from models.base import Base, listed
from models.states import STEP_LIVE, StepState
from orchestration.definition import Definition
from orchestration.statement import Prepared


@dataclass
class Effect:
    """One thing that a partner did, and when it was undone, if it was."""

    key: str
    saga_id: str
    step: str
    at: datetime
    undone_at: datetime | None = None
    beyond: bool = False
    """Whether it was made by a request that its partner should have refused as too old."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call that a partner received."""

    saga_id: str
    step: str
    operation: str
    attempt: int
    at: datetime
    caller: str = "worker"
    """The role of the process that made it."""
    key: str = ""
    """The key of the action that was sent, asked about, closed or undone; empty: not known."""
    with_result: bool = True
    """Whether an undo was given what its action returned."""


@dataclass(frozen=True, kw_only=True)
class Beat:
    """One heartbeat that was accepted, and what its lease looked like then."""

    saga_id: str
    step: str
    attempt: int
    at: datetime
    wake_at: datetime | None
    deadline_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Booking:
    """Money that was put on an account, or taken from it (less than zero), in minor units.

    The price of a step is what is taken from its customer; what a partner is given for it stands
    on an account of the partner's. Undoing takes the money the same way back.
    """

    saga_id: str
    step: str
    account: str
    amount: int


CUSTOMER = "customer"


def price_of(step: str) -> int:
    """Return what a simulated step costs; seldom two steps cost the same."""
    return 10_000 + sum(step.encode()) ** 2 % 997


def transfer(saga_id: str, step: str, account: str, amount: int) -> list[Booking]:
    """Return both sides of a payment by the customer; less than zero gives money back."""
    return [
        Booking(saga_id=saga_id, step=step, account=CUSTOMER, amount=-amount),
        Booking(saga_id=saga_id, step=step, account=account, amount=amount),
    ]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of the database."""

    sagas: list[Any]
    steps: list[Any]
    attempts: list[Any]
    incidents: list[Any]
    journal: list[Any]


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known at one instant. ``settled``: the faults have stopped and time was given."""

    rows: Rows
    definitions: Mapping[str, Definition]
    """By their ids."""
    effects: list[Effect] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    ledger: list[int] = field(default_factory=list)
    """Every booking of money, in minor units, credits and debits."""
    payments: list[Booking] = field(default_factory=list)
    """What was paid for each step and given back, in this order; empty where nobody wrote it."""
    settled: bool = True
    always_returns: bool = False
    """Whether every action returns something, as those of simulated partners do."""
    by_hand: frozenset[tuple[str, str]] = frozenset()
    """(saga, step) whose outcome a person decided without being able to know it."""


def _every(entity: type[Base], *conditions: TextClause) -> Prepared:
    table: Any = entity.__table__
    return Prepared(select(table).where(*conditions).order_by(*table.primary_key.columns))


_ALL = {
    "sagas": _every(Saga),
    "steps": _every(Step),
    "attempts": _every(Attempt),
    "incidents": _every(Incident),
    "journal": _every(JournalEntry),
}
_OPEN_SAGAS = _every(Saga, text("sagas.ended_at IS NULL"))
_OPEN_STEPS = _every(Step, text(listed("steps.state", STEP_LIVE | {StepState.HALTED})))


def read_rows(connection: Connection) -> Rows:
    """Return every row, sagas and steps by id, the others in the order of their making."""
    return Rows(**{name: statement.all(connection) for name, statement in _ALL.items()})


def read_what_is_open(connection: Connection) -> Rows:
    """Return the sagas that have not ended and the steps that are not settled."""
    sagas, steps = _OPEN_SAGAS.all(connection), _OPEN_STEPS.all(connection)
    return Rows(sagas=sagas, steps=steps, attempts=[], incidents=[], journal=[])
