"""The supervisor: finds what is stuck and asks for its recovery. It reads rows and nothing else.

It calls no remote service, imports no agent and knows no workflow: what is to be done follows from
the rows, the stored contracts and the recovery table. Every sweep takes a bounded batch, oldest
first, one saga and one transaction at a time, and skips what another one is working on; so any
number of supervisors may run at once, and one that dies is continued by the next tick.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy.exc import InterfaceError, OperationalError

from models.states import Direction, StepState
from orchestration import due, retention
from orchestration.contract import RECOVERY_QUEUE_SUFFIX
from orchestration.metrics import RESCUES, SWEEPS, count, measured
from orchestration.ports import Dispatcher
from orchestration.roster import Held, Roster
from orchestration.scheduler import Scheduler
from orchestration.store import Store
from orchestration.telemetry import log_of

WAITS_FOR = {
    "overdue_leases": StepState.LEASED,
    "unresolved": StepState.UNKNOWN,
    "due_retries": StepState.RETRYING,
    "undelivered": StepState.DISPATCHED,
    "deadlines": "saga",
}
"""What must be due for a duty to have anything to do; the others always look."""
NO_RESCUE = frozenset({"due_retries", "past_retention"})
"""Duties that are a saga's ordinary way."""
UNSERVED_AFTER = 2
"""Messages sent in vain before it is asked whether anybody could take the step at all."""
IN_HANDS = 10
"""Among so many messages of a queue one may be fetched and not acted on yet."""


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """What one sweep did, by the name of the duty."""

    counts: Counter[str] = field(default_factory=Counter)

    @property
    def quiet(self) -> bool:
        """Whether there was nothing to do."""
        return not self.counts.total()


