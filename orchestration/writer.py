"""Writing what was decided. Every change names the attempt and the state it was decided on.

A change that matches no row raises ``StaleWriteError``: the event's transaction is rolled back and
decided again on the rows as they are then. Nothing else ever ends or hands over a step.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Table, bindparam, insert, select, update

from models import Attempt, Incident, JournalEntry, Saga, Step
from models.states import AttemptState
from orchestration.events import (
    UNSET,
    AddStep,
    CloseIncidents,
    Decision,
    MoveSaga,
    MoveStep,
    OpenIncident,
    Refuse,
    Send,
)
from orchestration.metrics import REFUSALS, count
from orchestration.statement import AnyConnection, Batch, Prepared
from orchestration.store import ATTEMPT, STEP_FIELDS, change_step, step_values

_sagas: Table = Saga.__table__  # type: ignore[assignment]
_steps: Table = Step.__table__  # type: ignore[assignment]
_attempts: Table = Attempt.__table__  # type: ignore[assignment]
_incidents: Table = Incident.__table__  # type: ignore[assignment]
_journal: Table = JournalEntry.__table__  # type: ignore[assignment]

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
_ADD_STEP_WITH_RESULT = Prepared(insert(_steps).inline(), ("saga_id", *STEP_FIELDS, "result"))
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
_MOVE_SAGA = Prepared(
    update(_sagas).where(
        _sagas.c.id == bindparam("was_saga"), _sagas.c.state == bindparam("was_state")
    ),
    ("state", "abort", "wake_at", "ended_at"),
)


class StaleWriteError(Exception):
    """The row is no longer what the decision was taken on."""


def apply(
    connection: AnyConnection,
    saga_id: UUID,
    decisions: Sequence[Decision],
    *,
    actor: str,
    now: datetime,
) -> None:
    """Write what was decided; raise ``StaleWriteError`` if any row is not what it was."""
    writer = _Writer(connection, saga_id, actor, now)
    for decision in decisions:
        writer.write(decision)
    writer.finish()


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
        match decision:
            case MoveStep():
                self._move_step(decision)
            case AddStep():
                self._add_step(decision)
            case MoveSaga():
                self._move_saga(decision)
            case OpenIncident() | CloseIncidents() | Refuse():
                self.batch.flush()
                entry = self._answer(decision)
                if entry is not None:
                    self._note(**entry)
            case Send():
                pass

    def finish(self) -> None:
        """Let everything go to the database; raise ``StaleWriteError`` if a row was not there."""
        self.batch.flush()
        if self.batch.missed:
            raise StaleWriteError(", ".join(self.batch.missed))

    def _note(self, **entry: Any) -> None:
        self.entries += 1
        self.batch.add(f"entry {self.entries}", _ADD_ENTRY, self.common | entry)

    def _move_step(self, move: MoveStep) -> None:
        before, after = move.before, move.after
        was = vars(before)
        values = {name: value for name, value in vars(after).items() if value != was[name]}
        if move.result is not UNSET:
            values["result"] = move.result
        values["state"] = after.state
        statement = change_step(tuple(sorted(values)))
        values |= {
            "was_saga": self.saga_id, "was_path": before.path, "was_attempt": before.attempt,
            "was_state": before.state,
        }  # fmt: skip
        self.batch.add(f"step {before.path}", statement, values)
        if move.closes is not None:
            self._close_attempt(move)
        if not move.quiet:
            self._note(
                path=before.path,
                attempt=before.attempt,
                verb=move.verb,
                from_state=before.state,
                to_state=after.state,
                reason=move.why,
                row=move.row,
                details={"answer": move.answer} if move.answer else None,
            )

    def _close_attempt(self, move: MoveStep) -> None:
        path, number = move.before.path, move.before.attempt
        values = {
            "was_saga": self.saga_id, "was_path": path, "was_no": number, "state": move.closes,
            "ended_at": self.now, "error": move.after.error,
        }  # fmt: skip
        self.batch.add(f"attempt {number} of {path}", _CLOSE_ATTEMPT, values)

    def _add_step(self, decision: AddStep) -> None:
        step = decision.step
        values = step_values(self.saga_id, step) | {"result": decision.result}
        self.batch.add(f"step {step.path}", _ADD_STEP_WITH_RESULT, values)
        self._note(
            path=step.path, verb="watch", to_state=step.state, reason=decision.why,
            row=decision.row,
        )  # fmt: skip

    def _move_saga(self, move: MoveSaga) -> None:
        before, after = move.before, move.after
        values = {
            "was_saga": self.saga_id, "was_state": before.state, "state": after.state,
            "abort": after.abort, "wake_at": after.wake_at, "ended_at": after.ended_at,
        }  # fmt: skip
        self.batch.add("saga", _MOVE_SAGA, values)
        self._note(verb=move.verb, from_state=before.state, to_state=after.state, reason=move.why)

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
