"""What the envelope makes of everything that an agent can do, on real rows, without a broker."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from models import Attempt, JournalEntry, Step
from models.states import Operation, SagaState
from orchestration import registry as registries
from orchestration.contract import AgentContract
from orchestration.definition import Definition, Workflow, sequence
from orchestration.definition import Step as PlannedStep
from orchestration.events import Dispatch
from orchestration.handle import Handle
from orchestration.lease import Leases
from orchestration.roster import Roster
from orchestration.scheduler import Scheduler
from orchestration.store import Store
from orchestration.supervisor import Supervisor
from orchestration.telemetry import log_of
from orchestration.work import Work
from tasks.agent import AGENTS, Call
from tasks.envelope import Envelope, persist
from tests.support import envelope_agents
from tests.support.core import counted_commits
from tests.support.waiting import eventually


class Loop:
    """A dispatcher that keeps the messages, and the worker that takes them."""

    def __init__(self, store: Store) -> None:
        registry = registries.Registry()
        registry.contracts = dict(registries.registry.contracts)
        for name in ("plain", "waiting", "twice", "inline", "greedy"):
            registry.add_workflow(getattr(envelope_agents, name))
        self.messages: list[Dispatch] = []
        self.store = store
        self.scheduler = Scheduler(store, self, registry)
        self.known = set(self.scheduler.register_definitions())
        self.leases = Leases(self.scheduler)
        self.supervisor = Supervisor(self.scheduler, self)
        node, _ = Roster(store).register("loop", 1, list(registry.contracts), list(self.known))
        self.envelope = Envelope(self.leases, node, self.known)

    def publish(self, dispatches: Sequence[Dispatch]) -> None:
        self.messages.extend(dispatches)

    def depth(self, queue: str) -> int | None:
        return None

    def deliver(self, message: Dispatch) -> str:
        """Run one message as a worker would."""
        name, operation = message.name, Operation.ACTION
        for asked in (Operation.PROBE, Operation.CLOSE, Operation.COMPENSATION):
            if name.endswith(f".{asked}"):
                name, operation = name.removesuffix(f".{asked}"), asked
        asks = operation in {Operation.PROBE, Operation.CLOSE}
        run = self.envelope.inquire if asks else self.envelope.attempt
        return run(AGENTS[name], operation, str(message.saga_id), message.path, message.number)

    def drain(self) -> None:
        while self.messages:
            self.deliver(self.messages.pop(0))

    def run(self, workflow: str, **order: Any) -> Handle:
        """Run a saga to its end."""
        return self.finish(self.scheduler.start(workflow, order))

    def finish(self, handle: Handle) -> Handle:
        """Bring a saga to its end, with sweeps for what is due."""

        def ended() -> bool:
            self.drain()
            self.supervisor.sweep()
            return handle.state() in {SagaState.COMPLETED, SagaState.COMPENSATED}

        eventually(ended, within=20, describe=lambda: f"the saga ends, is {handle.state()}")
        return handle

    def rows(self, table: Any, saga_id: UUID) -> list[Any]:
        with self.store.reading() as connection:
            query = select(table.__table__).where(table.saga_id == saga_id)
            return list(connection.execute(query))


@pytest.fixture
def loop(store: Store) -> Loop:
    envelope_agents.EFFECTS.clear()
    return Loop(store)


@pytest.mark.parametrize("workflow", ["plain", "waiting"])
@pytest.mark.parametrize("does", ["return", "later", "unknown", "error", "heartbeat"])
def test_what_can_succeed_takes_effect_once_and_completes(
    loop: Loop, workflow: str, does: str
) -> None:
    handle = loop.run(workflow, does=does, amount=7)
    assert handle.result().state is SagaState.COMPLETED
    assert handle.result().results == {"make": {"amount": 7}}
    (keys,) = envelope_agents.EFFECTS.values()
    # Without a probe the same key is sent twice, and the remote collapses the two.
    repeated = workflow == "waiting" and does in {"unknown", "error"}
    assert keys == ["done"] * (2 if repeated else 1)


def test_a_permanent_failure_is_tried_once_and_compensates(loop: Loop) -> None:
    handle = loop.run("plain", does="permanent", until_attempt=9)
    assert handle.result().state is SagaState.COMPENSATED
    assert envelope_agents.EFFECTS == {}
    (attempt,) = loop.rows(Attempt, handle.saga_id)
    assert attempt.error == {"type": "PermanentFailure", "message": "sold out"}


def test_a_later_step_that_fails_undoes_the_earlier_one(loop: Loop) -> None:
    envelope_agents.EFFECTS.clear()
    handle = loop.scheduler.start("twice", {"amount": 3})
    loop.deliver(loop.messages.pop(0))
    message = loop.messages.pop(0)
    work = loop.leases.grant(
        message.saga_id, message.path, message.number, loop.envelope.node, loop.known
    )
    assert work is not None
    assert work.results == {"one": {"amount": 3}}
    loop.scheduler.cancel(handle.saga_id, by="test")
    loop.scheduler.lost(handle.saga_id, "two", 1, "its process is gone")
    loop.drain()
    assert handle.state() is SagaState.CANCELLED
    assert sorted(map(tuple, envelope_agents.EFFECTS.values())) == [("closed",), ("done", "undone")]


@pytest.mark.proves("INV-3")
def test_an_invalid_result_is_an_effect_and_is_undone(loop: Loop) -> None:
    handle = loop.run("plain", does="invalid", until_attempt=9)
    result = handle.result()
    assert result.state is SagaState.COMPENSATED
    assert result.abort is not None
    assert result.abort["reason"] == "invalid_result"
    assert "amount" in result.abort["message"]
    assert list(envelope_agents.EFFECTS.values()) == [["done", "undone"]]


@pytest.mark.proves("IC-03", "D-05")
def test_a_message_that_comes_twice_runs_once_and_is_kept_as_evidence(loop: Loop) -> None:
    handle = loop.scheduler.start("plain", {})
    message = loop.messages[0]
    assert loop.deliver(message) == "succeeded"
    assert loop.deliver(message) == "refused"
    refused = [entry for entry in loop.rows(JournalEntry, handle.saga_id) if entry.verb == "refuse"]
    assert [entry.reason for entry in refused] == ["duplicate_delivery"]
    assert list(envelope_agents.EFFECTS.values()) == [["done"]]


@pytest.mark.proves("D-22")
def test_a_worker_that_lacks_the_version_leaves_the_step_alone(loop: Loop) -> None:
    handle = loop.scheduler.start("plain", {})
    message = loop.messages[0]
    lacking = Envelope(loop.leases, loop.envelope.node, known=set())
    name = message.name
    assert lacking.attempt(AGENTS[name], Operation.ACTION, str(handle.saga_id), "make", 1) == (
        "refused"
    )
    (step,) = loop.rows(Step, handle.saga_id)
    assert (step.state, step.attempt) == ("dispatched", 0)
    assert loop.deliver(message) == "succeeded"


def test_a_heartbeat_is_kept_and_one_without_the_lease_is_refused(loop: Loop) -> None:
    handle = loop.run("plain", does="heartbeat")
    (attempt,) = loop.rows(Attempt, handle.saga_id)
    assert attempt.details == {"percent": 50}
    assert attempt.heartbeat_at is not None


@pytest.mark.proves("SAS-10")
def test_an_agent_that_lost_its_lease_says_nothing(loop: Loop) -> None:
    handle = loop.scheduler.start("plain", {"does": "heartbeat"})

    class Taking(Leases):
        """Whose every lease is taken away as soon as it is granted."""

        def grant(self, *arguments: Any, **named: Any) -> Work | None:
            work = super().grant(*arguments, **named)
            loop.scheduler.lost(handle.saga_id, "make", 1, "taken away")
            return work

    loop.envelope.leases = Taking(loop.scheduler)
    assert loop.deliver(loop.messages.pop(0)) == "dropped"
    (attempt,) = loop.rows(Attempt, handle.saga_id)
    assert (attempt.state, attempt.late) == ("expired", None)


class Hands:
    """A clock that only goes on when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.mark.proves("D-12", "SAS-10", "INV-1")
