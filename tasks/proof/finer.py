"""Finer readings of some invariants: what else must be true of a record that seems to be right.

Each belongs to the invariant under whose number it is listed, and shows its violation sooner:
before an effect is doubled, or orphaned.
"""

from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Any

from models.states import AttemptState, Direction, StepState
from orchestration.safety import Position, positions
from orchestration.snapshot import LATE
from tasks.proof.books import Books, Found

AT_ONCE = timedelta(seconds=1)


def nothing_turns_back_after_the_pivot(books: Books) -> Found:
    """INV-4: behind its pivot a saga only goes forward, and nothing from the pivot on is undone."""
    for saga_id, definition in books.definition.items():
        for path, position in positions(definition.workflow).items():
            attempts = [] if position is Position.BEFORE else books.attempts[saga_id, path]
            if any(attempt.direction == Direction.BACKWARD for attempt in attempts):
                yield saga_id, path, f"step {path!r} stands {position} the pivot and was undone"
            passed = any(
                attempt.direction == Direction.FORWARD
                and (position is Position.AFTER or attempt.state == AttemptState.SUCCEEDED)
                for attempt in attempts
            )
            if passed and getattr(books.sagas[saga_id], "abort", None):
                yield saga_id, path, f"the saga turned back behind the pivot, after step {path!r}"


def undos_are_given_the_result(books: Books) -> Found:
    """INV-3: an undo is given what its action has returned, and that is kept for the next one."""
    won: dict[tuple[str, str], datetime] = {
        place: attempt.ended_at
        for place, attempts in books.attempts.items()
        for attempt in attempts
        if attempt.direction == Direction.FORWARD and attempt.state == AttemptState.SUCCEEDED
    }
    for request in books.record.requests:
        done_at = won.get((request.saga_id, request.step))
        if not request.with_result and done_at is not None and done_at <= request.at:
            text = f"the undo of step {request.step!r} was not given the result of its action"
            yield request.saga_id, request.step, text
    for saga_id, row, contract in books.own_steps():
        result = getattr(row, "result", "")
        kept = result is not None or not books.record.always_returns
        undone = row.state == StepState.COMPENSATED
        if contract.effect and undone and (saga_id, row.path) in won and not kept:
            yield saga_id, row.path, f"the result of step {row.path!r} was lost when it was undone"


def late_successes_are_undone(books: Books) -> Found:
    """INV-3: a success that is reported after its step was given up is undone at once."""
    begun: dict[tuple[str, str], datetime] = {}
    for entry in books.rows.journal:
        if entry.path.endswith(LATE) and getattr(entry, "row", None) == "24":
            begun.setdefault((str(entry.saga_id), entry.path), entry.at)
    for saga_id, row, contract in books.own_steps():
        if row.state not in {StepState.FAILED, StepState.SKIPPED} or not contract.compensation:
            continue
        for attempt in books.attempts[saga_id, row.path]:
            said_at = _late_success(attempt)
            undone_at = begun.get((saga_id, row.path + LATE))
            if said_at and (undone_at is None or undone_at > said_at + AT_ONCE):
                text = f"the late success of step {row.path!r}, given up, was not undone at once"
                yield saga_id, row.path, text


def nothing_is_given_up_too_early(books: Books) -> Found:
    """INV-3: what was given up on its absence takes effect only if its partner breaks its word."""
    for entry in books.rows.journal:
        if getattr(entry, "row", None) != "24" or entry.from_state != StepState.UNKNOWN:
            continue
        step = entry.path.removesuffix(LATE)
        effects = books.effects[str(entry.saga_id), step]
        if effects and not any(effect.beyond for effect in effects):
            yield str(entry.saga_id), step, f"step {step!r} was given up while it could take effect"


def _late_success(attempt: Any) -> datetime | None:
    """Return when an attempt that had been ended forward reported its success."""
    late = getattr(attempt, "late", None)
    if not late or attempt.direction != Direction.FORWARD or late.get("outcome") != "succeeded":
        return None
    return datetime.fromisoformat(late["at"])


def closed_keys_are_not_sent(books: Books) -> Found:
    """INV-7: no attempt that begins after a key is known to be closed sends it."""
    asked: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for request in books.record.requests:
        asked[request.saga_id, request.step].append(request)
    for entry in books.rows.journal:
        if (getattr(entry, "details", None) or {}).get("answer") != "closed":
            continue
        place = str(entry.saga_id), entry.path
        begun = {a.no: a.granted_at for a in books.attempts[place]}
        requests = asked[place]
        keys = [r.key for r in requests if r.operation == "close" and r.at <= entry.at]
        for request in requests:
            sent = request.operation == "action" and request.key in keys[-1:]
            if sent and begun.get(request.attempt, entry.at) > entry.at:
                yield *place, f"step {entry.path!r} was sent under a key that had been closed"


def only_the_holder_is_heard(books: Books) -> Found:
    """INV-5: a heartbeat is accepted while its attempt holds the lease, and never prolongs it."""
    for beat in books.record.beats:
        for attempt in books.attempts[beat.saga_id, beat.step]:
            if attempt.no == beat.attempt and attempt.ended_at and attempt.ended_at < beat.at:
                text = f"a heartbeat of attempt {beat.attempt} of step {beat.step!r} came after it"
                yield beat.saga_id, beat.step, text
        if beat.wake_at and beat.deadline_at and beat.wake_at > beat.deadline_at:
            text = f"a heartbeat of step {beat.step!r} has put off the end of its lease"
            yield beat.saga_id, beat.step, text


def what_has_ended_ends_once(books: Books) -> Found:
    """INV-14: a saga comes to its end once."""
    ends = Counter[str]()
    for entry in books.rows.journal:
        if not entry.path and getattr(entry, "verb", "") == "finish":
            ends[str(entry.saga_id)] += 1
    for saga_id, count in ends.items():
        if count > 1:
            yield saga_id, "", f"the saga came to its end {count} times"
