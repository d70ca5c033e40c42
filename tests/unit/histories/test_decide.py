"""Random workflows, events and faults against a model of the remotes: what no history may show.

Messages come late, twice or never; requests are sent, delayed or lost; processes die and return
from the dead; probes are vague; people cancel. The remotes count what was really done. At the end
of each history the faults stop, and the saga must come to its end within a bounded number of
events.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from models.states import (
    SAGA_TERMINAL,
    AttemptState,
    Direction,
    Operation,
    SagaState,
    StepState,
)
from orchestration.contract import AgentContract
from orchestration.definition import (
    Parallel,
    RetryPolicy,
    Sequence,
    Step,
    Workflow,
    parallel,
    sequence,
)
from orchestration.errors import RefusedError
from orchestration.events import (
    Answered,
    Cancelled,
    Crashed,
    Done,
    Failed,
    FailureKind,
    Hastened,
    Lost,
    Nudged,
    Outcome,
    Remedy,
    Reported,
    Resolved,
    Send,
    Woken,
)
from orchestration.safety import check_safety
from orchestration.signals import Answer, Pending, Unclear
from orchestration.snapshot import StepSnapshot, idempotency_key
from tests.support.folding import Folded
from tests.support.remote import Remote

UNDO = {"compensation": True}
BARRIER = {"compensation": True, "compensation_closes_key": True}
BEFORE: dict[str, dict[str, Any]] = {
    "idempotent": {"idempotent": True, **UNDO},
    "idempotent_probe": {"idempotent": True, "probe": True, **UNDO},
    "idempotent_barrier": {"idempotent": True, "probe": True, **BARRIER},
    "idempotent_close": {"idempotent": True, "close": True, **UNDO},
    "idempotent_all": {"idempotent": True, "probe": True, "close": True, **BARRIER},
    "forgetful": {
        "idempotent": True, "key_retention": timedelta(minutes=45), "close": True, **UNDO
    },
    "close": {"close": True, **UNDO},
    "close_probe": {"close": True, "probe": True, **UNDO},
    "barrier": BARRIER,
    "barrier_probe": {"probe": True, **BARRIER},
    "query": {"effect": False},
    "manual": {"manual": True, "probe": True, **UNDO},
}  # fmt: skip
FINAL: dict[str, dict[str, Any]] = {
    "final": {"idempotent": True},
    "final_probe": {"idempotent": True, "probe": True},
    "final_close": {"close": True, "probe": True},
    "final_both": {"idempotent": True, "close": True},
}
"""What cannot be undone stands at the pivot or after it."""
CONTRACTS = {name: AgentContract(name=name, **given) for name, given in (BEFORE | FINAL).items()}
POLICIES = (
    RetryPolicy(),
    RetryPolicy(max_attempts=1),
    RetryPolicy(max_attempts=2, non_retryable_errors=("Declined",)),
    RetryPolicy(total_timeout=timedelta(minutes=2)),
)
ENOUGH_EVENTS = 600


@dataclass
class Running:
    """One agent process in mid-call; after its lease is gone it is one returned from the dead."""

    path: str
    number: int
    operation: Operation
    direction: Direction
    incarnation: int
    key: str
    sent: bool = False
    effect: bool = False


@st.composite
def workflows(draw: st.DrawFn) -> Workflow:
    names = iter("abcdefgh")

    def step(agents: tuple[str, ...], **properties: Any) -> Step:
        return Step(
            next(names),
            agent=draw(st.sampled_from(agents)),
            retry=draw(st.sampled_from(POLICIES)),
            schedule_to_close=draw(st.sampled_from([None, None, timedelta(minutes=5)])),
            schedule_to_start=draw(st.sampled_from([None, None, timedelta(seconds=30)])),
            timeout=timedelta(minutes=1),
            **properties,
        )

    def tree(agents: tuple[str, ...], depth: int) -> Step | Sequence | Parallel:
        kind = draw(st.sampled_from(["step", "sequence", "parallel"])) if depth else "step"
        if kind == "step":
            return step(agents)
        children = [tree(agents, depth - 1) for _ in range(2)]
        return sequence(*children) if kind == "sequence" else parallel(*children)

    nodes = [tree(tuple(BEFORE), 2)]
    if draw(st.booleans()):
        nodes.append(step(tuple(FINAL), pivot=True))
        if draw(st.booleans()):
            nodes.append(tree((*FINAL, "query"), 1))
    plan = Workflow("random", version=1, steps=sequence(*nodes), deadline=timedelta(minutes=40))
    check_safety(plan, CONTRACTS)
    return plan


class Histories(RuleBasedStateMachine):
    """One saga, its remotes and everything that can go wrong between them."""

    @initialize(plan=workflows())
    def begin(self, plan: Workflow) -> None:
        self.run = Folded(plan, *CONTRACTS.values())
        agents = {step.agent for step in plan.by_name.values()}
        self.remotes = {agent: Remote(CONTRACTS[agent]) for agent in agents}
        self.running: list[Running] = []
        self.by_hand: set[str] = set()
        self.attempts = dict.fromkeys(plan.by_name, 0)
        self.ended: tuple[SagaState, dict[str, StepSnapshot]] | None = None

    # --- what the tests of a history need ------------------------------------------------------

    def key(self, step: StepSnapshot, incarnation: int) -> str:
        return idempotency_key(self.run.saga.id, step.name, Direction.FORWARD, incarnation)

    def remote(self, path: str) -> Remote:
        return self.remotes[self.run.step(path).agent]

    def in_state(self, *states: StepState) -> list[str]:
        return [p for p, step in self.run.saga.steps.items() if step.state in states]

    def take(self, message: Send) -> None:
        """Do what a worker does with a message: ask for the lease that the message is about."""
        step = self.run.step(message.path)
        if step.state is not StepState.DISPATCHED or step.attempt + 1 != message.number:
            return
        forward = step.direction is Direction.FORWARD
        expected = Operation.ACTION if forward else Operation.COMPENSATION
        assert message.operation is expected, "a message opened what it was not about"
        number = self.run.take(message.path)
        key = self.key(step, step.incarnation)
        self.running.append(
            Running(message.path, number, expected, step.direction, step.incarnation, key)
        )

    def act(self, process: Running) -> None:
        """The request of an agent arrives, unless it was sent before."""
        if process.sent:
            return
        process.sent = True
        remote = self.remote(process.path)
        if process.operation is Operation.COMPENSATION:
            remote.undo(process.key)
            process.effect = True
        elif remote.contract.effect:
            process.effect = remote.request(process.key)
        else:
            process.effect = True

    def report(self, process: Running, outcome: Outcome) -> None:
        self.running.remove(process)
        self.run.event(
            Reported(
                path=process.path,
                attempt=process.number,
                direction=process.direction,
                incarnation=process.incarnation,
                outcome=outcome,
            )
        )

    def true_answer(self, path: str) -> Answer:
        step = self.run.step(path)
        key = self.key(step, step.incarnation)
        closing = step.inquiry == Operation.CLOSE
        return self.remote(path).close(key) if closing else self.remote(path).probe(key)

    # --- what can happen -----------------------------------------------------------------------

    @rule(data=st.data())
    def a_message_arrives(self, data: st.DataObject) -> None:
        asking = {Operation.PROBE, Operation.CLOSE}
        messages = [send for send in self.run.sent if send.operation not in asking]
        if messages:
            self.take(data.draw(st.sampled_from(messages[-6:])))

    @rule()
    def the_newest_messages_arrive(self) -> None:
        for message in self.run.sent[-3:]:
            if message.operation in {Operation.ACTION, Operation.COMPENSATION}:
                self.take(message)

    @rule()
    def all_goes_well_for_a_while(self) -> None:
        for path in self.in_state(StepState.DISPATCHED):
            self.take([send for send in self.run.sent if send.path == path][-1])
            process = self.running[-1]
            self.act(process)
            if process.effect:
                self.report(process, Done(result={"key": process.key}))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), word=st.sampled_from(["done", "done", "unknown", "error", "no report"]))
    def an_agent_acts(self, data: st.DataObject, word: str) -> None:
        process = data.draw(st.sampled_from(self.running))
        self.act(process)
        if word == "no report":
            return
        done = word == "done" and process.effect
        kind = FailureKind.UNKNOWN if word == "unknown" else FailureKind.ERROR
        failed = Failed(kind=kind, type="Timeout", message="no answer")
        self.report(process, Done(result={"key": process.key}) if done else failed)

    @precondition(lambda self: any(not p.sent for p in self.running))
    @rule(data=st.data(), kind=st.sampled_from(["permanent", "later", "declined"]))
    def an_agent_fails_without_effect(self, data: st.DataObject, kind: str) -> None:
        process = data.draw(st.sampled_from([p for p in self.running if not p.sent]))
        named = FailureKind.ERROR if kind == "declined" else FailureKind(kind)
        self.report(process, Failed(kind=named, type="Declined", message="no"))

    @precondition(lambda self: any(not p.sent for p in self.running))
    @rule(data=st.data())
    def a_request_is_delayed(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from([p for p in self.running if not p.sent]))
        remote = self.remote(process.path)
        if process.operation is Operation.ACTION and remote.contract.effect:
            remote.delay(process.key)
            process.sent = True

    @rule(data=st.data())
    def a_delayed_request_arrives(self, data: st.DataObject) -> None:
        waiting = [remote for remote in self.remotes.values() if remote.on_the_way]
        if waiting:
            remote = data.draw(st.sampled_from(waiting))
            remote.arrive(data.draw(st.integers(0, len(remote.on_the_way) - 1)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), noticed=st.booleans())
    def a_process_dies(self, data: st.DataObject, noticed: bool) -> None:
        process = data.draw(st.sampled_from(self.running))
        self.running.remove(process)
        if noticed:
            self.run.event(Lost(path=process.path, attempt=process.number, why="killed"))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_process_is_taken_for_dead(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.running))
        self.run.event(Lost(path=process.path, attempt=process.number, why="silent"))

    @rule(data=st.data())
    def a_step_is_sent_again_in_doubt(self, data: st.DataObject) -> None:
        """Its process dies in mid-call, nothing is seen of it, and nobody takes it again yet."""
        if not (waiting := self.in_state(StepState.DISPATCHED)):
            return
        path = data.draw(st.sampled_from(waiting))
        self.take([send for send in self.run.sent if send.path == path][-1])
        process = self.running.pop()
        if data.draw(st.booleans()) and process.operation is Operation.ACTION:
            self.act(process)
        self.run.event(Lost(path=path, attempt=process.number, why="killed"))
        if self.run.step(path).inquiry:
            number = self.run.step(path).inquiry_no
            answer = self.true_answer(path)
            self.run.event(Answered(path=path, inquiry_no=number, answer=answer))
        if self.run.step(path).state is StepState.RETRYING:
            self.run.wake(path)

    @rule(data=st.data())
    def a_worker_dies_before_the_lease(self, data: st.DataObject) -> None:
        if waiting := self.in_state(StepState.DISPATCHED):
            path = data.draw(st.sampled_from(waiting))
            self.run.event(Crashed(path=path, attempt=self.run.step(path).attempt + 1))

    @rule(data=st.data(), how=st.sampled_from(["true", "true", "unclear", "pending", "stale"]))
    def a_question_is_answered(self, data: st.DataObject, how: str) -> None:
        asked = [p for p in self.in_state(StepState.UNKNOWN) if self.run.step(p).inquiry]
        if not asked:
            return
        path = data.draw(st.sampled_from(asked))
        number = self.run.step(path).inquiry_no - (how == "stale")
        answer: Answer = Unclear("503")
        if how == "true":
            answer = self.true_answer(path)
        elif how == "pending":
            answer = Pending()
        self.run.event(Answered(path=path, inquiry_no=number, answer=answer))

    @rule(data=st.data())
    def a_step_is_woken(self, data: st.DataObject) -> None:
        live = [step for step in self.run.saga.steps.values() if step.wake_at]
        if live:
            step = data.draw(st.sampled_from(sorted(live, key=lambda s: (s.wake_at, s.path))))
            self.run.wake(step.path)

    @rule(data=st.data())
    def a_partner_rings(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.run.saga.steps)))
        self.run.event(Hastened(path=path))

    @rule(seconds=st.sampled_from([0, 1, 30, 600]))
    def time_passes(self, seconds: int) -> None:
        self.run.now += timedelta(seconds=seconds)

    @rule()
    def somebody_cancels(self) -> None:
        try:
            self.run.event(Cancelled(by="ada", reason=""))
        except RefusedError:
            pivot = self.run.saga
            assert pivot.state in SAGA_TERMINAL or pivot.abort is None

    @rule()
    def the_deadline_passes(self) -> None:
        self.run.deadline()

    @rule()
    def it_is_derived_again(self) -> None:
        assert self.run.event(Nudged()) == [] or not self.run.saga.abort

    @rule(data=st.data())
    def an_operator_decides(self, data: st.DataObject) -> None:
        if halted := self.in_state(StepState.HALTED):
            self.decide_by_hand(data.draw(st.sampled_from(halted)))

    def decide_by_hand(self, path: str) -> None:
        """Decide as a person who has asked the partner and made sure that nothing can follow."""
        step = self.run.step(path)
        remote = self.remote(path)
        key = self.key(step, step.incarnation)
        self.by_hand.add(step.name)
        remote.closed.add(key)
        if step.direction is Direction.BACKWARD:
            remote.undo(key)
            remedy = Remedy.COMPENSATED
        elif remote.standing[key]:
            remedy = Remedy.SUCCEEDED
        elif self.run.definition.workflow.by_name[step.name].pivot or self.may_fail(step):
            remedy = Remedy.FAILED
        else:
            remedy = Remedy.SKIP
        self.run.event(Resolved(path=path, remedy=remedy, by="ada", reason="asked the partner"))

    def may_fail(self, step: StepSnapshot) -> bool:
        names = list(self.run.definition.workflow.by_name)
        pivots = [n for n, s in self.run.definition.workflow.by_name.items() if s.pivot]
        return not pivots or names.index(step.name) <= names.index(pivots[0])

    # --- what no history may show --------------------------------------------------------------

    @invariant()
    def no_operation_is_executed_twice(self) -> None:
        """INV-1."""
        for remote in self.remotes.values():
            assert max(remote.executions.values(), default=0) <= 1, remote

    @invariant()
    def no_step_has_more_than_one_effect(self) -> None:
        for step in self.run.saga.steps.values():
            assert self.net(step) <= 1, step

    def net(self, step: StepSnapshot) -> int:
        standing = self.remotes[step.agent].standing
        return sum(standing[self.key(step, n)] for n in range(step.incarnation + 1))

    @invariant()
    def attempts_only_grow(self) -> None:
        """INV-5."""
        for path, step in self.run.saga.steps.items():
            assert step.attempt >= self.attempts.get(path, 0)
            self.attempts[path] = step.attempt

    @invariant()
    def what_ended_stays_as_it_is(self) -> None:
        """INV-14."""
        own = {p: s for p, s in self.run.saga.steps.items() if not p.endswith("~late")}
        if self.ended is not None:
            assert self.ended == (self.run.saga.state, own)
        elif self.run.saga.state in SAGA_TERMINAL:
            self.ended = self.run.saga.state, own

    @invariant()
    def an_end_means_what_it_says(self) -> None:
        """INV-2, INV-3: completed is one effect for each step, and turned back is none."""
        if self.run.saga.state not in SAGA_TERMINAL:
            return
        expected = int(self.run.saga.state is SagaState.COMPLETED)
        for step in self.run.saga.steps.values():
            contract = CONTRACTS[step.agent]
            if contract.effect and step.name not in self.by_hand:
                assert self.net(step) == expected, (step.path, self.run.states())

    @invariant()
    def behind_the_pivot_nothing_is_undone(self) -> None:
        pivots = [s.name for s in self.run.definition.workflow.by_name.values() if s.pivot]
        if pivots and self.run.step(pivots[0]).state is StepState.SUCCEEDED:
            assert self.run.saga.abort is None

    # --- the end of a history ------------------------------------------------------------------

    def teardown(self) -> None:
        """INV-11: when the faults stop, everything ends, and nobody is asked in vain."""
        if not hasattr(self, "run"):
            return
        for remote in self.remotes.values():
            while remote.on_the_way:
                remote.arrive(0)
        for _ in range(ENOUGH_EVENTS):
            self.no_operation_is_executed_twice()
            self.an_end_means_what_it_says()
            if not self.heal_one():
                break
        assert self.run.saga.state in SAGA_TERMINAL, self.run.states()
        assert AttemptState.OPEN not in self.run.attempts.values()
        assert {kind for _, kind in self.run.open} <= {"late_effect"}, self.run.open

    def heal_one(self) -> bool:
        """Do the next thing that a healthy system would do; tell whether there was any."""
        run = self.run
        for process in self.running:
            self.act(process)
            failed = Failed(kind=FailureKind.UNKNOWN, type="KeyClosed", message="closed")
            self.report(process, Done(result={}) if process.effect else failed)
            return True
        for path in self.in_state(StepState.DISPATCHED):
            sent = [send for send in run.sent if send.path == path]
            self.take(sent[-1])
            return True
        for path in self.in_state(StepState.UNKNOWN):
            if run.step(path).inquiry:
                number = run.step(path).inquiry_no
                answer = self.true_answer(path)
                run.event(Answered(path=path, inquiry_no=number, answer=answer))
                return True
        due = [(s.wake_at, p) for p, s in run.saga.steps.items() if s.wake_at]
        if due:
            wake_at, path = min(due)
            run.now = max(run.now, wake_at)
            run.event(Woken(path=path))
            return True
        for path in self.in_state(StepState.HALTED):
            self.decide_by_hand(path)
            return True
        return False


Histories.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.proves(
    "INV-1",
    "INV-2",
    "INV-3",
    "INV-5",
    "INV-6",
    "INV-10",
    "INV-11",
    "INV-14",
    "D-05",
    "D-12",
    "D-13",
)
def test_no_history_shows_what_must_never_be() -> None:
    Histories.TestCase("runTest").runTest()