def test_a_process_that_was_stopped_until_its_lease_was_over_sends_nothing(loop: Loop) -> None:
    loop.scheduler.start("plain", {})
    clock = Hands()

    class Stopping(Leases):
        """Whose process stands still after the grant, for as long as the lease lasts."""

        def grant(self, *arguments: Any, **named: Any) -> Work | None:
            work = super().grant(*arguments, **named)
            assert work is not None
            clock.sleep(work.time_left.total_seconds())
            return work

    envelope = Envelope(Stopping(loop.scheduler), loop.envelope.node, loop.known, clock)
    loop.envelope = envelope
    assert loop.deliver(loop.messages.pop(0)) == "dropped"
    assert envelope_agents.EFFECTS == {}


@pytest.mark.proves("D-08")
def test_a_grant_that_was_kept_though_its_commit_failed_is_given_back_at_once(store: Store) -> None:
    """The backend dies in the COMMIT of the grant: it is durable, and its worker never hears so."""
    envelope_agents.EFFECTS.clear()
    loop = Loop(store)
    handle = loop.scheduler.start("plain", {"amount": 1})
    gone = OperationalError("commit", {}, Exception("gone"))
    still_away = [gone, gone]

    class Unlucky(Leases):
        """Whose connection breaks after a grant; it takes two more tries to have a new one."""

        def grant(self, *arguments: Any, **named: Any) -> Work | None:
            super().grant(*arguments, **named)
            raise gone

        def give_back(self, *arguments: Any, **named: Any) -> None:
            if still_away:
                raise still_away.pop()
            super().give_back(*arguments, **named)

    message = loop.messages.pop(0)
    clock = Hands()
    unlucky = Envelope(Unlucky(loop.scheduler), loop.envelope.node, loop.known, clock)
    with pytest.raises(OperationalError):
        unlucky.attempt(
            AGENTS["plain.make"], Operation.ACTION, str(message.saga_id), "make", message.number
        )
    (step,) = loop.rows(Step, handle.saga_id)
    assert step.state != "leased", "the lease of nobody was left to run out"
    assert loop.finish(handle).state() is SagaState.COMPLETED
    assert list(envelope_agents.EFFECTS.values()) == [["done"]]


