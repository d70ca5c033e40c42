"""Leases: what an agent may do, for how long, and what it has to say afterwards.

A grant opens an attempt and is the send marker: without it nothing was sent. It is one guarded
update of one step row; a message that comes twice, late or for another version is refused by name.
"""

import os
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from models.states import Direction, Operation, StepState
from orchestration.decide import UNSERVED
from orchestration.definition import Definition
from orchestration.doubt import key_forgotten
from orchestration.errors import LeaseLostError
from orchestration.events import (
    Answered,
    CloseIncidents,
    Done,
    Outcome,
    Refuse,
    Reported,
    Send,
)
from orchestration.failpoint import reach
from orchestration.inline import Follower
from orchestration.messages import ANSWER_TIMEOUT, dispatch_of
from orchestration.metrics import REFUSALS, count
from orchestration.mysql import repeated
from orchestration.ports import Clock
from orchestration.retention import hold
from orchestration.roster import NodeIdentity, Roster
from orchestration.scheduler import Scheduler
from orchestration.seen import PROMPT, Read, Seen
from orchestration.signals import Answer
from orchestration.snapshot import StepSnapshot, changed
from orchestration.statement import AnyConnection
from orchestration.store import Store
from orchestration.taking import Claim, Expected, take
from orchestration.telemetry import log_for
from orchestration.work import Work, as_leased, time_left
from orchestration.writer import note

UNKNOWN_DEFINITION = "unknown_definition"
KEY_MAY_BE_FORGOTTEN = "key_may_be_forgotten"
LOST_THE_RACE = "lost_the_race"
PURGED = "purged_saga"


