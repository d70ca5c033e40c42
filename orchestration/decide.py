"""The core: (definition, snapshot, event, now) to decisions. Pure; no clock, no chance, no I/O.

An event first changes the step it is about; then ``_advance`` derives everything that follows from
where the steps stand: what may start, what is to be undone, whether the saga has ended. Because the
second half only looks at rows, it can be repeated at any time and after any crash.
"""

from datetime import datetime
from typing import Any

from models.states import (
    SAGA_TERMINAL,
    STEP_LIVE,
    AttemptState,
    Direction,
    SagaState,
    StepState,
)
from orchestration import command, late
from orchestration.definition import Definition
from orchestration.doubt import (
    KEY_FORGOTTEN,
    LOST_COMMITS,
    case_of,
    distrust,
    hasten,
    is_late,
    key_forgotten,
    lose,
    over,
    settle,
    settle_undo,
    turn_back,
)
from orchestration.draft import Draft
from orchestration.events import (
    Answered,
    Cancelled,
    Crashed,
    DeadlinePassed,
    Decision,
    Distrusted,
    Done,
    Event,
    Failed,
    FailureKind,
    Hastened,
    Lost,
    Nudged,
    Reported,
    Resolved,
    Started,
    Woken,
)
from orchestration.plan import ready, to_undo
from orchestration.recovery import CRASH_LIMIT, Action, resolve
from orchestration.safety import Position
from orchestration.signals import Unclear
from orchestration.snapshot import SagaSnapshot, StepSnapshot, changed, roll

UNSERVED = "unserved"
"""The kind of the incident that says that no worker can take a step."""


def decide(
    definition: Definition, saga: SagaSnapshot, event: Event, now: datetime
) -> list[Decision]:
    """Return what is to be written and sent because of ``event``.

    Raises ``RefusedError`` where a person asked for something that the saga's state forbids.
    """
    draft = Draft(definition, saga, now)
    match event:
        case Started() | Nudged():
            pass
        case Reported():
            _reported(draft, event)
        case Answered():
            _answered(draft, event)
        case Woken():
            _woken(draft, event)
        case Hastened():
            hasten(draft, event.path)
        case Lost():
            _lost(draft, event)
        case Crashed():
            _crashed(draft, event)
        case DeadlinePassed():
            _deadline_passed(draft)
        case Cancelled():
            command.cancel(draft, event)
        case Distrusted():
            distrust(draft)
        case Resolved():
            command.resolve(draft, event)
    _advance(draft)
    return draft.decisions


# --- one step ----------------------------------------------------------------------------------


def _reported(draft: Draft, event: Reported) -> None:
    step = draft.steps[event.path]
    if step.state is not StepState.LEASED or step.attempt != event.attempt:
        late.report(draft, step, event)
        return
    match event.outcome:
        case Done(result=result):
            _succeeded(draft, step, result)
        case Failed() as failure:
            _failed(draft, step, failure)


def _succeeded(draft: Draft, step: StepSnapshot, result: Any) -> None:
    backward = step.direction is Direction.BACKWARD
    if step.failure_count or is_late(draft, step, draft.now):
        draft.answered(step.path, "by_itself", "scheduler", "it succeeded")
    draft.move(
        step,
        "report",
        "compensated" if backward else "succeeded",
        closes=AttemptState.SUCCEEDED,
        quiet=True,
        state=StepState.COMPENSATED if backward else StepState.SUCCEEDED,
        error=None,
        **({} if backward else {"result": result}),
    )


def _failed(draft: Draft, step: StepSnapshot, failure: Failed) -> None:
    policy = draft.plan(step).retry
    kind = failure.kind
    if kind is FailureKind.ERROR and failure.type in policy.non_retryable_errors:
        kind = FailureKind.PERMANENT
    if kind is FailureKind.INVALID_RESULT and step.direction is Direction.FORWARD:
        _invalid(draft, step, failure)
        return
    if step.direction is Direction.BACKWARD:
        settle_undo(draft, step, failure, closes=AttemptState.FAILED)
        return
    if kind is FailureKind.PERMANENT:
        limit = policy.for_error(failure.type).max_attempts
        spent = max(step.failure_count + 1, limit)
        _certain(draft, step, failure, failure_count=spent)
    elif kind is FailureKind.LATER:
        _certain(draft, step, failure, failure_count=step.failure_count)
    else:
        unknown = kind is FailureKind.UNKNOWN
        closes = AttemptState.UNKNOWN if unknown else AttemptState.FAILED
        lose(draft, step, failure.message, closes=closes, error=failure.error)


def _certain(draft: Draft, step: StepSnapshot, failure: Failed, *, failure_count: int) -> None:
    """End an attempt that certainly had no effect; earlier ones may still be in doubt."""
    policy = draft.plan(step).retry.for_error(failure.type)
    settle(
        draft,
        step,
        None,
        closes=AttemptState.FAILED,
        delay=policy.delay(
            step.attempt, roll(draft.saga.id, step.path, step.attempt), failure.delay
        ),
        why=f"{failure.type}: {failure.message}",
        failure_count=failure_count,
        error=failure.error,
    )