class Supervisor:
    """All sweeps. ``batch`` bounds each of them; ``node_timeout`` is the silence that is death.

    What ended ``keep_ended`` ago is deleted, unless anything may still come of it; ``None``: never.
    A sweep that finds full batches is repeated at once, within ``go_on_for``.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        dispatcher: Dispatcher,
        *,
        batch: int = 200,
        node_timeout: timedelta = timedelta(seconds=6),
        keep_ended: timedelta | None = None,
        go_on_for: timedelta = timedelta(0),
    ) -> None:
        self.scheduler = scheduler
        self.store: Store = scheduler.store
        self.roster = Roster(self.store)
        self.dispatcher = dispatcher
        self.batch = batch
        self.node_timeout = node_timeout
        self.keep_ended = keep_ended
        self.go_on_for = go_on_for.total_seconds()
        self.retention = retention.Retention(scheduler)
        self._purged_until = retention.FIRST
        self._looked_until: UUID = due.FIRST
        self._failed = 0
        self._full = False
        self.duties: dict[str, Callable[[], int]] = {
            "dead_nodes": self.sweep_dead_nodes,
            "overdue_leases": self.sweep_overdue_leases,
            "unresolved": self.sweep_unresolved,
            "due_retries": self.sweep_due_retries,
            "undelivered": self.sweep_undelivered,
            "deadlines": self.sweep_deadlines,
            "stranded": self.sweep_stranded,
            "past_retention": self.sweep_past_retention,
        }

    def sweep(self, *, go_on: bool = True) -> SweepReport:
        """Do every duty, once; with ``go_on``, as long as batches are full. Log it.

        A pass that moved nothing, or failed, would only be repeated by another one.
        """
        with measured(SWEEPS):
            began, passes = time.monotonic(), 1
            report = last = self._sweep()
            # Another pass may take as long as those before it did.
            while (
                go_on
                and self._full
                and not (last.quiet or self._failed)
                and (time.monotonic() - began) * (1 + 1 / passes) < self.go_on_for
            ):
                last = self._sweep()
                report.counts.update(last.counts)
                passes += 1
        for cause in self.duties.keys() - NO_RESCUE:
            count(RESCUES, cause, amount=report.counts[cause])
        return report

    def _sweep(self) -> SweepReport:
        report = SweepReport(counts=Counter(dict.fromkeys(self.duties, 0)))
        self._failed, self._full = 0, False
        with self.store.reading() as connection:
            found = due.kinds(connection, self.store)
        for name, duty in self.duties.items():
            if name not in WAITS_FOR or WAITS_FOR[name] in found:
                report.counts[name] += duty()
        report.counts["failed"] += self._failed
        if not report.quiet:
            done = {name: count for name, count in report.counts.items() if count}
            log_of("supervisor").info("swept", **done)
        return report

    def _each(self, found: Iterable[Any], act: Callable[[Any], int]) -> int:
        """Act on each of what was found; return how often that did something.

        A saga that cannot be decided does not keep the others waiting.
        """
        done = 0
        for one in found:
            try:
                done += act(one)
            except (OperationalError, InterfaceError):
                raise
            except Exception as error:  # noqa: BLE001 - what is wrong is wrong with one saga only
                self._failed += 1
                self.not_decided(one, error)
        return done

    def not_decided(self, found: Any, error: Exception) -> None:
        """Log what could not be decided, and why."""
        log_of("supervisor").error("not decided", found=str(found), exc_info=error)

    def sweep_dead_nodes(self) -> int:
        """Take back what silent nodes hold. Safe twice: a lease is lost once."""
        for node_id, heartbeat_at in self.roster.silent(self.node_timeout):
            self.roster.end_if_silent(node_id, heartbeat_at)
        held = self.roster.held_by_the_ended(self.batch)
        return self.release(held, "its node has gone silent")

    def release(self, held: list[Held], why: str) -> int:
        """Report leases lost."""
        return self._each(
            held, lambda one: self.scheduler.lost(one.saga_id, one.path, one.attempt, why)
        )

    def sweep_overdue_leases(self) -> int:
        """Take back leases past their deadline or their heartbeat."""
        return self._wake(StepState.LEASED)

    def sweep_unresolved(self) -> int:
        """Ask again, or at last, about outcomes that are not known."""
        return self._wake(StepState.UNKNOWN)

    def sweep_due_retries(self) -> int:
        """Dispatch what has waited long enough."""
        return self._wake(StepState.RETRYING)

    def _wake(self, state: StepState) -> int:
        with self.store.reading() as connection:
            steps = due.steps(connection, self.store, state, self.batch)
        self._full |= len(steps) == self.batch
        return self._each(steps, lambda step: self.scheduler.wake(step.saga_id, step.path))

    def sweep_undelivered(self) -> int:
        """Send again what no worker has taken, unless it still waits in a long queue."""
        with self.store.reading() as connection:
            steps = due.steps(connection, self.store, StepState.DISPATCHED, self.batch)
        if not steps:
            return 0
        self._full |= len(steps) == self.batch
        lanes = {(step.queue, step.direction) for step in steps}
        queued = {lane: self._all_queued(*lane) for lane in lanes}
        served = self.roster.served()
        return self._each(
            steps,
            lambda step: self.scheduler.wake(
                step.saga_id,
                step.path,
                queued=queued[step.queue, step.direction],
                unserved=step.dispatch_count >= UNSERVED_AFTER
                and (step.agent, step.definition_id) not in served,
            ),
        )

    def ring_again(self) -> int:
        """Send again, at once, what is dispatched and in no queue: for whoever follows on a crash.

        Its message was in the hands of what has crashed, or was never sent. If it is in the hands
        of somebody else who is about to take the lease, one of the two is refused.
        """
        with self.store.reading() as connection:
            steps = due.untaken(connection, self.batch)
        lanes = {self._lane(step.queue, step.direction) for step in steps}
        empty = {lane for lane in lanes if self.dispatcher.depth(lane) == 0}
        return self._each(
            [step for step in steps if self._lane(step.queue, step.direction) in empty],
            self._ring,
        )

    def _ring(self, step: Any) -> bool:
        with self.store.transaction() as connection:
            now = self.store.time(connection)
            self.store.hasten_if_dispatched(connection, step.saga_id, step, now)
        return self.scheduler.wake(step.saga_id, step.path)

    def _all_queued(self, queue: str, direction: str) -> bool:
        """Tell whether the broker holds about as many messages as steps wait for them.

        Some are in the hands of workers that have yet to take the lease, and the longer the queue,
        the more workers there may be. What is really lost is sent again when the queue is short.
        """
        depth = self.dispatcher.depth(self._lane(queue, direction))
        if not depth:
            return False
        with self.store.reading() as connection:
            enough = depth + depth // IN_HANDS
            return enough >= due.waiting_for(connection, queue, direction, limit=enough + 1)

    @staticmethod
    def _lane(queue: str, direction: str) -> str:
        """Return the queue at the broker in which messages of a direction wait."""
        return queue + RECOVERY_QUEUE_SUFFIX if direction == Direction.BACKWARD else queue

    def sweep_deadlines(self) -> int:
        """Act on sagas past their deadline."""
        with self.store.reading() as connection:
            sagas = due.sagas(connection, self.store, self.batch)
        self._full |= len(sagas) == self.batch
        return self._each(sagas, self.scheduler.deadline)

    def sweep_stranded(self) -> int:
        """Find live sagas in which nothing is due ever again, and derive what should be.

        By construction there are none; what a hand in the database left behind is found here, by
        looking at one batch of the live sagas after another.
        """
        with self.store.reading() as connection:
            sagas, self._looked_until = due.stranded(connection, self._looked_until, self.batch)
        return self._each(sagas, self.scheduler.nudge)

    def sweep_past_retention(self) -> int:
        """Delete sagas that ended long ago, with workers that did; return how many sagas.

        It looks at one batch after another, so that those which have to be kept hold up nobody.
        """
        before = self.retention.overdue(self.keep_ended) if self.keep_ended else None
        if before is None:
            return 0
        self.retention.purge_nodes(before, self.batch)
        asked = retention.Asked(before=before)
        page = self.retention.page(asked, self._purged_until, self.batch)
        self._purged_until = page[-1] if len(page) == self.batch else retention.FIRST
        ids = [place.id for place in page]
        parts = [ids[at : at + retention.AT_ONCE] for at in range(0, len(ids), retention.AT_ONCE)]
        return self._each(parts, lambda part: self.retention.purge(part).sagas)
