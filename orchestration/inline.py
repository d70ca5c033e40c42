"""Inline steps: the lease of the next step, granted together with the report of the one before."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from models.states import Operation
from orchestration.definition import Definition
from orchestration.events import Decision, Done, MoveStep, OpenAttempt, Outcome, Send
from orchestration.ports import Clock
from orchestration.roster import NodeIdentity
from orchestration.seen import PROMPT, Locked, Seen, after
from orchestration.snapshot import StepSnapshot
from orchestration.work import Work, as_leased, time_left


class Follower:
    """Goes on with an inline step: has its lease granted together with the report before it."""

    def __init__(
        self,
        work: Work,
        outcome: Outcome,
        node: NodeIdentity | None,
        pid: Callable[[], int],
        clock: Clock,
    ) -> None:
        self.pid = pid
        self.clock = clock
        self.before = work
        self.outcome = outcome
        self.node = node
        self.asked_at = clock.monotonic()
        self.work: Work | None = None

    def __call__(
        self,
        definition: Definition,
        of: Locked | Seen,
        decisions: Sequence[Decision],
        now: datetime,
    ) -> Sequence[Decision]:
        """Return what was decided, with a lease where a message would go to an inline step."""
        self.work = None
        followers = self.before.followers
        sends = [d for d in decisions if isinstance(d, Send) and d.path in followers]
        send = next((one for one in sends if one.operation is Operation.ACTION), None)
        if send is None or self.node is None:
            return decisions
        (move,) = [d for d in decisions if isinstance(d, MoveStep) and d.after.path == send.path]
        leased = as_leased(move.after, definition.step(send.path), self.node, self.pid(), now)
        taken = [decision for decision in decisions if decision not in (send, move)]
        taken += [replace(move, after=leased), OpenAttempt(step=leased, node=self.node.name)]
        self.work = self._work(leased, of, taken, now)
        return taken

    def _work(
        self, leased: StepSnapshot, of: Locked | Seen, decisions: Sequence[Decision], now: datetime
    ) -> Work:
        before = self.before
        results = of.results() if isinstance(of, Locked) else before.results
        if isinstance(self.outcome, Done):
            results = {**results, before.path: self.outcome.result}
        # A present that was reckoned may be behind, and the lease ends that much sooner.
        behind = PROMPT if isinstance(of, Seen) else timedelta()
        return replace(
            before,
            step=leased,
            results=results,
            own_result=None,
            time_left=time_left(leased) - behind,
            seen=self._seen(of, now, decisions),
        )

    def _seen(self, of: Locked | Seen, now: datetime, decisions: Sequence[Decision]) -> Seen | None:
        if isinstance(of, Seen):
            return of.after(decisions)
        read_at = self.clock.monotonic()
        if of.troubled or read_at - self.asked_at > PROMPT.total_seconds():
            return None
        return Seen(saga=after(of.saga, decisions), trace=of.trace, now=now, read_at=read_at)
