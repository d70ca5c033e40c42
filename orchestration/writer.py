"""Writing what was decided. Every change names the attempt and the state it was decided on.

A change that matches no row raises ``StaleWriteError``: the event's transaction is rolled back and
decided again on the rows as they are then. Nothing else ever ends or hands over a step.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Table, bindparam, insert, select, update

from models import Attempt, Incident, JournalEntry, Saga
from models.states import SAGA_TERMINAL, AttemptState
from orchestration.events import (
    UNSET,
    AddStep,
    CloseIncidents,
    Decision,
    MoveSaga,
    MoveStep,
    OpenAttempt,
    OpenIncident,
    Refuse,
)
from orchestration.metrics import REFUSALS, count
from orchestration.snapshot import SagaSnapshot
from orchestration.statement import (
    AnyConnection,
    Batch,
    Change,
    Prepared,
    StaleWriteError,
    all_or_none,
)
from orchestration.store import ATTEMPT, add_step, change_step, open_attempt

_sagas: Table = Saga.__table__
_attempts: Table = Attempt.__table__
_incidents: Table = Incident.__table__
_journal: Table = JournalEntry.__table__

_ENTRY: dict[str, Any] = {
    "path": "",
    "attempt": 0,
    "from_state": "",
    "to_state": "",
    "reason": "",
    "row": None,
    "details": None,
}


_ADD_ENTRY = Prepared(insert(_journal).inline(), ("saga_id", "at", "actor", "verb", *_ENTRY))
_CLOSE_ATTEMPT = Prepared(
    update(_attempts).where(*ATTEMPT, _attempts.c.state == AttemptState.OPEN),
    ("state", "ended_at", "error"),
)
_KEEP_EVIDENCE = Prepared(update(_attempts).where(*ATTEMPT), ("late",))
_ASKED = (
    _incidents.c.saga_id == bindparam("was_saga"),
    _incidents.c.path == bindparam("was_path"),
    _incidents.c.resolved_at.is_(None),
)
_ONE_KIND = _incidents.c.kind == bindparam("was_kind")
_RESOLUTION = ("resolved_at", "resolution", "resolved_by", "reason")
_OPEN_INCIDENT = Prepared(select(_incidents.c.id).where(*_ASKED, _ONE_KIND))
_ADD_INCIDENT = Prepared(insert(_incidents), ("saga_id", "path", "kind", "message", "opened_at"))
_CLOSE_INCIDENTS = Prepared(update(_incidents).where(*_ASKED), _RESOLUTION)
_CLOSE_INCIDENT = Prepared(update(_incidents).where(*_ASKED, _ONE_KIND), _RESOLUTION)
_SAME_SAGA = (
    _sagas.c.id == bindparam("was_saga"),
    _sagas.c.state == bindparam("was_state"),
    _sagas.c.revision == bindparam("was_revision"),
)
_MOVE_SAGA = Prepared(
    update(_sagas).where(*_SAME_SAGA), ("revision", "state", "abort", "wake_at", "ended_at")
)
_TOUCH_SAGA = Prepared(update(_sagas).where(*_SAME_SAGA), ("revision",))
_BEARING = (MoveStep, AddStep, MoveSaga, OpenIncident)
"""What later decisions depend on; the others are evidence, answers and messages."""


def apply(
    connection: AnyConnection,
    saga: SagaSnapshot,
    decisions: Sequence[Decision],
    *,
    actor: str,
    now: datetime,
) -> None:
    """Write what was decided; raise ``StaleWriteError`` if any row is not what it was."""
    writer = _Writer(connection, saga.id, actor, now)
    if saga.state not in SAGA_TERMINAL and any(isinstance(d, _BEARING) for d in decisions):
        writer.batch.add(_saga_change(saga, decisions))
    for decision in decisions:
        writer.write(decision)
    writer.finish()


def apply_unlocked(
    connection: AnyConnection,
    saga: SagaSnapshot,
    decisions: Sequence[Decision],
    *,
    actor: str,
    now: datetime,
) -> None:
    """Write what was decided without a lock; raise ``StaleWriteError`` if anything has changed.

    All is written then, or nothing. ``decisions`` may open, close and refuse nothing.
    """
    writer = _Writer(connection, saga.id, actor, now)
    changes = [_saga_change(saga, decisions)]
    for decision in decisions:
        changes += writer.changes(decision)
    if not all_or_none(connection, changes):
        raise StaleWriteError("saga")


def note(
    connection: AnyConnection,
    saga_id: UUID,
    decision: Refuse | CloseIncidents,
    *,
    actor: str,
    now: datetime,
) -> None:
    """Write down what no other decision depends on."""
    writer = _Writer(connection, saga_id, actor, now)
    writer.write(decision)
    writer.finish()


def _saga_change(saga: SagaSnapshot, decisions: Sequence[Decision]) -> Change:
    """Return the change of the saga's row by which nobody else can decide on the same rows."""
    moves = [decision.after for decision in decisions if isinstance(decision, MoveSaga)]
    values: dict[str, Any] = {
        "was_saga": saga.id, "was_state": saga.state, "was_revision": saga.revision,
        "revision": saga.revision + 1,
    }  # fmt: skip
    if not moves:
        return Change("saga", _TOUCH_SAGA, values)
    after = moves[-1]
    values |= {
        "state": after.state, "abort": after.abort, "wake_at": after.wake_at,
        "ended_at": after.ended_at,
    }  # fmt: skip
    return Change("saga", _MOVE_SAGA, values)