class Leases:
    """The agents' side of the scheduler."""

    def __init__(
        self, scheduler: Scheduler, pid: Callable[[], int] = os.getpid, clock: Clock = time
    ) -> None:
        self.scheduler = scheduler
        self.pid = pid
        self.clock = clock
        self.store: Store = scheduler.store
        self.roster = Roster(self.store)
        self._expected: dict[str, Expected] = {}
        """By the path of a step: what the last saga's definition said of it."""

    def grant(
        self, saga_id: UUID, path: str, number: int, node: NodeIdentity, known: set[str]
    ) -> Work | None:
        """Open attempt ``number`` and return what it needs, or ``None`` if it is refused.

        ``known`` are the definitions that the caller's code knows; the steps of others are left
        for a worker that has them.
        """
        asked_at = self.clock.monotonic()
        with self.store.looking() as connection:
            claim = Claim(saga_id, path, number, node, self.pid())
            read, taken = self._read_or_take(connection, claim, known)
            if read is None:
                return None
            definition = self.scheduler.definition(connection, read.definition_id)
        read_at = self.clock.monotonic()
        step, now = read.step, read.now
        leased = as_leased(step, definition.step(step.name), node, claim.pid, now)
        refusal = None
        if taken:
            reach("p4")
        else:
            is_known = read.definition_id in known
            refusal = _refusal(step, number, definition, now, known=is_known)
            if refusal is None and not self._take(saga_id, step, leased, node, now):
                refusal = LOST_THE_RACE
        if refusal is None:
            self._expect(path, read.definition_id, definition)
            prompt = read_at - asked_at <= PROMPT.total_seconds()
            seen = _seen(read, leased, read_at) if prompt else None
            return self._work(saga_id, leased, read, definition, seen)
        self._refuse(saga_id, step, number, refusal, node, now)
        if refusal == UNKNOWN_DEFINITION:
            forward = step.direction is Direction.FORWARD
            operation = Operation.ACTION if forward else Operation.COMPENSATION
            send = Send(operation=operation, path=path, agent=step.agent, number=number)
            self._pass_on(saga_id, send, definition, read.definition_id)
        return None

    def _read_or_take(
        self, connection: AnyConnection, claim: Claim, known: set[str]
    ) -> tuple[Read | None, bool]:
        """Read a step, and take its lease where it is what was expected; tell whether it was."""
        expected = self._expected.get(claim.path)
        if expected is None or expected.definition_id not in known:
            return self.store.read(connection, claim.saga_id, claim.path), False
        return take(self.store, connection, claim, expected)

    def _expect(self, path: str, definition_id: str, definition: Definition) -> None:
        """Expect the definition for the next step of that path, where it alone says how long."""
        step = definition.workflow.by_name.get(path)
        if self.store.reads_changes and step is not None and step.schedule_to_close is None:
            self._expected[path] = Expected(definition_id, step)

    def _refuse(
        self, saga_id: UUID, step: StepSnapshot, number: int, name: str, node: NodeIdentity,
        now: datetime,
    ) -> None:  # fmt: skip
        """Keep the evidence; have the step sent again where that is of use."""
        with self.store.writing() as connection:
            if not hold(connection, saga_id):
                return  # It has been purged since it was read.
            refuse = Refuse(path=step.path, attempt=number, name=name)
            note(connection, saga_id, refuse, actor=node.name, now=now)
            if name == KEY_MAY_BE_FORGOTTEN:
                self.store.hasten_if_dispatched(connection, saga_id, step, now)

    def turn_away(
        self, saga_id: UUID, path: str, number: int, operation: Operation, node: NodeIdentity
    ) -> None:
        """Pass on a message for an agent that this process does not have."""
        if operation not in {Operation.PROBE, Operation.CLOSE}:
            self.grant(saga_id, path, number, node, known=set())
            return
        with self.store.looking() as connection:
            read = self.store.read(connection, saga_id, path)
            if read is None or not _is_asked(read.step, number, operation):
                return
            definition = self.scheduler.definition(connection, read.definition_id)
        send = Send(operation=operation, path=path, agent=read.step.agent, number=number)
        self._pass_on(saga_id, send, definition, read.definition_id)

    def _pass_on(
        self, saga_id: UUID, send: Send, definition: Definition, definition_id: str
    ) -> None:
        """Send a message to a release that knows the definition, if any of its nodes lives.

        Only such nodes read that queue, so it cannot come back. Nothing is written, as nothing has
        changed: if the message is lost, a sweep finds the step when it would have anyway.
        """
        release = self.roster.release_for(send.agent, definition_id)
        if release is None:
            return
        dispatch = dispatch_of(definition, saga_id, send)
        queue = definition.contracts[send.agent].queue
        lane = release + dispatch.queue.removeprefix(queue)
        self.scheduler.dispatcher.publish([replace(dispatch, queue=lane)])

    def _take(
        self, saga_id: UUID, step: StepSnapshot, leased: StepSnapshot, node: NodeIdentity,
        now: datetime,
    ) -> bool:  # fmt: skip
        """Take the lease, unless the step is no longer what it was."""
        granted = repeated(partial(self._take_at_once, saga_id, leased, node))
        if granted and step.dispatch_count > 1:
            found = CloseIncidents(
                path=step.path, resolution="by_itself", by=node.name, reason="a worker took it",
                kind=UNSERVED,
            )  # fmt: skip
            repeated(partial(self._close, saga_id, found, node, now))
        return granted

    def _take_at_once(self, saga_id: UUID, leased: StepSnapshot, node: NodeIdentity) -> bool:
        with self.store.at_once() as connection:
            granted = self.store.grant_lease_if_dispatched(connection, saga_id, leased, node.name)
            if granted:
                reach("p4")
        return granted

    def _close(
        self, saga_id: UUID, found: CloseIncidents, node: NodeIdentity, now: datetime
    ) -> None:
        with self.store.writing() as connection:
            note(connection, saga_id, found, actor=node.name, now=now)

    def inquiry(self, saga_id: UUID, path: str, number: int, operation: Operation) -> Work | None:
        """Return what a probe or a close needs, or ``None`` if nobody asks that any more."""
        with self.store.looking() as connection:
            read = self.store.read(connection, saga_id, path)
            if read is None or not _is_asked(read.step, number, operation):
                return None
            definition = self.scheduler.definition(connection, read.definition_id)
        return self._work(saga_id, read.step, read, definition, None)

    def _work(
        self, saga_id: UUID, step: StepSnapshot, read: Read, definition: Definition,
        seen: Seen | None,
    ) -> Work:  # fmt: skip
        plan = definition.step(step.name)
        asks = step.state is StepState.UNKNOWN
        return Work(
            saga_id=saga_id,
            step=step,
            definition=definition,
            input=read.input,
            results=read.results,
            own_result=read.result,
            time_left=min(plan.timeout, ANSWER_TIMEOUT) if asks else time_left(step),
            trace=read.trace,
            seen=seen,
        )

    def renew(self, work: Work, details: Any) -> None:
        """Record a heartbeat; raise ``LeaseLostError`` if the attempt no longer holds its lease."""
        work.seen = None  # A present that is reckoned might come before it.
        with self.store.writing() as connection:
            silence = work.plan.heartbeat_timeout
            if not self.store.renew_if_leased(
                connection, work.saga_id, work.path, work.attempt, silence, details
            ):
                msg = f"attempt {work.attempt} of step {work.path!r} no longer holds its lease"
                raise LeaseLostError(msg)

    def report(self, work: Work, outcome: Outcome, node: NodeIdentity | None = None) -> Work | None:
        """Record how an attempt ended, and start what follows.

        With ``node``, that node goes on with what is ``inline``: its lease is granted in the same
        transaction, and its work is returned.
        """
        event = Reported(
            path=work.path,
            attempt=work.attempt,
            direction=work.direction,
            incarnation=work.step.incarnation,
            outcome=outcome,
        )
        follow = Follower(work, outcome, node, self.pid, self.clock)
        if not self._report_unlocked(work, event, follow):
            follow.work = None
            known = self.scheduler.handle(work.saga_id, event, follow=follow)
            if not known:
                _count_purged(work, outcome)
        return follow.work

    def _report_unlocked(self, work: Work, event: Reported, follow: Follower) -> bool:
        """Report on what was seen at the grant, if nothing has happened since."""
        seen = work.seen
        if seen is None or not isinstance(event.outcome, Done) or not seen.is_alone(work.path):
            return False
        return self.scheduler.handle_unlocked(seen, work.definition, event, self.clock, follow)

    def give_back(
        self, node: NodeIdentity, saga_id: UUID, paths: Collection[str], why: str
    ) -> None:
        """End whatever attempts at ``paths`` this process holds the leases of.

        It may not even have heard of a grant: a commit may be kept though the connection broke
        before it was confirmed. Nothing is said of the outcome.
        """
        for held in self.roster.held_by(node.id, self.pid()):
            if held.saga_id == saga_id and held.path in paths:
                self.scheduler.lost(saga_id, held.path, held.attempt, why)

    def answer(self, saga_id: UUID, path: str, number: int, answer: Answer) -> None:
        """Record the answer to a probe or a close, and do what follows."""
        self.scheduler.handle(saga_id, Answered(path=path, inquiry_no=number, answer=answer))


