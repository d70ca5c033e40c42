"""What the pure core sees of a saga and its steps: the rows without their payloads."""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID, uuid5

from models.states import Direction, SagaState, StepState

NAMESPACE = UUID("6f1c7a52-3a57-5d0e-9f0b-0a7a1a1a0001")
AGAIN = " again"
"""Ends an inquiry whose answer may be older than some news, so that it is asked again after it."""
LATE = "~late"
"""Ends the path of the row that watches for, and undoes, a late effect of the step before it."""


@dataclass(frozen=True, kw_only=True)
class StepSnapshot:
    """One step row; the fields have the meaning of the columns of ``models.step.Step``."""

    path: str
    kind: str
    agent: str
    queue: str
    direction: Direction
    state: StepState
    attempt: int = 0
    incarnation: int = 0
    failure_count: int = 0
    dispatch_count: int = 0
    crash_count: int = 0
    inquiry: str | None = None
    inquiry_no: int = 0
    asked_count: int = 0
    node_id: UUID | None = None
    pid: int | None = None
    ready_at: datetime | None = None
    dispatched_at: datetime | None = None
    doubt_at: datetime | None = None
    granted_at: datetime | None = None
    asked_at: datetime | None = None
    deadline_at: datetime | None = None
    wake_at: datetime | None = None
    settled_at: datetime | None = None
    error: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The name of the step definition that this row is an instance of."""
        return self.path.removesuffix(LATE)

    @property
    def question(self) -> str | None:
        """What is being asked about it: ``probe``, ``close`` or nothing."""
        return self.inquiry and self.inquiry.removesuffix(AGAIN)


@dataclass(frozen=True, kw_only=True)
class SagaSnapshot:
    """One saga row and its steps by path."""

    id: UUID
    state: SagaState
    deadline_at: datetime
    wake_at: datetime | None
    abort: dict[str, Any] | None = None
    ended_at: datetime | None = None
    revision: int = 0
    steps: dict[str, StepSnapshot] = field(default_factory=dict, compare=False)


Snapshot = TypeVar("Snapshot", StepSnapshot, SagaSnapshot)


def changed(snapshot: Snapshot, **changes: Any) -> Snapshot:
    """Return a copy in which some fields differ, as ``dataclasses.replace`` does, only faster.

    The names must be fields: nothing checks them here.
    """
    copy = object.__new__(type(snapshot))
    vars(copy).update(vars(snapshot), **changes)
    return copy


def idempotency_key(saga_id: UUID, path: str, direction: Direction, incarnation: int) -> str:
    """Return the key under which the remote service knows this operation, as a UUID.

    It is the same after a lost commit, a failover or a restore, and never holds the attempt: what
    is repeated must be recognised.
    """
    return str(uuid5(NAMESPACE, f"{saga_id}/{path}/{direction}/{incarnation}"))


def roll(saga_id: UUID, path: str, count: int) -> float:
    """Return a number in [0, 1), evenly spread and the same for the same arguments: the jitter."""
    digest = hashlib.sha256(f"{saga_id}/{path}/{count}".encode()).digest()
    return int.from_bytes(digest[:7]) / 2**56
