"""What becomes of a step whose attempt has ended without its result: the table, applied. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from models.states import STEP_SETTLED, AttemptState, Direction, Operation, SagaState, StepState
from orchestration.contract import AgentContract
from orchestration.draft import ASKING_CEILING, MAY_BE_UNSENT, POLL, Draft, spaced
from orchestration.events import Failed, FailureKind
from orchestration.late import WATCH, watch_for
from orchestration.recovery import Action, Case, Verdict, resolve, resolve_undo
from orchestration.signals import Absent, Answer, Applied
from orchestration.snapshot import AGAIN, StepSnapshot, changed, roll

KEY_FORGOTTEN = "the remote may have forgotten the key before an attempt under it would be over"
LOST_COMMITS = "the database may have lost commits"
AT_ONCE = timedelta(0)
GONE = "gone"
"""Stands in the error of an attempt of which nothing is known but that its process is gone."""


def lose(
    draft: Draft,
    step: StepSnapshot,
    why: str,
    *,
    closes: AttemptState,
    error: dict[str, Any] | None = None,
    gone: bool = False,
) -> None:
    """End an attempt that may have had its effect; ``gone``: because its process is."""
    error = error or {"type": "Lost", "message": why} | ({GONE: True} if gone else {})
    if step.direction is Direction.BACKWARD:
        kind = FailureKind.UNKNOWN
        failure = Failed(kind=kind, type=error["type"], message=error["message"])
        settle_undo(draft, step, failure, closes=closes, gone=gone)
        return
    failures = step.failure_count + 1
    changes: dict[str, Any] = {"failure_count": failures, "error": error}
    delay = None
    if draft.contract(step).effect:
        changes["doubt_at"] = step.doubt_at or step.granted_at
    elif not _only_gone(failures, error):
        policy = draft.plan(step).retry.for_error(error["type"])
        delay = policy.delay(failures, roll(draft.saga.id, step.path, step.attempt))
    settle(draft, step, None, why=why, closes=closes, delay=delay, **changes)


def settle(
    draft: Draft,
    step: StepSnapshot,
    answer: Answer | None,
    *,
    why: str = "",
    closes: AttemptState | None = None,
    delay: timedelta | None = None,
    **changes: Any,
) -> None:
    """Put the step before the recovery table and do what it says.

    ``changes`` are part of what is written, and are seen by the table. ``delay`` is the wait before
    a repetition where the agent or the policy has named one. A repetition that would begin only
    after the step's time is over is not waited for: the step is ended now.
    """
    seen = changed(step, **changes)
    case = case_of(draft, seen, answer)
    verdict = resolve(case)
    if verdict.action is Action.RETRY and not (verdict.slow or case.forward_only):
        begins_at = draft.now + _delay(draft, seen, verdict, delay)
        verdict = resolve(replace(case, late=case.late or is_late(draft, seen, begins_at)))
    reason = f"{why}; {verdict.why}" if why else verdict.why
    draft.heard = answer
    _apply(draft, step, seen, verdict, reason, answer=answer, closes=closes, delay=delay, **changes)
    draft.heard = None
    if verdict.alert and verdict.action is not Action.PARK:
        settled = draft.steps[step.path].state in STEP_SETTLED
        draft.alert("" if settled else step.path, verdict.alert, reason)


def case_of(draft: Draft, step: StepSnapshot, answer: Answer | None) -> Case:
    """Return what the table looks at."""
    policy = draft.plan(step).retry.for_error((step.error or {}).get("type"))
    age = draft.now - step.doubt_at if step.doubt_at else timedelta(0)
    return Case(
        contract=draft.contract(step),
        position=draft.position[step.name],
        answer=answer,
        doubt=step.doubt_at is not None,
        spent=step.failure_count >= policy.max_attempts,
        late=is_late(draft, step, draft.now),
        aborting=draft.aborting,
        age=age,
        lasting=draft.lasting(step),
        to_horizon=_to_horizon(draft, step, answer),
        asked=step.asked_count,
        crashes=step.crash_count,
    )


def is_late(draft: Draft, step: StepSnapshot, at: datetime) -> bool:
    """Tell whether the time of the step or of the saga will have passed at an instant."""
    return at >= draft.saga.deadline_at or over(draft, step, at)


def over(draft: Draft, step: StepSnapshot, at: datetime) -> bool:
    """Tell whether all the time that the step itself was given has passed."""
    plan = draft.plan(step)
    limits = (plan.schedule_to_close, plan.retry.total_timeout)
    return step.ready_at is not None and any(
        at >= step.ready_at + limit for limit in limits if limit
    )


def key_forgotten(
    step: StepSnapshot, contract: AgentContract, lasting: timedelta, now: datetime
) -> bool:
    """Tell whether a process that begins now, and lasts so long, could send a forgotten key."""
    if step.direction is Direction.BACKWARD or step.doubt_at is None:
        return False
    return not contract.key_alive(now - step.doubt_at, lasting)


def _to_horizon(draft: Draft, step: StepSnapshot, answer: Answer | None) -> timedelta | None:
    """Return the time until every request is dead and visible; an older answer does not count."""
    horizon = draft.contract(step).settle_horizon(draft.lasting(step))
    if horizon is None or step.granted_at is None:
        return horizon
    settled_at = step.granted_at + horizon
    if isinstance(answer, Absent) and step.asked_at and step.asked_at < settled_at:
        return max(settled_at - draft.now, timedelta(microseconds=1))
    return settled_at - draft.now


def _apply(  # noqa: PLR0913 - the arms share everything
    draft: Draft,
    step: StepSnapshot,
    seen: StepSnapshot,
    verdict: Verdict,
    why: str,
    *,
    answer: Answer | None,
    closes: AttemptState | None,
    delay: timedelta | None,
    **changes: Any,
) -> None:
    row = verdict.row
    match verdict.action:
        case Action.RETRY:
            if verdict.new_key:
                changes |= {"incarnation": step.incarnation + 1, "doubt_at": None}
            wait = _delay(draft, seen, verdict, delay)
            draft.retry(step, why, row=row, delay=wait, closes=closes, **changes)
        case Action.SUCCEED:
            result = answer.result if isinstance(answer, Applied) else None
            draft.answered(step.path, "by_itself", "scheduler", why)
            draft.move(
                step, "adopt", why, row=row, closes=closes, result=result,
                state=StepState.SUCCEEDED, **(changes | {"error": None}),
            )  # fmt: skip
        case Action.GIVE_UP:
            changes["error"] = seen.error or {"type": "NotExecuted", "message": why}
            draft.answered(step.path, "by_itself", "scheduler", why)
            draft.move(step, "fail", why, row=row, closes=closes, state=StepState.FAILED, **changes)
            if verdict.watch:
                watch_for(draft, seen)
        case Action.ASK:
            wait = _spacing(draft, seen, verdict, answer)
            draft.ask(step, verdict.operation, why, row=row, wait=wait, closes=closes, **changes)
        case Action.UNDO:
            draft.answered(step.path, "by_itself", "scheduler", why)
            changes = _without(changes, "failure_count", "ready_at")
            draft.undo(step, why, row=row, closes=closes, **changes)
        case Action.PARK:
            if verdict.new_key:
                changes |= {"incarnation": step.incarnation + 1, "doubt_at": None}
            draft.park(step, verdict.alert or "in_doubt", why, row=row, closes=closes, **changes)
        case Action.ABANDON:
            draft.answered(step.path, "by_itself", "scheduler", why)
            draft.move(
                step, "abandon", why, row=row, closes=closes, state=StepState.ABANDONED, **changes
            )


def _without(changes: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if key not in {*names, "doubt_at"}}


def _delay(
    draft: Draft, step: StepSnapshot, verdict: Verdict, delay: timedelta | None
) -> timedelta:
    policy = draft.plan(step).retry.for_error((step.error or {}).get("type"))
    chance = roll(draft.saga.id, step.path, step.attempt + step.failure_count)
    if verdict.slow:
        return max(policy.ceiling * (0.5 + chance / 2), delay or AT_ONCE)
    if delay is not None:
        return delay
    at_once = verdict.at_once or _only_gone(step.failure_count, step.error)
    return AT_ONCE if at_once else policy.delay(step.failure_count, chance)


def _only_gone(failures: int, error: dict[str, Any] | None) -> bool:
    """Tell whether nothing has failed but one process, which says nothing of the remote.

    A step that takes its process down each time comes back at growing intervals.
    """
    return failures <= 1 and error is not None and GONE in error


def _spacing(
    draft: Draft, step: StepSnapshot, verdict: Verdict, answer: Answer | None
) -> timedelta:
    """Return how long to wait with a question: the first is asked at once, the others spaced."""
    first = verdict.operation is Operation.CLOSE and step.inquiry != Operation.CLOSE
    usual = AT_ONCE if first or answer is None else spaced(POLL, step.asked_count, ASKING_CEILING)
    wait = usual if verdict.wait is None else verdict.wait
    return draft.unless_hastened(step, answer, wait)


def hasten(draft: Draft, path: str) -> None:
    """Ask about a step in doubt sooner than planned, since its partner says that there is news.

    Whoever rings is not believed and costs little: there is one question a second at most, and it
    is not counted among those that were asked in vain. If one is under way, its answer may be older
    than the news, so the next one follows on it.
    """
    step = draft.steps.get(path)
    if step is None or step.state is not StepState.UNKNOWN or not draft.contract(step).probe:
        return
    why = "its partner says that there is news"
    same: dict[str, Any] = {"state": StepState.UNKNOWN}
    if step.inquiry == Operation.PROBE:
        draft.move(step, "hasten", why, inquiry=step.inquiry + AGAIN, **same)
    elif step.inquiry is None and (wait := draft.soonest(step)) <= AT_ONCE:
        draft.ask(step, Operation.PROBE, why, row=None, wait=wait, counted=False)
    elif step.inquiry is None and step.wake_at and step.wake_at > draft.now + wait:
        draft.move(step, "hasten", why, wake_at=draft.now + wait, **same)


def settle_undo(
    draft: Draft, step: StepSnapshot, failure: Failed, *, closes: AttemptState, gone: bool = False
) -> None:
    """Repeat a compensation, without end; after ``max_attempts`` slowly, with one incident."""
    policy = draft.plan(step).retry.for_error(failure.type)
    counts = failure.kind is not FailureKind.LATER
    failures = step.failure_count + counts
    if failure.kind is FailureKind.PERMANENT or failure.type in policy.non_retryable_errors:
        failures = max(failures, policy.max_attempts)
    verdict = resolve_undo(failures=failures, limit=policy.max_attempts)
    chance = roll(draft.saga.id, step.path, step.attempt)
    delay = policy.delay(failures, chance, failure.delay)
    if gone and failures <= 1:
        delay = AT_ONCE
    if verdict.slow:
        delay = max(policy.ceiling * (0.5 + chance / 2), delay)
    why = f"{failure.type}: {failure.message}"
    draft.retry(
        step, f"{why}; {verdict.why}", row=verdict.row, delay=delay, closes=closes,
        failure_count=failures, error=failure.error,
    )  # fmt: skip
    if verdict.alert:
        draft.alert(step.path, verdict.alert, f"the compensation failed {failures} times: {why}")


def turn_back(draft: Draft, reason: str, path: str, message: str) -> None:
    """Record that the saga goes backward, and settle what is not under way."""
    draft.move_saga(
        "abort",
        message,
        state=SagaState.COMPENSATING,
        abort={"reason": reason, "step": path, "message": message},
    )
    for step in list(draft.steps.values()):
        if step.kind == WATCH or step.direction is Direction.BACKWARD:
            continue
        if step.state in MAY_BE_UNSENT and step.doubt_at is None:
            if step.state is not StepState.WAITING:
                draft.answered(step.path, "by_itself", "scheduler", "the saga turned back")
            draft.move(step, "skip", "the saga turned back", state=StepState.SKIPPED)
        elif step.state in {*MAY_BE_UNSENT, StepState.UNKNOWN} - {StepState.HALTED}:
            settle(draft, step, None, why="the saga turned back")


def distrust(draft: Draft) -> None:
    """Take whatever is said never to have been sent for something that may have been.

    Its keys are what they were before the database lost commits, so the remote can tell.
    """
    for step in list(draft.steps.values()):
        forward = step.direction is Direction.FORWARD and step.kind != WATCH
        if not forward or step.doubt_at or not draft.contract(step).effect:
            continue
        doubt: dict[str, Any] = {"doubt_at": draft.now, "granted_at": draft.now}
        if step.state in {StepState.DISPATCHED, StepState.RETRYING}:
            settle(draft, step, None, why=LOST_COMMITS, **doubt)
        elif step.state in {StepState.WAITING, StepState.HALTED}:
            draft.move(step, "distrust", LOST_COMMITS, state=step.state, **doubt)
