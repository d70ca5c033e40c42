"""Draft: the saga as it will be once the decisions taken so far are written. Pure.

Every way in which a step can move is one method here, so that the fields that belong together
change together. The draft keeps the decisions in the order in which they were taken.
"""

from datetime import datetime, timedelta
from typing import Any

from models.states import (
    STEP_MOVES,
    STEP_SETTLED,
    AttemptState,
    Direction,
    Operation,
    SagaState,
    StepState,
)
from orchestration.contract import AgentContract
from orchestration.definition import Definition
from orchestration.definition import Step as StepDefinition
from orchestration.events import (
    UNSET,
    AddStep,
    CloseIncidents,
    Decision,
    MoveSaga,
    MoveStep,
    OpenIncident,
    Send,
)
from orchestration.safety import Position, positions
from orchestration.signals import Answer
from orchestration.snapshot import SagaSnapshot, StepSnapshot, changed

REDELIVERY = timedelta(seconds=5)
REDELIVERY_CEILING = timedelta(minutes=10)
POLL = timedelta(seconds=1)
ASKING = timedelta(seconds=5)
ASKING_CEILING = timedelta(minutes=5)

MAY_BE_UNSENT = frozenset(
    {StepState.WAITING, StepState.DISPATCHED, StepState.RETRYING, StepState.HALTED}
)
"""Without a doubt, a step in one of these was certainly never sent."""


def spaced(first: timedelta, count: int, ceiling: timedelta) -> timedelta:
    """Return ``first`` doubled ``count`` times, at most ``ceiling``."""
    doubled: timedelta = first * 2 ** min(count, 20)
    return min(doubled, ceiling)