def test_a_grant_that_failed_gives_back_no_lease_of_another_process(loop: Loop) -> None:
    handle = loop.scheduler.start("plain", {"amount": 1})
    message = loop.messages.pop(0)
    other, _ = Roster(loop.store).register("other", 2, ["plain.make"], list(loop.known))
    assert loop.leases.grant(message.saga_id, "make", message.number, other, loop.known)
    loop.leases.give_back(loop.envelope.node, message.saga_id, {"make"}, "it failed")
    (step,) = loop.rows(Step, handle.saga_id)
    assert step.state == "leased"
    assert step.node_id == other.id


# --- inline --------------------------------------------------------------------------------------


@pytest.mark.proves("INV-5", "INV-7")
def test_what_is_inline_is_run_in_the_task_of_the_step_before_it(loop: Loop) -> None:
    handle = loop.scheduler.start("inline", {"amount": 2})
    with counted_commits(loop.store.engine) as commits:
        assert loop.deliver(loop.messages.pop()) == "succeeded"
    assert len(commits) == 4, "one grant, and one report for each step"
    assert loop.messages == []
    assert handle.result().state is SagaState.COMPLETED
    assert handle.result().results == {name: {"amount": 2} for name in ("one", "two", "three")}
    attempts = sorted(loop.rows(Attempt, handle.saga_id), key=lambda row: row.granted_at)
    assert [(row.path, row.no, row.state) for row in attempts] == [
        (name, 1, "succeeded") for name in ("one", "two", "three")
    ]
    assert list(envelope_agents.EFFECTS.values()) == [["done"]] * 3


def test_each_inline_step_is_given_its_own_input_and_results(loop: Loop) -> None:
    handle = loop.scheduler.start("greedy", {"amount": 2})
    loop.drain()
    results = handle.result().results
    assert [results[name]["input"] for name in ("one", "two", "three")] == [{"amount": 2}] * 3
    assert results["three"]["results"] == ["one", "two"]


def test_a_task_may_last_as_long_as_all_that_it_may_go_on_with(loop: Loop) -> None:
    loop.scheduler.start("inline", {})
    loop.scheduler.start("twice", {})
    inline, alone = (message.time_limit for message in loop.messages)
    assert inline is not None
    assert alone is not None
    assert inline - alone == 2 * envelope_agents.inline.by_name["two"].timeout