class _Writer:
    """The writes of one event."""

    def __init__(self, connection: AnyConnection, saga_id: UUID, actor: str, now: datetime) -> None:
        self.connection = connection
        self.saga_id = saga_id
        self.now = now
        self.batch = Batch(connection)
        self.entries = 0
        self.common = _ENTRY | {"saga_id": saga_id, "at": now, "actor": actor}

    def write(self, decision: Decision) -> None:
        """Write one decision, and what the journal says of it."""
        if isinstance(decision, OpenIncident | CloseIncidents | Refuse):
            self.batch.flush()
            entry = self._answer(decision)
            if entry is not None:
                self.batch.add(self._note(**entry))
            return
        for change in self.changes(decision):
            self.batch.add(change)

    def finish(self) -> None:
        """Let everything go to the database; raise ``StaleWriteError`` if a row was not there."""
        self.batch.flush()
        if self.batch.missed:
            raise StaleWriteError(", ".join(self.batch.missed))

    def changes(self, decision: Decision) -> list[Change]:
        """Return what one decision changes, and what the journal says of it."""
        match decision:
            case MoveStep():
                return self._move_step(decision)
            case OpenAttempt(step=step, node=node):
                return [open_attempt(self.saga_id, step, node)]
            case AddStep():
                return self._add_step(decision)
            case MoveSaga(before=before, after=after, verb=verb, why=why):
                states = {"from_state": before.state, "to_state": after.state}
                return [self._note(verb=verb, reason=why, **states)]
            case _:
                return []

    def _note(self, **entry: Any) -> Change:
        self.entries += 1
        return Change(f"entry {self.entries}", _ADD_ENTRY, self.common | entry)

    def _move_step(self, move: MoveStep) -> list[Change]:
        before, after = move.before, move.after
        was = vars(before)
        values = {name: value for name, value in vars(after).items() if value != was[name]}
        if move.result is not UNSET:
            values["result"] = move.result
        values["state"] = after.state
        changes = [change_step(self.saga_id, before, values)]
        if move.closes is not None:
            changes.append(self._close_attempt(move))
        if not move.quiet:
            entry = self._note(
                path=before.path,
                attempt=before.attempt,
                verb=move.verb,
                from_state=before.state,
                to_state=after.state,
                reason=move.why,
                row=move.row,
                details={"answer": move.answer} if move.answer else None,
            )
            changes.append(entry)
        return changes

    def _close_attempt(self, move: MoveStep) -> Change:
        path, number = move.before.path, move.before.attempt
        values = {
            "was_saga": self.saga_id, "was_path": path, "was_no": number, "state": move.closes,
            "ended_at": self.now, "error": move.after.error,
        }  # fmt: skip
        return Change(f"attempt {number} of {path}", _CLOSE_ATTEMPT, values)

    def _add_step(self, decision: AddStep) -> list[Change]:
        step = decision.step
        entry = self._note(
            path=step.path, verb="watch", to_state=step.state, reason=decision.why,
            row=decision.row,
        )  # fmt: skip
        return [add_step(self.saga_id, step, result=decision.result), entry]

    def _answer(self, decision: OpenIncident | CloseIncidents | Refuse) -> dict[str, Any] | None:
        match decision:
            case OpenIncident():
                return _open_incident(self.connection, self.saga_id, decision, self.now)
            case CloseIncidents():
                return _close_incidents(self.connection, self.saga_id, decision, self.now)
            case Refuse():
                return _keep_evidence(self.connection, self.saga_id, decision, self.now)


def _open_incident(
    connection: AnyConnection, saga_id: UUID, decision: OpenIncident, now: datetime
) -> dict[str, Any] | None:
    where = {"was_saga": saga_id, "was_path": decision.path, "was_kind": decision.kind}
    if _OPEN_INCIDENT.first(connection, **where) is not None:
        return None
    _ADD_INCIDENT.change(
        connection,
        saga_id=saga_id,
        path=decision.path,
        kind=decision.kind,
        message=decision.message,
        opened_at=now,
    )
    return {"path": decision.path, "verb": "alert", "reason": decision.message,
            "details": {"kind": decision.kind}}  # fmt: skip


def _close_incidents(
    connection: AnyConnection, saga_id: UUID, decision: CloseIncidents, now: datetime
) -> dict[str, Any] | None:
    one = {} if decision.kind is None else {"was_kind": decision.kind}
    answered = (_CLOSE_INCIDENT if one else _CLOSE_INCIDENTS).change(
        connection,
        was_saga=saga_id,
        was_path=decision.path,
        resolved_at=now,
        resolution=decision.resolution,
        resolved_by=decision.by,
        reason=decision.reason,
        **one,
    )
    if answered == 0:
        return None
    details = {"resolution": decision.resolution, "by": decision.by}
    return {"path": decision.path, "verb": "resolve", "reason": decision.reason,
            "details": details}  # fmt: skip


def _keep_evidence(
    connection: AnyConnection, saga_id: UUID, refusal: Refuse, now: datetime
) -> dict[str, Any]:
    count(REFUSALS, refusal.name)
    if refusal.to_attempt:
        _KEEP_EVIDENCE.change(
            connection,
            was_saga=saga_id,
            was_path=refusal.path,
            was_no=refusal.attempt,
            late=refusal.evidence | {"name": refusal.name, "at": now.isoformat()},
        )
    return {
        "path": refusal.path,
        "attempt": refusal.attempt,
        "verb": "refuse",
        "reason": refusal.name,
        "details": dict(refusal.evidence),
    }
