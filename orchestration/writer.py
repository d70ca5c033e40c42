"""Writing what was decided. Every change names the attempt and the state it was decided on.

A change that matches no row raises ``StaleWriteError``: the event's transaction is rolled back and
decided again on the rows as they are then. Nothing else ever ends or hands over a step.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Table, bindparam, insert, select, update

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
from orchestration.statement import Prepared
from orchestration.store import STEP_FIELDS, attempt_is, change_step, step_values

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


_ADD_ENTRY = Prepared(insert(_journal), ("saga_id", "at", "actor", "verb", *_ENTRY))
_ADD_STEP_WITH_RESULT = Prepared(insert(_steps), ("saga_id", *STEP_FIELDS, "result"))
_CLOSE_ATTEMPT = Prepared(
    update(_attempts).where(
        _attempts.c.saga_id == bindparam("was_saga"),
        _attempts.c.path == bindparam("was_path"),
        _attempts.c.no == bindparam("was_no"),
        _attempts.c.state == AttemptState.OPEN,
    ),
    ("state", "ended_at", "error"),
)
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
    connection: Connection,
    saga_id: UUID,
    decisions: Sequence[Decision],
    *,
    actor: str,
    now: datetime,
) -> None:
    """Write what was decided; raise ``StaleWriteError`` if any row is not what it was."""
    entries: list[dict[str, Any]] = []
    for decision in decisions:
        entry = _write(connection, saga_id, decision, actor=actor, now=now)
        if entry is not None:
            entries.append(_ENTRY | {"saga_id": saga_id, "at": now, "actor": actor} | entry)
    if entries:
        _ADD_ENTRY.change_many(connection, entries)


def _write(
    connection: Connection,
    saga_id: UUID,
    decision: Decision,
    *,
    actor: str,
    now: datetime,
) -> dict[str, Any] | None:
    """Write one decision and return what the journal says of it, if anything."""
    del actor
    match decision:
        case MoveStep():
            return _move_step(connection, saga_id, decision, now)
        case AddStep():
            return _add_step(connection, saga_id, decision)
        case MoveSaga():
            return _move_saga(connection, saga_id, decision)
        case OpenIncident():
            return _open_incident(connection, saga_id, decision, now)
        case CloseIncidents():
            return _close_incidents(connection, saga_id, decision, now)
        case Refuse():
            return _keep_evidence(connection, saga_id, decision, now)
        case Send():
            return None


def _move_step(
    connection: Connection, saga_id: UUID, move: MoveStep, now: datetime
) -> dict[str, Any] | None:
    before, after = move.before, move.after
    was = vars(before)
    values = {name: value for name, value in vars(after).items() if value != was[name]}
    if move.result is not UNSET:
        values["result"] = move.result
    values["state"] = after.state
    changed = change_step(tuple(sorted(values))).change(
        connection,
        was_saga=saga_id,
        was_path=before.path,
        was_attempt=before.attempt,
        was_state=before.state,
        **values,
    )
    if changed != 1:
        raise StaleWriteError(before.path)
    if move.closes is not None:
        _close_attempt(connection, saga_id, move, now)
    if move.quiet:
        return None
    return {
        "path": before.path,
        "attempt": before.attempt,
        "verb": move.verb,
        "from_state": before.state,
        "to_state": after.state,
        "reason": move.why,
        "row": move.row,
        "details": {"answer": move.answer} if move.answer else None,
    }


def _close_attempt(connection: Connection, saga_id: UUID, move: MoveStep, now: datetime) -> None:
    closed = _CLOSE_ATTEMPT.change(
        connection,
        was_saga=saga_id,
        was_path=move.before.path,
        was_no=move.before.attempt,
        state=move.closes,
        ended_at=now,
        error=move.after.error,
    )
    if closed != 1:
        raise StaleWriteError(move.before.path)


def _add_step(connection: Connection, saga_id: UUID, decision: AddStep) -> dict[str, Any]:
    _ADD_STEP_WITH_RESULT.change(
        connection, **step_values(saga_id, decision.step), result=decision.result
    )
    return {
        "path": decision.step.path,
        "verb": "watch",
        "to_state": decision.step.state,
        "reason": decision.why,
        "row": decision.row,
    }


def _move_saga(connection: Connection, saga_id: UUID, move: MoveSaga) -> dict[str, Any]:
    before, after = move.before, move.after
    changed = _MOVE_SAGA.change(
        connection,
        was_saga=saga_id,
        was_state=before.state,
        state=after.state,
        abort=after.abort,
        wake_at=after.wake_at,
        ended_at=after.ended_at,
    )
    if changed != 1:
        raise StaleWriteError(str(saga_id))
    return {
        "verb": move.verb,
        "from_state": before.state,
        "to_state": after.state,
        "reason": move.why,
    }


def _open_incident(
    connection: Connection, saga_id: UUID, decision: OpenIncident, now: datetime
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
    connection: Connection, saga_id: UUID, decision: CloseIncidents, now: datetime
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
    connection: Connection, saga_id: UUID, refusal: Refuse, now: datetime
) -> dict[str, Any]:
    if refusal.to_attempt:
        connection.execute(
            update(_attempts)
            .where(*attempt_is(saga_id, refusal.path, refusal.attempt))
            .values(late=refusal.evidence | {"name": refusal.name, "at": now.isoformat()})
        )
    return {
        "path": refusal.path,
        "attempt": refusal.attempt,
        "verb": "refuse",
        "reason": refusal.name,
        "details": dict(refusal.evidence),
    }