def test_a_worker_that_is_ending_goes_on_with_nothing(loop: Loop) -> None:
    handle = loop.scheduler.start("inline", {"amount": 2})
    ending = Envelope(loop.leases, loop.envelope.node, loop.known, is_ending=lambda: True)
    message = loop.messages.pop(0)
    agent = AGENTS[message.name]
    ending.attempt(agent, Operation.ACTION, str(handle.saga_id), message.path, message.number)
    steps = {step.path: step.state for step in loop.rows(Step, handle.saga_id)}
    assert (steps["one"], steps["two"]) == ("succeeded", "dispatched")
    (following,) = loop.messages
    assert (following.path, following.number) == ("two", 1)


def test_what_is_inline_and_fails_is_tried_and_undone_as_any_step(loop: Loop) -> None:
    handle = loop.run("inline", does="permanent", until_attempt=9)
    assert handle.result().state is SagaState.COMPENSATED
    failing = loop.scheduler.start("inline", {"does": "error", "amount": 3})
    assert loop.finish(failing).result().state is SagaState.COMPLETED


@pytest.mark.proves("D-08")
def test_a_lease_that_was_granted_with_an_unconfirmed_report_is_given_back(store: Store) -> None:
    """The report is kept, its repetition refused: nobody hears of the lease that came with it."""
    envelope_agents.EFFECTS.clear()
    loop = Loop(store)
    handle = loop.scheduler.start("inline", {"amount": 1})
    broken = [OperationalError("commit", {}, Exception("gone"))]

    class Unlucky(Leases):
        """Whose connection breaks once, in the commit of a report."""

        def report(self, *arguments: Any, **named: Any) -> Work | None:
            following = super().report(*arguments, **named)
            if broken:
                raise broken.pop()
            return following

    node = loop.envelope.node
    loop.envelope = Envelope(Unlucky(loop.scheduler), node, loop.known, Hands())
    assert loop.deliver(loop.messages.pop()) == "succeeded"
    steps = {row.path: row.state for row in loop.rows(Step, handle.saga_id)}
    assert steps["one"] == "succeeded"
    assert steps["two"] != "leased", "the lease of nobody was left to run out"
    assert loop.finish(handle).state() is SagaState.COMPLETED
    assert list(envelope_agents.EFFECTS.values()) == [["done"]] * 3


def test_a_step_of_another_queue_is_never_inline() -> None:
    steps = sequence(PlannedStep("one", agent="a"), PlannedStep("two", agent="b", inline=True))
    contracts = {"a": AgentContract(name="a", queue="x"), "b": AgentContract(name="b", queue="y")}
    definition = Definition(Workflow("w", version=1, steps=steps), contracts)
    assert definition.followers("one") == frozenset()
    assert "inline" not in definition.document["workflow"]["steps"]["children"][0]
    assert definition.document["workflow"]["steps"]["children"][1]["inline"] is True
    assert Definition.from_document(definition.document).id == definition.id


# --- time ----------------------------------------------------------------------------------------


def test_time_left_never_grows_and_is_never_negative(loop: Loop) -> None:
    loop.scheduler.start("plain", {})
    message = loop.messages[0]
    work = loop.leases.grant(
        message.saga_id, message.path, message.number, loop.envelope.node, loop.known
    )
    assert work is not None
    log = log_of("test")
    ends_at = time.monotonic() + work.time_left.total_seconds()
    call = loop.envelope._call(AGENTS["plain.make"], work, work.key, ends_at, log)
    assert isinstance(call, Call)
    first = call.time_left
    assert timedelta(0) < call.time_left <= first <= work.plan.timeout
    assert replace(call, ends_at=0.0).time_left == timedelta(0)


@pytest.mark.proves("D-08")
def test_a_report_is_repeated_while_the_database_is_away() -> None:
    tries: list[float] = []

    def write() -> None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise OperationalError("commit", {}, Exception("gone"))

    persist(write, time.monotonic() + 5, log_of("test"))
    assert len(tries) == 3
    with pytest.raises(OperationalError):
        persist(_always_down, time.monotonic() + 0.2, log_of("test"))


def _always_down() -> None:
    raise OperationalError("commit", {}, Exception("gone"))
