"""Leases: what an agent may do, for how long, and what it has to say afterwards.

A grant opens an attempt and is the send marker: without it nothing was sent. It is one guarded
update of one step row; a message that comes twice, late or for another version is refused by name.
"""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from models.states import Direction, Operation, StepState
from orchestration.contract import AgentContract
from orchestration.decide import UNSERVED
from orchestration.definition import Definition, Step
from orchestration.doubt import key_forgotten
from orchestration.errors import LeaseLostError
from orchestration.events import Answered, CloseIncidents, Outcome, Refuse, Reported, Send
from orchestration.failpoint import reach
from orchestration.metrics import REFUSALS, count
from orchestration.mysql import repeated
from orchestration.retention import hold
from orchestration.roster import NodeIdentity, Roster
from orchestration.scheduler import ANSWER_TIMEOUT, Scheduler, dispatch_of
from orchestration.signals import Answer
from orchestration.snapshot import StepSnapshot, idempotency_key
from orchestration.statement import AnyConnection
from orchestration.store import Store, step_snapshot
from orchestration.telemetry import log_for
from orchestration.writer import apply

UNKNOWN_DEFINITION = "unknown_definition"
KEY_MAY_BE_FORGOTTEN = "key_may_be_forgotten"
LOST_THE_RACE = "lost_the_race"
PURGED = "purged_saga"
SHORTEST = timedelta(seconds=1)
"""No lease is shorter: an agent that is given less could only fail."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an agent is given: a lease, or a question. Payloads are JSON."""

    saga_id: UUID
    path: str
    attempt: int
    direction: Direction
    incarnation: int
    plan: Step
    contract: AgentContract
    input: Any
    results: dict[str, Any]
    own_result: Any
    time_left: timedelta
    key: str
    """The key of the operation itself."""
    action_key: str
    """The key of the action that a probe, a close or a compensation is about."""
    followers: frozenset[str]
    """The steps that whoever has done this one may go on with at once."""
    trace: str | None = None
    """Where the saga's trace begins."""


