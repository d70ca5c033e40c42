"""Work: what an agent is given, and what a step is while an agent holds its lease. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from models.states import Direction, StepState
from orchestration.contract import AgentContract
from orchestration.definition import Definition, Step
from orchestration.roster import NodeIdentity
from orchestration.seen import Seen
from orchestration.snapshot import StepSnapshot, changed, idempotency_key

SHORTEST = timedelta(seconds=1)
"""No lease is shorter: an agent that is given less could only fail."""


@dataclass(kw_only=True)
class Work:
    """What an agent is given: a lease, or a question. Payloads are JSON."""

    saga_id: UUID
    step: StepSnapshot
    """As it is while the lease, or the question, holds."""
    definition: Definition
    input: Any
    results: dict[str, Any]
    own_result: Any
    time_left: timedelta
    trace: str | None = None
    """Where the saga's trace begins."""
    seen: Seen | None = None
    """The saga as it was when the lease was given, as long as that is of use."""

    @property
    def path(self) -> str:
        """The path of the step."""
        return self.step.path

    @property
    def attempt(self) -> int:
        """The attempt that holds the lease, or that is asked about."""
        return self.step.attempt

    @property
    def direction(self) -> Direction:
        """Whether the step is done or undone."""
        return self.step.direction

    @property
    def plan(self) -> Step:
        """What the workflow says of the step."""
        return self.definition.step(self.step.name)

    @property
    def contract(self) -> AgentContract:
        """What the step's agent has declared."""
        return self.definition.contract(self.step.name)

    @property
    def followers(self) -> frozenset[str]:
        """The steps that whoever has done this one may go on with at once."""
        return self.definition.followers(self.step.name)

    @cached_property
    def key(self) -> str:
        """The key of the operation itself."""
        step = self.step
        return idempotency_key(self.saga_id, step.path, step.direction, step.incarnation)

    @cached_property
    def action_key(self) -> str:
        """The key of the action that a probe, a close or a compensation is about."""
        step = self.step
        if step.path == step.name and step.direction is Direction.FORWARD:
            return self.key
        return idempotency_key(self.saga_id, step.name, Direction.FORWARD, step.incarnation)


def as_leased(
    step: StepSnapshot, plan: Step, node: NodeIdentity, pid: int, now: datetime
) -> StepSnapshot:
    """Return a step as it is once its next attempt has the lease."""
    deadline_at = now + _length(plan, step, now)
    wake_at = min(deadline_at, now + longest_silence(plan))
    return changed(
        step, state=StepState.LEASED, attempt=step.attempt + 1, node_id=node.id, pid=pid,
        granted_at=now, deadline_at=deadline_at, wake_at=wake_at,
        dispatch_count=0, crash_count=0, asked_count=0,
    )  # fmt: skip


def longest_silence(plan: Step) -> timedelta:
    """Return for how long nothing may be heard of an attempt that has the lease."""
    return min(plan.timeout, plan.heartbeat_timeout or plan.timeout)


def time_left(leased: StepSnapshot) -> timedelta:
    """Return how long a lease lasts that was just given."""
    assert leased.deadline_at is not None
    assert leased.granted_at is not None
    return leased.deadline_at - leased.granted_at


def _length(plan: Step, step: StepSnapshot, now: datetime) -> timedelta:
    """Return how long a lease lasts: the time-out, within what schedule-to-close leaves of it."""
    if plan.schedule_to_close is None or step.direction is Direction.BACKWARD:
        return plan.timeout
    left = (step.ready_at or now) + plan.schedule_to_close - now
    return max(min(plan.timeout, left), SHORTEST)
