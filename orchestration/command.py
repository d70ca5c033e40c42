"""What people may ask of a saga: to cancel it, and to decide what is waiting for them. Pure.

Whatever is refused changes nothing and says what is allowed instead.
"""

from datetime import timedelta
from typing import Any

from models.states import SAGA_TERMINAL, Direction, Operation, StepState
from orchestration.doubt import turn_back
from orchestration.draft import Draft
from orchestration.errors import NotFoundError, RefusedError
from orchestration.events import UNSET, Cancelled, Remedy, Resolved
from orchestration.late import WATCH
from orchestration.safety import Position
from orchestration.snapshot import StepSnapshot

_MOVABLE = frozenset({StepState.HALTED, StepState.RETRYING, StepState.UNKNOWN})


def cancel(draft: Draft, event: Cancelled) -> None:
    """Turn the saga back; a second cancel is a no-op. Refused after the end and after the pivot."""
    if draft.saga.state in SAGA_TERMINAL:
        msg = f"saga {draft.saga.id} has ended ({draft.saga.state}); there is nothing to cancel"
        raise RefusedError(msg)
    pivot = draft.past_return()
    if draft.aborting:
        return
    if pivot is not None:
        msg = (
            f"saga {draft.saga.id} is past its pivot {pivot!r} ({draft.steps[pivot].state}): from "
            "there it only goes forward"
        )
        raise RefusedError(msg)
    message = f"cancelled by {event.by}" + (f": {event.reason}" if event.reason else "")
    turn_back(draft, "cancelled", "", message)


def resolve(draft: Draft, event: Resolved) -> None:
    """Do what an operator decided about one step, and close its incidents."""
    if event.remedy is Remedy.ACKNOWLEDGE:
        _acknowledge(draft, event)
        return
    step = draft.steps.get(event.path)
    if step is None:
        raise NotFoundError(_no_step(draft, event.path))
    if step.state not in _MOVABLE:
        msg = (
            f"step {event.path!r} is {step.state}; only a step that is halted, retrying or "
            "unknown can be resolved"
        )
        raise RefusedError(msg)
    if step.kind == WATCH and step.direction is Direction.FORWARD:
        _refuse_unless_for_watch(step, event.remedy)
    _REMEDIES[event.remedy](draft, step, event)
    draft.answered(step.path, str(event.remedy), event.by, event.reason)


def _no_step(draft: Draft, path: str) -> str:
    return f"saga {draft.saga.id} has no step {path!r}; it has: {', '.join(draft.steps)}"


def _acknowledge(draft: Draft, event: Resolved) -> None:
    step = draft.steps.get(event.path)
    if step is None and event.path:
        raise NotFoundError(_no_step(draft, event.path))
    if step is not None and step.state is StepState.HALTED:
        msg = f"step {event.path!r} is halted: it needs a decision, not only to be acknowledged"
        raise RefusedError(msg)
    draft.answered(event.path, str(event.remedy), event.by, event.reason)


def _refuse_unless_for_watch(step: StepSnapshot, remedy: Remedy) -> None:
    if remedy not in {Remedy.PROBE, Remedy.COMPENSATED, Remedy.SKIP}:
        msg = (
            f"step {step.path!r} only looks out for a late effect; use probe, compensated (undone "
            "by hand) or skip (stop looking)"
        )
        raise RefusedError(msg)


def _why(event: Resolved) -> str:
    return f"{event.remedy} by {event.by}: {event.reason}"


def _retry(draft: Draft, step: StepSnapshot, event: Resolved) -> None:
    contract = draft.contract(step)
    if step.direction is Direction.FORWARD and step.doubt_at is not None:
        age = draft.now - step.doubt_at
        if not contract.idempotent:
            _refuse_retry(step, contract.name, "is not idempotent: a repetition could act twice")
        if not contract.key_alive(age, draft.lasting(step)):
            _refuse_retry(step, contract.name, "may have forgotten the key: it could act twice")
    draft.dispatch(step, _why(event), verb="resolve", failure_count=0, ready_at=draft.now)


def _refuse_retry(step: StepSnapshot, agent: str, why: str) -> None:
    msg = (
        f"step {step.path!r} cannot be retried, since agent {agent!r} {why}; "
        "use probe, close, succeeded, failed or skip"
    )
    raise RefusedError(msg)


def _inquire(operation: Operation) -> Any:
    def ask(draft: Draft, step: StepSnapshot, event: Resolved) -> None:
        contract = draft.contract(step)
        able = contract.probe if operation is Operation.PROBE else contract.close
        if not able or step.direction is Direction.BACKWARD:
            msg = f"step {step.path!r}: agent {contract.name!r} has no {operation} for this"
            raise RefusedError(msg)
        doubt_at = step.doubt_at or step.granted_at or draft.now
        draft.ask(
            step, operation, _why(event), row=None, wait=timedelta(0), doubt_at=doubt_at
        )  # fmt: skip

    return ask


def _succeeded(draft: Draft, step: StepSnapshot, event: Resolved) -> None:
    _forward_only(step)
    payload = {} if event.result is UNSET else {"result": event.result}
    draft.move(step, "resolve", _why(event), state=StepState.SUCCEEDED, error=None, **payload)


def _failed(draft: Draft, step: StepSnapshot, event: Resolved) -> None:
    _forward_only(step)
    if draft.position[step.name] is Position.AFTER and not draft.aborting:
        msg = f"step {step.path!r} is past the pivot and cannot fail; use retry, succeeded or skip"
        raise RefusedError(msg)
    error = step.error or {"type": "Resolved", "message": _why(event)}
    draft.move(step, "resolve", _why(event), state=StepState.FAILED, error=error)


def _forward_only(step: StepSnapshot) -> None:
    if step.direction is Direction.BACKWARD:
        msg = f"step {step.path!r} is being compensated; use compensated"
        raise RefusedError(msg)


def _compensated(draft: Draft, step: StepSnapshot, event: Resolved) -> None:
    if not draft.aborting and step.kind != WATCH:
        msg = f"saga {draft.saga.id} goes forward; step {step.path!r} cannot be compensated"
        raise RefusedError(msg)
    draft.move(
        step, "resolve", _why(event), state=StepState.COMPENSATED, direction=Direction.BACKWARD
    )


def _skip(draft: Draft, step: StepSnapshot, event: Resolved) -> None:
    draft.move(step, "resolve", _why(event), state=StepState.ABANDONED)


_REMEDIES = {
    Remedy.RETRY: _retry,
    Remedy.PROBE: _inquire(Operation.PROBE),
    Remedy.CLOSE: _inquire(Operation.CLOSE),
    Remedy.SUCCEEDED: _succeeded,
    Remedy.FAILED: _failed,
    Remedy.COMPENSATED: _compensated,
    Remedy.SKIP: _skip,
}