def _seen(read: Read, leased: StepSnapshot, read_at: float) -> Seen | None:
    """Return a saga with the lease that was just given, if it was seen as a whole and at peace."""
    if read.saga is None or read.troubled:
        return None
    steps = {**read.saga.steps, leased.path: leased}
    saga = changed(read.saga, steps=steps)
    return Seen(saga=saga, trace=read.trace, now=read.now, read_at=read_at)


def _count_purged(work: Work, outcome: Outcome) -> None:
    """Say that what is reported about is no longer there."""
    count(REFUSALS, PURGED)
    log_for(str(work.saga_id), work.path, work.attempt).warning(
        "refused", reason="its saga has been purged", outcome=type(outcome).__name__.lower()
    )


def _is_asked(step: StepSnapshot, number: int, operation: Operation) -> bool:
    """Tell whether a question is still to be put."""
    current = step.state is StepState.UNKNOWN and step.inquiry_no == number
    return current and step.question == operation


def _refusal(
    step: StepSnapshot, number: int, definition: Definition, now: datetime, *, known: bool
) -> str | None:
    """Name why a message is not acted on, or return ``None``."""
    if step.attempt >= number:
        return "duplicate_delivery"
    if step.attempt + 1 != number or step.state is not StepState.DISPATCHED:
        return "not_dispatched"
    if not known:
        return UNKNOWN_DEFINITION
    contract, lasting = definition.contract(step.name), definition.longest_task(step.name)
    return KEY_MAY_BE_FORGOTTEN if key_forgotten(step, contract, lasting, now) else None
