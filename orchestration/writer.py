"""Writing what was decided. Every change names the attempt and the state it was decided on.

A change that matches no row raises ``StaleWriteError``: the event's transaction is rolled back and
decided again on the rows as they are then. Nothing else ever ends or hands over a step.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Table, insert, select, update

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
from orchestration.store import STEP_FIELDS, attempt_is, step_values

_sagas: Table = Saga.__table__  # type: ignore[assignment]
_steps: Table = Step.__table__  # type: ignore[assignment]
_attempts: Table = Attempt.__table__  # type: ignore[assignment]
_incidents: Table = Incident.__table__  # type: ignore[assignment]
_journal: Table = JournalEntry.__table__  # type: ignore[assignment]

_ENTRY: dict[str, Any] = {
    "path": "", "attempt": 0, "from_state": "", "to_state": "", "row": None, "details": None,
}  # fmt: skip


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
        connection.execute(insert(_journal), entries)


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
    values = {
        name: getattr(after, name)
        for name in STEP_FIELDS
        if getattr(after, name) != getattr(before, name)
    }
    if move.result is not UNSET:
        values["result"] = move.result
    guard = (
        _steps.c.saga_id == saga_id,
        _steps.c.path == before.path,
        _steps.c.attempt == before.attempt,
        _steps.c.state == before.state,
    )
    if connection.execute(update(_steps).where(*guard).values(values)).rowcount != 1:
        raise StaleWriteError(before.path)
    if move.closes is not None:
        change = (
            update(_attempts)
            .where(
                *attempt_is(saga_id, before.path, before.attempt),
                _attempts.c.state == AttemptState.OPEN,
            )
            .values(state=move.closes, ended_at=now, error=after.error)
        )
        if connection.execute(change).rowcount != 1:
            raise StaleWriteError(before.path)
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
    }


def _add_step(connection: Connection, saga_id: UUID, decision: AddStep) -> dict[str, Any]:
    values = step_values(saga_id, decision.step) | {"result": decision.result}
    connection.execute(insert(_steps).values(values))
    return {
        "path": decision.step.path,
        "verb": "watch",
        "to_state": decision.step.state,
        "reason": decision.why,
        "row": decision.row,
    }


def _move_saga(connection: Connection, saga_id: UUID, move: MoveSaga) -> dict[str, Any]:
    before, after = move.before, move.after
    change = (
        update(_sagas)
        .where(_sagas.c.id == saga_id, _sagas.c.state == before.state)
        .values(
            state=after.state, abort=after.abort, wake_at=after.wake_at, ended_at=after.ended_at
        )
    )
    if connection.execute(change).rowcount != 1:
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
    known = select(_incidents.c.id).where(
        _incidents.c.saga_id == saga_id,
        _incidents.c.path == decision.path,
        _incidents.c.kind == decision.kind,
        _incidents.c.resolved_at.is_(None),
    )
    if connection.execute(known).first() is not None:
        return None
    connection.execute(
        insert(_incidents).values(
            saga_id=saga_id,
            path=decision.path,
            kind=decision.kind,
            message=decision.message,
            opened_at=now,
        )
    )
    return {"path": decision.path, "verb": "alert", "reason": decision.message,
            "details": {"kind": decision.kind}}  # fmt: skip


def _close_incidents(
    connection: Connection, saga_id: UUID, decision: CloseIncidents, now: datetime
) -> dict[str, Any] | None:
    change = (
        update(_incidents)
        .where(
            _incidents.c.saga_id == saga_id,
            _incidents.c.path == decision.path,
            _incidents.c.kind == (decision.kind or _incidents.c.kind),
            _incidents.c.resolved_at.is_(None),
        )
        .values(
            resolved_at=now,
            resolution=decision.resolution,
            resolved_by=decision.by,
            reason=decision.reason,
        )
    )
    if connection.execute(change).rowcount == 0:
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
