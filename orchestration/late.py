"""What arrives after its time: refused, kept as evidence, and undone where it left an effect. Pure.

A saga that has ended is never revived. An effect that turns up afterwards gets a row of its own,
whose compensation runs through the same leases and attempts as any other.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from models.states import Direction, Operation, StepState
from orchestration.draft import Draft, spaced
from orchestration.events import Answered, Done, Failed, Refuse, Reported
from orchestration.recovery import resolve_late
from orchestration.signals import Answer, Applied
from orchestration.snapshot import LATE, StepSnapshot

WATCH = "watch"
WATCHING = timedelta(seconds=30)
WATCHING_CEILING = timedelta(hours=1)
WATCH_FOR = timedelta(days=1)
"""How long a late effect is looked out for where the remote names no retention."""

_OPEN = frozenset({StepState.UNKNOWN, StepState.RETRYING, StepState.DISPATCHED, StepState.HALTED})


def report(draft: Draft, step: StepSnapshot, event: Reported) -> None:
    """Refuse a report by an attempt that no longer holds the lease."""
    superseded = step.attempt != event.attempt
    name = "stale_attempt" if superseded else "lease_lost"
    evidence: dict[str, Any] = {"direction": event.direction, "state": step.state}
    match event.outcome:
        case Done(result=result):
            evidence |= {"outcome": "succeeded", "result": result}
        case Failed() as failure:
            evidence |= {"outcome": str(failure.kind), "error": failure.error}
    draft.decisions.append(
        Refuse(path=step.path, attempt=event.attempt, name=name, evidence=evidence, to_attempt=True)
    )
    if isinstance(event.outcome, Done):
        _late_success(draft, step, event, event.outcome.result)


def _late_success(draft: Draft, step: StepSnapshot, event: Reported, result: Any) -> None:
    """Take a refused report as the proof that it is of the effect (rows 3 and 24)."""
    same = step.direction is event.direction and step.incarnation == event.incarnation
    if same and step.state in _OPEN:
        backward = step.direction is Direction.BACKWARD
        state = StepState.COMPENSATED if backward else StepState.SUCCEEDED
        draft.answered(step.path, "by_itself", "scheduler", "a late report settled it")
        draft.move(
            step, "adopt", "a late report proves the effect", row="3", state=state, error=None,
            **({} if backward else {"result": result}),
        )  # fmt: skip
    elif event.direction is Direction.FORWARD and _is_orphan(draft, step, event.incarnation):
        undo_late(draft, step, event.incarnation, result)


def _is_orphan(draft: Draft, step: StepSnapshot, incarnation: int) -> bool:
    abandoned = step.state is StepState.ABANDONED and step.direction is Direction.FORWARD
    given_up = step.state in {StepState.FAILED, StepState.SKIPPED} or (abandoned and draft.aborting)
    reopened = (
        step.state is StepState.COMPENSATED and not draft.contract(step).compensation_closes_key
    )
    return given_up or reopened or incarnation < step.incarnation


def answer(draft: Draft, step: StepSnapshot, event: Answered) -> None:
    """Refuse an answer to a question that is no longer asked; keep what it says."""
    evidence = {"answer": type(event.answer).__name__.lower(), **vars(event.answer)}
    draft.decisions.append(
        Refuse(path=step.path, attempt=step.attempt, name="stale_answer", evidence=evidence)
    )


def undo_late(draft: Draft, step: StepSnapshot, incarnation: int, result: Any) -> None:
    """Undo, in a row of its own, an effect that nobody expects any more."""
    path = step.name + LATE
    existing = draft.steps.get(path)
    if existing is not None and existing.state is StepState.UNKNOWN:
        _undo_watched(draft, existing, result)
        return
    verdict = resolve_late(Applied(result))
    draft.alert(path, verdict.alert or "late_effect", verdict.why)
    if existing is not None:
        return
    if not draft.contract(step).compensation:
        return
    row = replace(
        _watch_row(step),
        direction=Direction.BACKWARD,
        state=StepState.DISPATCHED,
        incarnation=incarnation,
        ready_at=draft.now,
        dispatched_at=draft.now,
        dispatch_count=1,
        wake_at=draft.now + draft.redelivery(step, 0),
    )
    draft.add(row, verdict.why, verdict.row, result=result)
    draft.send(row)


def _undo_watched(draft: Draft, step: StepSnapshot, result: Any) -> None:
    """Undo what a watch was there for; a person does where the agent has no compensation."""
    verdict, contract = resolve_late(Applied(result)), draft.contract(step)
    kind = verdict.alert or "late_effect"
    if contract.compensation:
        draft.alert(step.path, kind, verdict.why)
        draft.undo(step, verdict.why, row=verdict.row, result=result)
        return
    why = (
        f"the effect appeared after the saga had given it up, and agent {contract.name!r} has no "
        "compensation: undo it by hand, then resolve"
    )
    draft.park(step, kind, why, row=verdict.row, result=result)


def watch_for(draft: Draft, step: StepSnapshot) -> None:
    """Look out for a late effect of a step that was given up on the strength of its absence."""
    row = replace(
        _watch_row(step),
        doubt_at=step.doubt_at or draft.now,
        granted_at=step.granted_at,
        wake_at=draft.now + WATCHING,
    )
    if row.path not in draft.steps:
        draft.add(row, "looks out for a late effect", "17")


def _watch_row(step: StepSnapshot) -> StepSnapshot:
    return StepSnapshot(
        path=step.name + LATE,
        kind=WATCH,
        agent=step.agent,
        queue=step.queue,
        direction=Direction.FORWARD,
        state=StepState.UNKNOWN,
        incarnation=step.incarnation,
    )


def watch(draft: Draft, step: StepSnapshot, given: Answer | None) -> None:
    """Take one look: undo what has appeared, or look again until the key is forgotten."""
    contract = draft.contract(step)
    draft.heard = given
    if isinstance(given, Applied):
        _undo_watched(draft, step, given.result)
        return
    since = step.doubt_at or draft.now
    if draft.now >= since + (contract.key_retention or WATCH_FOR):
        draft.move(step, "skip", "no late effect appeared", row="17", state=StepState.SKIPPED)
        return
    asked = given is None and step.inquiry is None
    wait = timedelta(0) if asked else spaced(WATCHING, step.asked_count, WATCHING_CEILING)
    why = resolve_late(given).why
    wait = draft.unless_hastened(step, given, wait)
    draft.ask(step, Operation.PROBE, why, row="17", wait=wait)