def _invalid(draft: Draft, step: StepSnapshot, failure: Failed) -> None:
    """Undo an effect whose result is of no use; after the pivot, leave it to an operator."""
    why = f"the result does not fit what the agent declares: {failure.message}"
    changes: dict[str, Any] = {
        "closes": AttemptState.FAILED, "result": failure.result, "error": failure.error,
    }  # fmt: skip
    if draft.position[step.name] is Position.BEFORE:
        draft.move(step, "report", why, state=StepState.SUCCEEDED, **changes)
        if not draft.aborting:
            turn_back(draft, "invalid_result", step.path, why)
    else:
        sent_at = step.doubt_at or step.granted_at
        draft.park(step, "invalid_result", why, doubt_at=sent_at, **changes)


def _answered(draft: Draft, event: Answered) -> None:
    step = draft.steps[event.path]
    if step.state is not StepState.UNKNOWN or step.inquiry_no != event.inquiry_no:
        late.answer(draft, step, event)
    elif step.kind == late.WATCH:
        late.watch(draft, step, event.answer)
    else:
        settle(draft, step, event.answer)


def _woken(draft: Draft, event: Woken) -> None:
    step = draft.steps[event.path]
    if step.wake_at is None or step.wake_at > draft.now:
        return
    match step.state:
        case StepState.DISPATCHED:
            _redeliver(draft, step, event)
        case StepState.LEASED:
            overdue = step.deadline_at is not None and step.deadline_at <= draft.now
            why = "the lease ran out" if overdue else "no heartbeat within heartbeat_timeout"
            lose(draft, step, why, closes=AttemptState.EXPIRED)
        case StepState.RETRYING:
            _retry_due(draft, step)
        case StepState.UNKNOWN if step.kind == late.WATCH:
            late.watch(draft, step, None)
        case StepState.UNKNOWN:
            unanswered = Unclear(f"no answer to the {step.question}") if step.inquiry else None
            settle(draft, step, unanswered)


def _redeliver(draft: Draft, step: StepSnapshot, event: Woken) -> None:
    if _waited_in_vain(draft, step):
        return
    if key_forgotten(step, draft.contract(step), draft.lasting(step), draft.now):
        settle(draft, step, None, why=KEY_FORGOTTEN)
        return
    why = "its message waits in a long queue" if event.queued else "no worker took the lease"
    after = draft.move(
        step,
        "redeliver",
        why,
        state=StepState.DISPATCHED,
        dispatch_count=step.dispatch_count + 1,
        wake_at=draft.now + draft.redelivery(step, step.dispatch_count),
    )
    if not event.queued:
        draft.send(after)
    if event.unserved:
        why = f"no living worker knows this version of the workflow and agent {step.agent!r}"
        draft.alert(step.path, UNSERVED, why)


def _waited_in_vain(draft: Draft, step: StepSnapshot) -> bool:
    """End a wait for a worker that has taken too long; tell whether it has."""
    plan, sent_at = draft.plan(step), step.dispatched_at
    if step.direction is Direction.BACKWARD or sent_at is None:
        return False
    limit, attempts = plan.schedule_to_start, plan.retry.max_attempts
    if limit and draft.now >= sent_at + limit:
        why = f"no worker took it within schedule_to_start ({limit})"
        error = {"type": "ScheduleToStartTimeout", "message": why}
        failures = max(step.failure_count, attempts)
        anew = step.failure_count >= attempts
        return _end_wait(draft, step, why, anew=anew, failure_count=failures, error=error)
    if draft.position[step.name] is not Position.AFTER and over(draft, step, draft.now):
        why = "no worker took it before the time of the step was over"
        error = {"type": "ScheduleToCloseTimeout", "message": why}
        return _end_wait(draft, step, why, anew=over(draft, step, sent_at), error=error)
    return False


def _end_wait(draft: Draft, step: StepSnapshot, why: str, *, anew: bool, **changes: Any) -> bool:
    """Settle a step that nobody took, unless that would only begin the same wait ``anew``.

    What can but be repeated, beyond its attempts or its time, waits as long as it takes: else it
    would go from number to number, and no message would ever have the present one.
    """
    verdict = resolve(case_of(draft, changed(step, **changes), None))
    if anew and verdict.action is Action.RETRY and verdict.alert:
        draft.alert(step.path, verdict.alert, f"{why}; {verdict.why}")
        return False
    settle(draft, step, None, why=why, **changes)
    return True


