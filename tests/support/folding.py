"""A saga in memory: folds decisions into rows as the store does, and refuses what it would refuse.

Every fold checks what must hold at any time, so each test that uses it tests the invariants too.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from models.states import (
    SAGA_LIVE,
    SAGA_MOVES,
    SAGA_TERMINAL,
    STEP_LIVE,
    STEP_MOVES,
    STEP_SETTLED,
    AttemptState,
    Direction,
    Operation,
    SagaState,
    StepState,
)
from orchestration.contract import AgentContract
from orchestration.decide import decide
from orchestration.definition import (
    Definition,
    Parallel,
    Sequence,
    Step,
    Workflow,
    sequence,
)
from orchestration.events import (
    UNSET,
    AddStep,
    Answered,
    Cancelled,
    CloseIncidents,
    Crashed,
    DeadlinePassed,
    Decision,
    Done,
    Event,
    Failed,
    FailureKind,
    Lost,
    MoveSaga,
    MoveStep,
    OpenIncident,
    Outcome,
    Refuse,
    Remedy,
    Reported,
    Resolved,
    Send,
    Started,
    Woken,
)
from orchestration.signals import Answer
from orchestration.snapshot import LATE, SagaSnapshot, StepSnapshot

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
SAGA = UUID("01900000-0000-7000-8000-000000000001")
NODE = UUID("01900000-0000-7000-8000-0000000000aa")
UNSAFE_TO_WAIT_FOR_EVER = timedelta(days=3650)


@dataclass(frozen=True)
class Entry:
    """One move of a step or of the saga (then the path is empty)."""

    path: str
    verb: str
    before: str
    after: str
    row: str | None
    why: str


def contract(name: str = "hotels.book", **properties: Any) -> AgentContract:
    """Return a contract; a plain compensation and a remembered key, unless told otherwise."""
    usual: dict[str, Any] = {"idempotent": True, "compensation": True, "queue": "hotels"}
    return AgentContract(name=name, **(usual | properties))


def new_saga(definition: Definition, now: datetime = NOW, saga_id: UUID = SAGA) -> SagaSnapshot:
    """Return the rows of a saga that was just created."""
    deadline_at = now + definition.workflow.deadline
    steps = {
        name: StepSnapshot(
            path=name,
            kind="agent",
            agent=step.agent,
            queue=definition.contracts[step.agent].queue,
            direction=Direction.FORWARD,
            state=StepState.WAITING,
        )
        for name, step in definition.workflow.by_name.items()
    }
    return SagaSnapshot(
        id=saga_id,
        state=SagaState.RUNNING,
        deadline_at=deadline_at,
        wake_at=deadline_at,
        steps=steps,
    )


class Folded:
    """One saga, its attempts, its incidents and its journal."""

    def __init__(self, workflow: Workflow, *contracts: AgentContract, start: bool = True) -> None:
        self.definition = Definition(workflow, {given.name: given for given in contracts})
        self.now = NOW
        self.saga = new_saga(self.definition)
        self.results: dict[str, Any] = {}
        self.attempts: dict[tuple[str, int], AttemptState] = {}
        self.open: dict[tuple[str, str], str] = {}
        self.resolved: list[tuple[str, str, str]] = []
        self.journal: list[Entry] = []
        self.refused: list[Refuse] = []
        self.sent: list[Send] = []
        self.last: list[Decision] = []
        if start:
            self.event(Started())

    # --- reading -------------------------------------------------------------------------------

    def step(self, path: str) -> StepSnapshot:
        return self.saga.steps[path]

    @property
    def state(self) -> str:
        return str(self.saga.state)

    def states(self) -> dict[str, str]:
        return {path: str(step.state) for path, step in self.saga.steps.items()}

    def kinds(self, path: str = "") -> set[str]:
        """The kinds of the open incidents of a path."""
        return {kind for where, kind in self.open if where == path}

    def rows(self, path: str) -> list[str]:
        """The rows of the recovery table that decided about a step, in their order."""
        return [entry.row for entry in self.journal if entry.path == path and entry.row]

    def news(self) -> list[tuple[str, str]]:
        """What the last event sent, as (operation, path)."""
        return [(str(d.operation), d.path) for d in self.last if isinstance(d, Send)]

    # --- what happens --------------------------------------------------------------------------

    def event(self, event: Event) -> list[Decision]:
        self.last = decide(self.definition, self.saga, event, self.now)
        for decision in self.last:
            self._fold(decision)
        self.check()
        return self.last

    def later(self, **duration: float) -> "Folded":
        self.now += timedelta(**duration)
        return self

    def take(self, path: str) -> int:
        """Grant the lease of the next attempt, as ``lease.py`` does."""
        step = self.step(path)
        assert step.state is StepState.DISPATCHED, f"{path} is {step.state}"
        plan = self.definition.step(step.name)
        silence = plan.heartbeat_timeout or plan.timeout
        number = step.attempt + 1
        assert (path, number) not in self.attempts
        self.attempts[path, number] = AttemptState.OPEN
        self._put(
            replace(
                step,
                state=StepState.LEASED,
                attempt=number,
                node_id=NODE,
                pid=1,
                granted_at=self.now,
                deadline_at=self.now + plan.timeout,
                wake_at=self.now + min(plan.timeout, silence),
                dispatch_count=0,
                crash_count=0,
                asked_count=0,
            )
        )
        self.check()
        return number

    def report(self, path: str, outcome: Outcome, **as_of: Any) -> list[Decision]:
        step = self.step(path)
        reported: dict[str, Any] = {
            "attempt": step.attempt,
            "direction": step.direction,
            "incarnation": step.incarnation,
        }
        return self.event(Reported(path=path, outcome=outcome, **(reported | as_of)))

    def done(self, *paths: str, result: Any = None) -> "Folded":
        """Take and succeed, one step after another."""
        for path in paths:
            if self.step(path).state is not StepState.LEASED:
                self.take(path)
            self.report(path, Done(result=result))
        return self

    def fail(
        self,
        path: str,
        kind: FailureKind = FailureKind.PERMANENT,
        error: str = "SoldOut",
        delay: timedelta | None = None,
        result: Any = None,
    ) -> "Folded":
        """Take and fail."""
        if self.step(path).state is not StepState.LEASED:
            self.take(path)
        failure = Failed(kind=kind, type=error, message="no", delay=delay, result=result)
        self.report(path, failure)
        return self

    def lose(self, path: str) -> "Folded":
        """Take, and lose the process in mid-call."""
        if self.step(path).state is not StepState.LEASED:
            self.take(path)
        self.event(Lost(path=path, attempt=self.step(path).attempt, why="its process is gone"))
        return self

    def overdue(self, path: str) -> "Folded":
        """Take, and let the lease run out in mid-call."""
        if self.step(path).state is not StepState.LEASED:
            self.take(path)
        return self.wake(path)

    def crash(self, path: str) -> "Folded":
        self.event(Crashed(path=path, attempt=self.step(path).attempt + 1))
        return self

    def answer(self, path: str, answer: Answer) -> "Folded":
        step = self.step(path)
        assert step.inquiry is not None, f"{path}: nothing is asked"
        self.event(Answered(path=path, inquiry_no=step.inquiry_no, answer=answer))
        return self

    def wake(self, path: str, **flags: bool) -> "Folded":
        """Let the time come at which the step is due, and wake it."""
        wake_at = self.step(path).wake_at
        assert wake_at is not None, f"{path} has no wake-up"
        self.now = max(self.now, wake_at)
        self.event(Woken(path=path, **flags))
        return self

    def cancel(self, by: str = "ada", reason: str = "changed her mind") -> "Folded":
        self.event(Cancelled(by=by, reason=reason))
        return self

    def deadline(self) -> "Folded":
        self.now = max(self.now, self.saga.deadline_at)
        self.event(DeadlinePassed())
        return self

    def resolve(self, path: str, remedy: Remedy, result: Any = UNSET) -> "Folded":
        self.event(Resolved(path=path, remedy=remedy, by="ada", reason="looked", result=result))
        return self

    # --- folding -------------------------------------------------------------------------------

    def _put(self, step: StepSnapshot) -> None:
        self.saga = replace(self.saga, steps=self.saga.steps | {step.path: step})

    def _fold(self, decision: Decision) -> None:
        match decision:
            case MoveStep():
                self._move_step(decision)
            case MoveSaga(before=before, after=after, verb=verb, why=why):
                assert before.state == self.saga.state
                assert before.state not in SAGA_TERMINAL, f"{before.state} is terminal"
                same = before.state == after.state
                assert same or after.state in SAGA_MOVES[before.state], (before.state, after.state)
                self.saga = replace(after, steps=self.saga.steps)
                self.journal.append(Entry("", verb, str(before.state), str(after.state), None, why))
            case AddStep(step=step, why=why, row=row, result=result):
                assert step.path not in self.saga.steps, f"{step.path} exists"
                self._put(step)
                self.results[step.path] = result
                self.journal.append(Entry(step.path, "watch", "", str(step.state), row, why))
            case OpenIncident(path=path, kind=kind, message=message):
                self.open.setdefault((path, kind), message)
            case CloseIncidents(path=path, kind=kind, resolution=resolution):
                for key in [k for k in self.open if k[0] == path and kind in {None, k[1]}]:
                    del self.open[key]
                    self.resolved.append((*key, resolution))
            case Send():
                self.sent.append(decision)
            case Refuse():
                self.refused.append(decision)

    def _move_step(self, move: MoveStep) -> None:
        before, after = move.before, move.after
        present = self.saga.steps[before.path]
        assert before == present, f"{before.path}: decided on what is not there"
        assert after.state in STEP_MOVES[before.state], f"{before.state} -> {after.state}"
        assert after.attempt >= before.attempt
        assert after.incarnation >= before.incarnation
        ends = before.state is StepState.LEASED and after.state is not StepState.LEASED
        assert ends == (move.closes is not None), f"{move.verb} closes {move.closes}"
        if move.closes is not None:
            key = (before.path, before.attempt)
            assert self.attempts[key] is AttemptState.OPEN, f"{key} ended twice"
            self.attempts[key] = move.closes
        if move.result is not UNSET:
            self.results[before.path] = move.result
        self._put(after)
        states = (str(before.state), str(after.state))
        self.journal.append(Entry(before.path, move.verb, *states, move.row, move.why))

    # --- what holds at any time ----------------------------------------------------------------

    def check(self) -> None:
        """Assert what the tables' own constraints say, and that nothing is ever forgotten."""
        for step in self.saga.steps.values():
            self._check_step(step)
        own = [step for path, step in self.saga.steps.items() if not path.endswith(LATE)]
        ended = self.saga.state in SAGA_TERMINAL
        assert ended == (self.saga.ended_at is not None)
        assert not (ended and self.saga.wake_at)
        if ended:
            assert {step.state for step in own} <= STEP_SETTLED, self.states()
        elif self.saga.state in SAGA_LIVE:
            assert any(step.state in STEP_LIVE for step in own), "nothing is due in a live saga"
        else:
            assert self.open, "halted, and nobody was told"
        for send in self.last:
            if isinstance(send, Send):
                self._check_send(send)

    def _check_step(self, step: StepSnapshot) -> None:
        state = step.state
        assert (state in STEP_LIVE) == (step.wake_at is not None), step
        assert (state in STEP_SETTLED) == (step.settled_at is not None), step
        leased = state is StepState.LEASED
        assert leased == (step.deadline_at is not None and step.node_id is not None), step
        assert step.inquiry is None or state is StepState.UNKNOWN, step
        if state is StepState.HALTED:
            assert len(self.kinds(step.path)) == 1, f"{step.path}: {self.open}"
        if step.wake_at is not None:
            assert step.wake_at <= self.now + UNSAFE_TO_WAIT_FOR_EVER

    def _check_send(self, send: Send) -> None:
        """A message is only sent for what the row asks for, so that it can be taken."""
        step = self.step(send.path)
        if step.state is StepState.LEASED:  # taken since
            return
        if send.operation in {Operation.PROBE, Operation.CLOSE}:
            assert (step.inquiry, step.inquiry_no) == (str(send.operation), send.number), step
            return
        forward = send.operation is Operation.ACTION
        assert step.state is StepState.DISPATCHED, step
        assert (step.direction is Direction.FORWARD) == forward
        assert send.number == step.attempt + 1


def line(*steps: Step | Sequence | Parallel, **properties: Any) -> Workflow:
    """Return a workflow that runs ``steps`` one after another."""
    return Workflow("trip", version=1, steps=sequence(*steps), **properties)


def drain(run: Folded) -> list[str]:
    """Succeed whatever is dispatched until nothing is; return the paths in that order."""
    order: list[str] = []
    while due := sorted(
        path for path, step in run.saga.steps.items() if step.state is StepState.DISPATCHED
    ):
        run.done(due[0])
        order.append(due[0])
    return order