class Draft:
    """One event's working copy. Not shared, not stored."""

    def __init__(self, definition: Definition, saga: SagaSnapshot, now: datetime) -> None:
        self.definition = definition
        self.saga = saga
        self.steps = dict(saga.steps)
        self.now = now
        self.decisions: list[Decision] = []
        self.position = positions(definition.workflow)
        self.heard: Answer | None = None
        """What the remote has said of the step that the table is being applied to."""

    # --- reading -----------------------------------------------------------------------------

    def contract(self, step: StepSnapshot) -> AgentContract:
        """Return what the step's agent declared."""
        return self.definition.contract(step.name)

    def plan(self, step: StepSnapshot) -> StepDefinition:
        """Return the step's definition."""
        return self.definition.step(step.name)

    def lasting(self, step: StepSnapshot) -> timedelta:
        """Return how long a process may live that calls the step's agent."""
        return self.definition.longest_task(step.name)

    @property
    def aborting(self) -> bool:
        """Whether the saga has turned back."""
        return self.saga.abort is not None

    @property
    def late(self) -> bool:
        """Whether the saga's deadline has passed."""
        return self.now >= self.saga.deadline_at

    def pivot(self) -> StepSnapshot | None:
        """Return the pivot's step, if the workflow has one."""
        names = [name for name, place in self.position.items() if place is Position.PIVOT]
        return self.steps[names[0]] if names else None

    def past_return(self) -> str | None:
        """Return the pivot's name once it may have taken effect, or ``None``."""
        pivot = self.pivot()
        if pivot is None:
            return None
        ended = pivot.state in {StepState.FAILED, StepState.SKIPPED}
        unsent = pivot.state in MAY_BE_UNSENT and not pivot.doubt_at
        return None if ended or unsent else pivot.name

    # --- moving a step -------------------------------------------------------------------------

    def move(
        self,
        step: StepSnapshot,
        verb: str,
        why: str,
        *,
        row: str | None = None,
        closes: AttemptState | None = None,
        result: Any = UNSET,
        quiet: bool = False,
        **changes: Any,
    ) -> StepSnapshot:
        """Change a step and record the decision; return the step as it is then.

        A step that leaves dispatched without a lease uses up its attempt, since the message of that
        attempt is still on its way and must not open another one under another direction or key.
        """
        after = changed(step, **changes)
        still = after.state is StepState.DISPATCHED and after.direction is step.direction
        if step.state is StepState.DISPATCHED and not still and STEP_MOVES[after.state]:
            after = changed(after, attempt=step.attempt + 1)
        if step.state is StepState.LEASED and after.state is not StepState.LEASED:
            after = changed(after, node_id=None, pid=None, deadline_at=None)
        if after.state is not StepState.UNKNOWN:
            after = changed(after, inquiry=None)
        settled = after.state in STEP_SETTLED
        after = changed(after, settled_at=self.now if settled else None)
        if settled or after.state in {StepState.HALTED, StepState.WAITING}:
            after = changed(after, wake_at=None)
        self.steps[step.path] = after
        move = MoveStep(
            before=step,
            after=after,
            verb=verb,
            why=why,
            row=row,
            closes=closes,
            result=result,
            quiet=quiet,
            answer=type(self.heard).__name__.lower() if row and self.heard else None,
        )
        self.decisions.append(move)
        return after

    def dispatch(
        self,
        step: StepSnapshot,
        why: str,
        *,
        row: str | None = None,
        verb: str = "dispatch",
        quiet: bool = False,
        **changes: Any,
    ) -> StepSnapshot:
        """Commit a step to be run and send it."""
        after = self.move(
            step,
            verb,
            why,
            row=row,
            quiet=quiet,
            state=StepState.DISPATCHED,
            dispatched_at=self.now,
            ready_at=changes.pop("ready_at", step.ready_at) or self.now,
            dispatch_count=1,
            wake_at=self.now + self.redelivery(step, 0),
            **changes,
        )
        self.send(after)
        return after

    def redelivery(self, step: StepSnapshot, count: int) -> timedelta:
        """Return how long to wait for the lease before the message is sent again."""
        wait = spaced(REDELIVERY, count, REDELIVERY_CEILING)
        plan = self.plan(step)
        limits = (plan.schedule_to_start, plan.schedule_to_close)
        return min([wait, *(limit for limit in limits if limit)])

    def send(self, step: StepSnapshot) -> None:
        """Tell the step's agent, after the commit."""
        forward = step.direction is Direction.FORWARD
        operation = Operation.ACTION if forward else Operation.COMPENSATION
        self.decisions.append(
            Send(operation=operation, path=step.path, agent=step.agent, number=step.attempt + 1)
        )

    def undo(
        self, step: StepSnapshot, why: str, *, row: str | None = None, **changes: Any
    ) -> StepSnapshot:
        """Turn a step round and dispatch its compensation."""
        return self.dispatch(
            step,
            why,
            row=row,
            verb="compensate",
            direction=Direction.BACKWARD,
            failure_count=0,
            doubt_at=None,
            ready_at=self.now,
            **changes,
        )

    def retry(
        self, step: StepSnapshot, why: str, *, row: str | None, delay: timedelta, **changes: Any
    ) -> StepSnapshot:
        """Try a step again after ``delay``."""
        if delay <= timedelta(0):
            return self.dispatch(step, why, row=row, verb="retry", **changes)
        return self.move(
            step,
            "retry",
            why,
            row=row,
            state=StepState.RETRYING,
            wake_at=self.now + max(delay, timedelta(0)),
            **changes,
        )

    def ask(
        self,
        step: StepSnapshot,
        operation: Operation,
        why: str,
        *,
        row: str | None,
        wait: timedelta,
        counted: bool = True,
        **changes: Any,
    ) -> StepSnapshot:
        """Ask the remote service through the step's agent, now or after ``wait``."""
        if wait > timedelta(0):
            return self.move(
                step, "wait", why, row=row, state=StepState.UNKNOWN, inquiry=None,
                wake_at=self.now + wait, **changes,
            )  # fmt: skip
        after = self.move(
            step,
            str(operation),
            why,
            row=row,
            state=StepState.UNKNOWN,
            inquiry=str(operation),
            inquiry_no=step.inquiry_no + 1,
            asked_count=step.asked_count + counted,
            asked_at=self.now,
            wake_at=self.now + spaced(ASKING, step.asked_count, ASKING_CEILING),
            **changes,
        )
        self.decisions.append(
            Send(operation=operation, path=step.path, agent=step.agent, number=after.inquiry_no)
        )
        return after

    def soonest(self, step: StepSnapshot) -> timedelta:
        """Return how long to wait so that there is one question in a ``POLL`` at most."""
        nothing = timedelta(0)
        return max(step.asked_at + POLL - self.now, nothing) if step.asked_at else nothing

    def unless_hastened(
        self, step: StepSnapshot, answer: Answer | None, wait: timedelta
    ) -> timedelta:
        """Return ``wait``, or less where news came while the question was under way."""
        hastened = answer is not None and step.inquiry != step.question
        return min(wait, self.soonest(step)) if hastened else wait

    def park(
        self, step: StepSnapshot, kind: str, why: str, *, row: str | None = None, **changes: Any
    ) -> StepSnapshot:
        """Leave a step to an operator, with this as the only question."""
        after = self.move(step, "halt", why, row=row, state=StepState.HALTED, **changes)
        self.answered(step.path, "superseded", "scheduler", why)
        self.alert(step.path, kind, why)
        return after

    def alert(self, path: str, kind: str, message: str) -> None:
        """Open an incident."""
        self.decisions.append(OpenIncident(path=path, kind=kind, message=message))

    def answered(self, path: str, resolution: str, by: str, reason: str) -> None:
        """Close the incidents of a step."""
        self.decisions.append(
            CloseIncidents(path=path, resolution=resolution, by=by, reason=reason)
        )

    def add(self, step: StepSnapshot, why: str, row: str, **payload: Any) -> None:
        """Insert a row that watches for, or undoes, a late effect."""
        self.steps[step.path] = step
        self.decisions.append(AddStep(step=step, why=why, row=row, **payload))

    # --- moving the saga -----------------------------------------------------------------------

    def move_saga(self, verb: str, why: str, **changes: Any) -> None:
        """Change the saga and record the decision, if anything changes."""
        after = changed(self.saga, **changes)
        if after != self.saga:
            self.decisions.append(MoveSaga(before=self.saga, after=after, verb=verb, why=why))
            self.saga = after

    def end(self, state: SagaState, why: str) -> None:
        """End the saga, and with it the questions about it as a whole."""
        self.answered("", "by_itself", "scheduler", why)
        self.move_saga("finish", why, state=state, ended_at=self.now, wake_at=None)