def _retry_due(draft: Draft, step: StepSnapshot) -> None:
    """Dispatch again, unless what allowed it when the delay began no longer holds.

    When the saga turned back in the meantime, the step was decided anew at that moment.
    """
    if step.direction is Direction.FORWARD:
        if draft.late and not draft.aborting and draft.past_return() is None:
            turn_back(draft, "deadline", "", "the saga's deadline has passed")
            return
        if key_forgotten(step, draft.contract(step), draft.lasting(step), draft.now):
            settle(draft, step, None, why=KEY_FORGOTTEN)
            return
    draft.dispatch(step, "the back-off is over")


def _lost(draft: Draft, event: Lost) -> None:
    step = draft.steps[event.path]
    if step.state is StepState.LEASED and step.attempt == event.attempt:
        lose(draft, step, event.why, closes=AttemptState.EXPIRED, gone=True)


def _crashed(draft: Draft, event: Crashed) -> None:
    step = draft.steps[event.path]
    if step.state is not StepState.DISPATCHED or step.attempt + 1 != event.attempt:
        return
    crashes = step.crash_count + 1
    why = "a worker process died before it took the lease"
    if step.doubt_at is None and step.direction is Direction.FORWARD:
        settle(draft, step, None, why=why, crash_count=crashes)
    elif crashes >= CRASH_LIMIT:
        draft.park(step, "poison", why, row="25", crash_count=crashes)
    else:
        draft.dispatch(step, why, row="1", verb="retry", crash_count=crashes)


def _deadline_passed(draft: Draft) -> None:
    if draft.saga.state in SAGA_TERMINAL or not draft.late:
        return
    pivot = draft.past_return()
    if not draft.aborting and pivot is None:
        turn_back(draft, "deadline", "", "the saga's deadline has passed")
    elif not draft.aborting:
        why = f"the deadline has passed after the pivot {pivot!r}; it goes on forward"
        draft.alert("", "overdue", why)
    draft.move_saga("deadline", "the deadline was acted on", wake_at=None)


# --- what follows ------------------------------------------------------------------------------


def _advance(draft: Draft) -> None:
    """Derive from where the steps stand whatever follows, and repeat until nothing does."""
    if draft.saga.state in SAGA_TERMINAL:
        return
    tree = draft.definition.workflow.steps
    if not draft.aborting:
        failure = _fatal(draft)
        if failure is not None:
            error = failure.error or {}
            turn_back(draft, "failed", failure.path, error.get("message", "certainly no effect"))
    if draft.aborting:
        unwound, paths = to_undo(tree, draft.steps, draft.definition)
        for path in paths:
            _compensate(draft, draft.steps[path])
        if unwound:
            assert draft.saga.abort is not None
            cancelled = draft.saga.abort["reason"] == "cancelled"
            state = SagaState.CANCELLED if cancelled else SagaState.COMPENSATED
            draft.end(state, "the net effect of every step is zero")
            return
    else:
        done, paths = ready(tree, draft.steps)
        if done:
            draft.end(SagaState.COMPLETED, "every step is done")
            return
        if paths and draft.late and draft.past_return() is None:
            turn_back(draft, "deadline", "", "the saga's deadline has passed")
            _advance(draft)
            return
        for path in paths:
            _begin(draft, draft.steps[path])
    _label(draft)


def _begin(draft: Draft, step: StepSnapshot) -> None:
    """Dispatch a step; where it may have been sent in commits that were lost, ask first."""
    if step.doubt_at is not None:
        settle(draft, step, None, why=LOST_COMMITS, ready_at=draft.now)
    else:
        draft.dispatch(step, "its predecessors are done", quiet=True)


def _fatal(draft: Draft) -> StepSnapshot | None:
    """Return the step whose failure, or whose undoing, turns the saga back, if there is one."""
    for step in draft.steps.values():
        if step.kind == late.WATCH or draft.position[step.name] is Position.AFTER:
            continue
        if step.state is StepState.FAILED or (
            step.direction is Direction.BACKWARD and draft.saga.state is SagaState.RUNNING
        ):
            return step
    return None


def _compensate(draft: Draft, step: StepSnapshot) -> None:
    contract = draft.contract(step)
    if contract.compensation:
        draft.undo(step, "the saga turned back")
    else:
        why = f"agent {contract.name!r} has no compensation: undo it by hand, then resolve"
        draft.park(step, "manual_compensation", why, direction=Direction.BACKWARD)


def _label(draft: Draft) -> None:
    """Give the saga the state that its steps have brought it to."""
    own = [step for step in draft.steps.values() if step.kind != late.WATCH]
    moving = any(step.state in STEP_LIVE for step in own)
    parked = any(step.state is StepState.HALTED for step in own)
    if moving:
        state = SagaState.COMPENSATING if draft.aborting else SagaState.RUNNING
        draft.move_saga("go_on", "there is something to do", state=state)
        return
    if not parked:
        draft.alert("", "stranded", "no step of it can move; resolve it by hand")
    draft.move_saga("halt", "waits for an operator", state=SagaState.HALTED)
