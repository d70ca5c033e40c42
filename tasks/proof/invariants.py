"""The invariants: what must hold of every record, whatever went wrong on the way to it.

One function or more for each, from a record to the violations, each a sentence for the person who
has to find the cause. The same list is used by the simulation, the small scope, the tests that kill
processes and ``atalaia prove``.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

from models.states import (
    SAGA_LIVE,
    SAGA_TERMINAL,
    STEP_LIVE,
    STEP_SETTLED,
    AttemptState,
    Direction,
    SagaState,
    StepState,
)
from orchestration.contract import AgentContract
from orchestration.definition import Definition, Parallel, Sequence, Step
from orchestration.safety import Position, positions
from orchestration.snapshot import LATE
from tasks.proof.books import Books, Found
from tasks.proof.finer import (
    closed_keys_are_not_sent,
    late_successes_are_undone,
    nothing_is_given_up_too_early,
    nothing_turns_back_after_the_pivot,
    only_the_holder_is_heard,
    undos_are_given_the_result,
    what_has_ended_ends_once,
)
from tasks.proof.record import CUSTOMER, Record

REMOTE_CALLS, WINDOW = 60, timedelta(minutes=10)
"""How many calls one step may make of its partner in any window of that length."""
UNDONE = frozenset({SagaState.COMPENSATED, SagaState.CANCELLED})


@dataclass(frozen=True)
class Violation:
    """Something that must never be."""

    invariant: str
    saga_id: str
    step: str
    text: str

    def __str__(self) -> str:
        """Return it in one line."""
        return f"{self.invariant}: {self.text}"


def one_effect_for_one_key(books: Books) -> Found:
    """INV-1: no operation takes effect twice under one key."""
    for (saga_id, step), effects in books.effects.items():
        for key, count in Counter(effect.key for effect in effects).items():
            if count > 1:
                yield saga_id, step, f"step {step!r} took effect {count} times under key {key}"


def completed_means_done_once(books: Books) -> Found:
    """INV-2: in a completed saga every step with an effect has exactly one that stands."""
    for saga_id, row, contract in books.own_steps():
        saga = books.sagas[saga_id]
        if saga.state != SagaState.COMPLETED or not contract.effect:
            continue
        standing = _standing(books, saga_id, row.path)
        if row.state == StepState.ABANDONED:
            if standing > 1:
                yield saga_id, row.path, f"step {row.path!r} stands {standing} times"
        elif standing != 1:
            yield (
                saga_id,
                row.path,
                (f"the saga is completed, and step {row.path!r} has {standing} effects that stand"),
            )


def undone_means_none_stands(books: Books) -> Found:
    """INV-3: in a saga that was undone nothing stands, except what was agreed not to be known."""
    for saga_id, row, contract in books.own_steps():
        saga = books.sagas[saga_id]
        if saga.state not in UNDONE or not contract.effect:
            continue
        standing = _standing(books, saga_id, row.path)
        agreed = contract.at_most_once and (
            row.state == StepState.ABANDONED
            or (row.state != StepState.FAILED and not contract.compensation)
        )
        if standing > agreed:
            yield (
                saga_id,
                row.path,
                (f"the saga is {saga.state}, and {standing} effect of step {row.path!r} stands"),
            )


def history_fits_the_plan(books: Books) -> Found:
    """INV-4: no step starts before what stands before it is done; undoing goes the other way."""
    for saga_id, definition in books.definition.items():
        yield from _order(books, saga_id, definition.workflow.steps)


def attempts_follow_each_other(books: Books) -> Found:
    """INV-5: attempts rise, never overlap, and no direction of a step succeeds twice."""
    for (saga_id, path), attempts in books.attempts.items():
        row = books.steps[saga_id][path]
        for earlier, later in pairwise(sorted(attempts, key=lambda attempt: attempt.no)):
            if earlier.ended_at is None or earlier.ended_at > later.granted_at:
                text = f"attempts {earlier.no} and {later.no} of step {path!r} overlap"
                yield saga_id, path, text
        if attempts and attempts[-1].no > row.attempt:
            yield saga_id, path, f"step {path!r} is at {row.attempt}, behind its own attempts"
        won = Counter(a.direction for a in attempts if a.state == AttemptState.SUCCEEDED)
        for direction, count in won.items():
            if count > 1:
                yield saga_id, path, f"step {path!r} succeeded {count} times {direction}"


def nothing_is_forgotten(books: Books) -> Found:
    """INV-6: what is not over has a time at which somebody looks at it, or a question open."""
    for saga_id, rows in books.steps.items():
        for path, row in rows.items():
            if row.state in STEP_LIVE and row.wake_at is None:
                yield saga_id, path, f"step {path!r} is {row.state} and never woken"
            if row.state == StepState.LEASED and row.deadline_at is None:
                yield saga_id, path, f"step {path!r} is leased for ever"
        saga = books.sagas[saga_id]
        own = [row for path, row in rows.items() if not path.endswith(LATE)]
        if saga.state in SAGA_LIVE and not any(row.state in STEP_LIVE for row in own):
            yield saga_id, "", f"the saga is {saga.state} and none of its steps can move"


def nothing_is_sent_without_a_lease(books: Books) -> Found:
    """INV-7: every action and every undo that a partner received has a lease from before it."""
    for request in books.record.requests:
        if request.operation not in {"action", "compensation"}:
            continue
        number = request.attempt
        paths = (request.step, request.step + LATE)
        leases = [
            attempt
            for path in paths
            for attempt in books.attempts[request.saga_id, path]
            if attempt.no == number and attempt.granted_at <= request.at
        ]
        if not leases:
            text = f"step {request.step!r} was sent as attempt {number} without a lease"
            yield request.saga_id, request.step, text


def nothing_is_held_after_the_end(books: Books) -> Found:
    """INV-8: a saga that has ended holds no lease and waits for nothing."""
    for saga_id, row, _ in books.own_steps():
        if books.sagas[saga_id].state in SAGA_TERMINAL and row.state not in STEP_SETTLED:
            yield saga_id, row.path, f"the saga has ended and step {row.path!r} is {row.state}"


def money_is_conserved(books: Books) -> Found:
    """INV-9: what was taken arrived; who is served has paid once, who is not has all of it back."""
    if off := sum(books.record.ledger):
        yield "", "", f"the ledger is off by {off}"
    total, paid, price = Counter[str](), Counter[tuple[str, str]](), dict[tuple[str, str], int]()
    for booking in books.record.payments:
        total[booking.saga_id] += booking.amount
        if booking.account == CUSTOMER:
            paid[booking.saga_id, booking.step] -= booking.amount
            price.setdefault((booking.saga_id, booking.step), -booking.amount)
    for saga_id, amount in total.items():
        if amount:
            yield saga_id, "", f"the accounts are off by {amount}"
    for saga_id, row, contract in books.own_steps() if books.record.payments else ():
        if contract.effect and books.sagas[saga_id].state in SAGA_TERMINAL:
            key = saga_id, row.path
            allowed = _prices(books.sagas[saga_id].state, row, contract, price.get(key, 0))
            if paid[key] not in allowed:
                text = f"step {row.path!r} was paid with {paid[key]}, which should be {allowed[0]}"
                yield saga_id, row.path, text


def what_is_halted_asks_one_question(books: Books) -> Found:
    """INV-10: every halted step has exactly one open incident, and every halted saga has one."""
    for saga_id, rows in books.steps.items():
        for path, row in rows.items():
            count = books.open[saga_id, path]
            if row.state == StepState.HALTED and count != 1:
                yield saga_id, path, f"step {path!r} is halted with {count} open incidents"
        halted = books.sagas[saga_id].state == SagaState.HALTED
        if halted and not any(
            count for (owner, _), count in books.open.items() if owner == saga_id
        ):
            yield saga_id, "", "the saga is halted and nobody was asked"


def every_saga_ends(books: Books) -> Found:
    """INV-11: once the faults have stopped, every saga comes to its end in time."""
    if not books.record.settled:
        return
    for saga_id, saga in books.sagas.items():
        if saga.state not in SAGA_TERMINAL and saga.state != SagaState.HALTED:
            states = {path: str(row.state) for path, row in books.steps[saga_id].items()}
            yield saga_id, "", f"the saga is still {saga.state}: {states}"


def partners_are_called_sparingly(books: Books) -> Found:
    """INV-12: no step calls its partner more often than the budget allows."""
    calls = defaultdict(list)
    for request in books.record.requests:
        calls[request.saga_id, request.step].append(request.at)
    for (saga_id, step), instants in calls.items():
        instants.sort()
        for first, last in zip(instants, instants[REMOTE_CALLS:], strict=False):
            if last - first < WINDOW:
                text = (
                    f"step {step!r} called its partner more than {REMOTE_CALLS} times in {WINDOW}"
                )
                yield saga_id, step, text
                break


def only_workers_call(books: Books) -> Found:
    """INV-13: the supervisor calls no partner."""
    for request in books.record.requests:
        if request.caller in {"sweep", "client"}:
            text = f"step {request.step!r} was sent by a {request.caller}"
            yield request.saga_id, request.step, text


def what_has_ended_stays_ended(books: Books) -> Found:
    """INV-14: after its end a saga moves no step and no state of its own."""
    ended = {saga_id: row.ended_at for saga_id, row in books.sagas.items() if row.ended_at}
    for entry in books.rows.journal:
        end = ended.get(str(entry.saga_id))
        moved = bool(entry.to_state) and entry.to_state != entry.from_state
        if end is not None and entry.at > end and moved and not entry.path.endswith(LATE):
            what = f"step {entry.path!r}" if entry.path else "the saga"
            text = f"{what} went from {entry.from_state} to {entry.to_state} after the end"
            yield str(entry.saga_id), entry.path, text
    for (saga_id, path), attempts in books.attempts.items():
        end = ended.get(saga_id)
        if end and not path.endswith(LATE) and any(a.granted_at > end for a in attempts):
            yield saga_id, path, f"step {path!r} was leased after the saga's end"


INVARIANTS: dict[str, tuple[Callable[[Books], Found], ...]] = {
    "INV-1": (one_effect_for_one_key,),
    "INV-2": (completed_means_done_once,),
    "INV-3": (
        undone_means_none_stands,
        undos_are_given_the_result,
        late_successes_are_undone,
        nothing_is_given_up_too_early,
    ),
    "INV-4": (history_fits_the_plan, nothing_turns_back_after_the_pivot),
    "INV-5": (attempts_follow_each_other, only_the_holder_is_heard),
    "INV-6": (nothing_is_forgotten,),
    "INV-7": (nothing_is_sent_without_a_lease, closed_keys_are_not_sent),
    "INV-8": (nothing_is_held_after_the_end,),
    "INV-9": (money_is_conserved,),
    "INV-10": (what_is_halted_asks_one_question,),
    "INV-11": (every_saga_ends,),
    "INV-12": (partners_are_called_sparingly,),
    "INV-13": (only_workers_call,),
    "INV-14": (what_has_ended_stays_ended, what_has_ended_ends_once),
}  # fmt: skip


def check(record: Record) -> list[Violation]:
    """Return everything that is wrong with a record."""
    books = Books(record)
    return [
        Violation(name, saga_id, step, text)
        for name, readings in INVARIANTS.items()
        for reading in readings
        for saga_id, step, text in reading(books)
        if (saga_id, step) not in record.by_hand
    ]


def _prices(state: SagaState, row: Any, contract: AgentContract, price: int) -> list[int]:
    """Return what a customer may have paid for a step in the end, what is usual first."""
    undone = state in UNDONE
    agreed = contract.at_most_once and (
        row.state == StepState.ABANDONED or (undone and not contract.compensation)
    )
    usual, other = (0, price) if undone else (price, 0)
    return [usual, other] if agreed else [usual]


def _standing(books: Books, saga_id: str, step: str) -> int:
    return sum(effect.undone_at is None for effect in books.effects[saga_id, step])


def _order(books: Books, saga_id: str, node: Step | Sequence | Parallel) -> Found:
    if isinstance(node, Step):
        return
    for child in node.children:
        yield from _order(books, saga_id, child)
    if isinstance(node, Sequence):
        for earlier, later in pairwise(node.children):
            yield from _follows(books, saga_id, earlier, later)


def _follows(
    books: Books,
    saga_id: str,
    earlier: Step | Sequence | Parallel,
    later: Step | Sequence | Parallel,
) -> Found:
    """Compare two neighbours of a sequence."""
    before, after = _attempts(books, saga_id, earlier), _attempts(books, saga_id, later)
    forward = [a for a in after if a.direction == Direction.FORWARD]
    if forward:
        begun = min(a.granted_at for a in forward)
        for attempt in before:
            if attempt.direction == Direction.FORWARD and attempt.granted_at > begun:
                text = f"step {attempt.path!r} was leased after what follows it had begun"
                yield saga_id, attempt.path, text
    undoing = [a for a in before if a.direction == Direction.BACKWARD]
    if undoing:
        begun = min(a.granted_at for a in undoing)
        for attempt in after:
            if attempt.granted_at > begun:
                text = f"step {attempt.path!r} was leased after what stands before it was undone"
                yield saga_id, attempt.path, text


def _attempts(books: Books, saga_id: str, node: Step | Sequence | Parallel) -> list[Any]:
    if isinstance(node, Step):
        return books.attempts[saga_id, node.name]
    return [a for child in node.children for a in _attempts(books, saga_id, child)]


def position_of(definition: Definition, step: str) -> Position:
    """Return where a step stands, seen from the pivot."""
    return positions(definition.workflow)[step]