class Leases:
    """The agents' side of the scheduler."""

    def __init__(self, scheduler: Scheduler, pid: Callable[[], int] = os.getpid) -> None:
        self.scheduler = scheduler
        self.pid = pid
        self.store: Store = scheduler.store
        self.roster = Roster(self.store)

    def grant(
        self, saga_id: UUID, path: str, number: int, node: NodeIdentity, known: set[str]
    ) -> Work | None:
        """Open attempt ``number`` and return what it needs, or ``None`` if it is refused.

        ``known`` are the definitions that the caller's code knows; the steps of others are left
        for a worker that has them.
        """
        with self.store.looking() as connection:
            row = self.store.read_for_work(connection, saga_id, path)
            if row is None:
                return None
            definition = self.scheduler.definition(connection, row.definition_id)
        step = step_snapshot(row)
        plan, contract = definition.step(step.name), definition.contract(step.name)
        lasting = definition.longest_task(step.name)
        refusal = _refusal(step, number, row.definition_id in known)
        if refusal is None and key_forgotten(step, contract, lasting, row.now):
            refusal = KEY_MAY_BE_FORGOTTEN
        if refusal is None and not self._take(saga_id, step, plan, node, row.now):
            refusal = LOST_THE_RACE
        if refusal is None:
            return self._work(saga_id, step, row, definition, attempt=number)
        self._refuse(saga_id, step, number, refusal, node, row)
        if refusal == UNKNOWN_DEFINITION:
            forward = step.direction is Direction.FORWARD
            operation = Operation.ACTION if forward else Operation.COMPENSATION
            send = Send(operation=operation, path=path, agent=step.agent, number=number)
            self._pass_on(saga_id, send, definition, row.definition_id)
        return None

    def _refuse(
        self, saga_id: UUID, step: StepSnapshot, number: int, name: str, node: NodeIdentity,
        row: Any,
    ) -> None:  # fmt: skip
        """Keep the evidence; have the step sent again where that is of use."""
        with self.store.writing() as connection:
            if not hold(connection, saga_id):
                return  # It has been purged since it was read.
            refuse = Refuse(path=step.path, attempt=number, name=name)
            apply(connection, saga_id, [refuse], actor=node.name, now=row.now)
            if name == KEY_MAY_BE_FORGOTTEN:
                self.store.hasten_if_dispatched(connection, saga_id, step, row.now)

    def turn_away(
        self, saga_id: UUID, path: str, number: int, operation: Operation, node: NodeIdentity
    ) -> None:
        """Pass on a message for an agent that this process does not have."""
        if operation not in {Operation.PROBE, Operation.CLOSE}:
            self.grant(saga_id, path, number, node, known=set())
            return
        with self.store.looking() as connection:
            row = self.store.read_for_work(connection, saga_id, path)
            if row is None or not _is_asked(step_snapshot(row), number, operation):
                return
            definition = self.scheduler.definition(connection, row.definition_id)
        agent = step_snapshot(row).agent
        send = Send(operation=operation, path=path, agent=agent, number=number)
        self._pass_on(saga_id, send, definition, row.definition_id)

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
        self, saga_id: UUID, step: StepSnapshot, plan: Step, node: NodeIdentity, now: datetime
    ) -> bool:
        """Take the lease, unless the step is no longer what it was."""
        granted = repeated(partial(self._take_at_once, saga_id, step, plan, node, now))
        if granted and step.dispatch_count > 1:
            found = CloseIncidents(
                path=step.path, resolution="by_itself", by=node.name, reason="a worker took it",
                kind=UNSERVED,
            )  # fmt: skip
            repeated(partial(self._close, saga_id, found, node, now))
        return granted

    def _take_at_once(
        self, saga_id: UUID, step: StepSnapshot, plan: Step, node: NodeIdentity, now: datetime
    ) -> bool:
        with self.store.at_once() as connection:
            granted = self._write_grant(connection, saga_id, step, plan, node, now)
            if granted:
                reach("p4")
        return granted

    def _close(
        self, saga_id: UUID, found: CloseIncidents, node: NodeIdentity, now: datetime
    ) -> None:
        with self.store.writing() as connection:
            apply(connection, saga_id, [found], actor=node.name, now=now)

    def _write_grant(
        self, connection: AnyConnection, saga_id: UUID, step: StepSnapshot, plan: Step,
        node: NodeIdentity, now: datetime,
    ) -> bool:  # fmt: skip
        deadline_at = now + _length(plan, step, now)
        silence = plan.heartbeat_timeout or plan.timeout
        return self.store.grant_lease_if_dispatched(
            connection, saga_id, step, node_id=node.id, node=node.name, pid=self.pid(),
            now=now, deadline_at=deadline_at, wake_at=min(deadline_at, now + silence),
        )  # fmt: skip

    def inquiry(self, saga_id: UUID, path: str, number: int, operation: Operation) -> Work | None:
        """Return what a probe or a close needs, or ``None`` if nobody asks that any more."""
        with self.store.looking() as connection:
            row = self.store.read_for_work(connection, saga_id, path)
            if row is None:
                return None
            step = step_snapshot(row)
            if not _is_asked(step, number, operation):
                return None
            definition = self.scheduler.definition(connection, row.definition_id)
        return self._work(saga_id, step, row, definition, attempt=step.attempt)

    def _work(
        self,
        saga_id: UUID,
        step: StepSnapshot,
        row: Any,
        definition: Definition,
        *,
        attempt: int,
    ) -> Work:
        direction = step.direction
        asks = step.state is StepState.UNKNOWN
        plan = definition.step(step.name)
        return Work(
            saga_id=saga_id,
            path=step.path,
            attempt=attempt,
            direction=direction,
            incarnation=step.incarnation,
            plan=plan,
            contract=definition.contract(step.name),
            input=row.input,
            results=row.results or {},
            own_result=row.result,
            time_left=min(plan.timeout, ANSWER_TIMEOUT) if asks else _length(plan, step, row.now),
            key=idempotency_key(saga_id, step.path, direction, step.incarnation),
            action_key=idempotency_key(saga_id, step.name, Direction.FORWARD, step.incarnation),
            followers=definition.followers(step.name),
            trace=row.trace,
        )

    def renew(self, work: Work, details: Any) -> None:
        """Record a heartbeat; raise ``LeaseLostError`` if the attempt no longer holds its lease."""
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
        following: list[Work] = []

        def follow(
            connection: AnyConnection, definition: Definition, sends: Sequence[Send]
        ) -> Send | None:
            following.clear()
            inline = [send for send in sends if send.path in work.followers]
            send = next((s for s in inline if s.operation is Operation.ACTION), None)
            if send is None or node is None:
                return None
            row = self.store.read_for_work(connection, work.saga_id, send.path)
            assert row is not None
            step, plan = step_snapshot(row), definition.step(send.path)
            if not self._write_grant(connection, work.saga_id, step, plan, node, row.now):
                return None
            number = send.number
            following.append(self._work(work.saga_id, step, row, definition, attempt=number))
            return send

        event = Reported(
            path=work.path,
            attempt=work.attempt,
            direction=work.direction,
            incarnation=work.incarnation,
            outcome=outcome,
        )
        known = self.scheduler.handle(
            work.saga_id, event, follow=follow if work.followers else None
        )
        if not known:
            count(REFUSALS, PURGED)
            log_for(str(work.saga_id), work.path, work.attempt).warning(
                "refused", reason="its saga has been purged", outcome=type(outcome).__name__.lower()
            )
        return following[0] if following else None

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


def _length(plan: Step, step: StepSnapshot, now: datetime) -> timedelta:
    """Return how long a lease lasts: the time-out, within what schedule-to-close leaves of it."""
    if plan.schedule_to_close is None or step.direction is Direction.BACKWARD:
        return plan.timeout
    left = (step.ready_at or now) + plan.schedule_to_close - now
    return max(min(plan.timeout, left), SHORTEST)


def _is_asked(step: StepSnapshot, number: int, operation: Operation) -> bool:
    """Tell whether a question is still to be put."""
    current = step.state is StepState.UNKNOWN and step.inquiry_no == number
    return current and step.question == operation


def _refusal(step: StepSnapshot, number: int, known: bool) -> str | None:  # noqa: FBT001
    """Name why a message is not acted on, or return ``None``."""
    if step.attempt >= number:
        return "duplicate_delivery"
    if step.attempt + 1 != number or step.state is not StepState.DISPATCHED:
        return "not_dispatched"
    return None if known else UNKNOWN_DEFINITION
