"""What crosses a border between two roles, and what happens when one of them fails just there."""

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from threading import Barrier, Thread
from typing import Any
from unittest.mock import MagicMock, Mock
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

import celeryconfig
from models.states import SagaState, StepState
from orchestration import (
    Absent,
    Answer,
    Applied,
    PermanentFailure,
    RetryPolicy,
    Step,
    Unclear,
    Workflow,
    parallel,
    sequence,
    views,
)
from orchestration.errors import RefusedError, StartConflictError
from orchestration.events import Dispatch, Done, Remedy
from orchestration.settings import settings
from orchestration.supervisor import Supervisor
from tasks.agent import Call, agent
from tasks.dispatch import CeleryDispatcher
from tests.support.bench import Bench

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


class Errand(BaseModel):
    """What is to be fetched."""

    what: str = "bread"


class Shop:
    """A remote service: what it did by key, and what it says and does next."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self.undone: list[str] = []
        self.calls = 0
        self.on_call: Callable[[Call[Errand]], None] = lambda call: None
        self.answer: Answer | None = None


shop = Shop()


def open_anew() -> None:
    vars(shop).update(vars(Shop()))


@agent("shop.fetch", queue="shop", idempotent=True, key_retention=timedelta(hours=24))
def fetch(call: Call[Errand]) -> str:
    shop.calls += 1
    shop.on_call(call)
    shop.done.setdefault(call.key, 1)
    return call.input.what


@fetch.probe
def find(call: Call[Errand]) -> Answer:
    if shop.answer is not None:
        return shop.answer
    return Applied(call.input.what) if call.key in shop.done else Absent()


@fetch.compensation
def bring_back(call: Call[Errand], what: str | None) -> None:
    shop.done.pop(call.action_key, None)
    shop.undone.append(call.action_key)


@agent("shop.refuse", queue="shop", effect=False)
def refuse(call: Call[Errand]) -> None:
    raise PermanentFailure("closed on Mondays")


FETCH = Step("fetch", agent="shop.fetch", retry=RetryPolicy(max_attempts=2, jitter="none"))
errand = Workflow("errand", version=1, input=Errand, steps=FETCH, deadline=timedelta(days=2))
vain = Workflow(
    "vain", version=1, input=Errand, steps=sequence(FETCH, Step("refuse", agent="shop.refuse"))
)


CROWD = 8
crowd = Workflow(
    "crowd",
    version=1,
    input=Errand,
    steps=parallel(*(Step(f"fetch{n}", agent="shop.fetch") for n in range(CROWD))),
)


def meet(barrier: Barrier) -> None:
    """Wait until all others are as far."""
    barrier.wait(timeout=20)


@pytest.fixture
def bench(engine: Engine) -> Bench:
    open_anew()
    return Bench(engine, errand, vain, crowd)


@pytest.fixture
def held(bench: Bench) -> Bench:
    """The same, with a broker that keeps what it is given."""
    bench.holds = True
    return bench


# --- start ---------------------------------------------------------------------------------------


@pytest.mark.proves("D-01")
def test_a_start_that_is_repeated_returns_the_saga_that_is_there(bench: Bench) -> None:
    first = bench.scheduler.start("errand", {"what": "milk"}, key="monday")
    again = bench.scheduler.start("errand", {"what": "milk"}, key="monday")
    assert again.saga_id == first.saga_id
    with pytest.raises(StartConflictError, match=r"monday.*milk.*eggs"):
        bench.scheduler.start("errand", {"what": "eggs"}, key="monday")
    assert shop.calls == 1


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.proves("SAS-06")
def test_a_message_holds_ids_only_and_the_grant_gives_the_rest(held: Bench) -> None:
    saga_id = held.scheduler.start("errand", {"what": "a secret"}).saga_id
    (message,) = held.sent
    app = MagicMock()
    app.conf.broker_url = "redis://127.0.0.1:1/0"
    app.amqp.queues = {"shop"}
    CeleryDispatcher(app).publish([message])
    (_, name), written = app.amqp.as_task_v2.call_args
    (_, _, message), sent = app.amqp.send_task_message.call_args
    assert message is app.amqp.as_task_v2.return_value
    assert (name, sent["queue"]) == ("shop.fetch", "shop")
    assert written["args"] == (str(saga_id), "fetch", 1)
    assert "secret" not in repr(app.amqp.mock_calls)
    work = held.leases.grant(saga_id, "fetch", 1, held.node, held.known)
    assert work is not None
    assert (work.input, work.attempt, work.time_left) == ({"what": "a secret"}, 1, FETCH.timeout)


@pytest.mark.proves("D-02")
def test_a_step_whose_message_was_never_sent_is_sent_again_and_not_asked_about(held: Bench) -> None:
    saga_id = held.scheduler.start("errand", {}).saga_id
    held.sent.clear()
    held.holds = False
    held.pass_time(4 * SECOND)
    assert held.sent == []
    held.pass_time(2 * SECOND)
    assert [message.name for message in held.sent] == ["shop.fetch"]
    assert held.step(saga_id, "fetch").state == StepState.SUCCEEDED
    assert shop.calls == 1


@pytest.mark.proves("D-03")
def test_a_message_that_was_sent_twice_opens_one_attempt(held: Bench) -> None:
    saga_id = held.scheduler.start("errand", {}).saga_id
    held.pass_time(6 * SECOND)
    first, second = held.sent
    assert first == second
    assert [held.deliver(first), held.deliver(second)] == ["succeeded", "refused"]
    (attempt,) = held.attempts(saga_id, "fetch")
    assert attempt.state == "succeeded"
    (refusal,) = held.journal(saga_id, "fetch", "refuse")
    assert refusal.reason == "duplicate_delivery"


# --- the call ------------------------------------------------------------------------------------


@pytest.mark.proves("INV-7", "SAS-04")
def test_the_grant_is_committed_before_the_agent_is_called(bench: Bench) -> None:
    seen: list[Any] = []

    def look(call: Call[Errand]) -> None:
        step = bench.step(UUID(call.saga_id), "fetch")
        (attempt,) = bench.attempts(UUID(call.saga_id), "fetch")
        seen.append((step.state, step.attempt, attempt.no, attempt.state, call.attempt))

    shop.on_call = look
    bench.scheduler.start("errand", {})
    assert seen == [("leased", 1, 1, "open", 1)]


@pytest.mark.proves("D-06")
def test_an_agent_that_died_before_it_sent_anything_is_asked_about_and_tried_again(
    held: Bench,
) -> None:
    handle = held.scheduler.start("errand", {})
    held.leases.grant(handle.saga_id, "fetch", 1, held.node, held.known)
    held.holds = False
    held.scheduler.lost(handle.saga_id, "fetch", 1, "its process is gone")
    (probe,) = held.journal(handle.saga_id, "fetch", "probe")
    assert probe.row == "0"
    held.pass_time(2 * SECOND)
    assert handle.state() is SagaState.COMPLETED
    assert [attempt.state for attempt in held.attempts(handle.saga_id, "fetch")] == [
        "expired",
        "succeeded",
    ]
    assert list(shop.done.values()) == [1]


@pytest.mark.proves("D-18")
def test_nothing_is_sent_while_the_database_is_away_and_nothing_is_lost(
    held: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = held.scheduler.start("errand", {})
    away = OperationalError("", {}, ConnectionError("the database is away"))
    with monkeypatch.context() as outage:
        outage.setattr(held.store, "transaction", Mock(side_effect=away))
        outage.setattr(held.store, "at_once", Mock(side_effect=away))
        with pytest.raises(OperationalError):
            held.deliver(held.sent.pop())
    assert shop.calls == 0
    held.holds = False
    held.pass_time(6 * SECOND)
    assert handle.state() is SagaState.COMPLETED
    assert shop.calls == 1


@pytest.mark.proves("D-24")
def test_branches_that_finish_at_the_same_instant_wait_for_each_other_and_none_is_lost(
    held: Bench,
) -> None:
    handle = held.scheduler.start("crowd", {})
    together = Barrier(len(held.sent))
    shop.on_call = lambda call: meet(together)
    threads = [Thread(target=held.deliver, args=[message]) for message in held.sent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handle.state() is SagaState.COMPLETED
    assert len(handle.result().results) == len(threads) == CROWD


# --- the supervisor ------------------------------------------------------------------------------


@pytest.mark.proves("SUP-01", "SUP-03", "INV-13")
def test_the_supervisor_loads_nothing_that_could_call_a_remote_service() -> None:
    strangers = ("tasks", "web", "celery", "kombu", "httpx", "requests", "urllib3", "redis")
    program = (
        "import sys, orchestration.supervisor\n"
        f"print([name for name in {strangers!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.proves("SUP-10")
def test_beat_rings_at_the_interval_that_is_set_and_drops_a_ring_that_nobody_heard() -> None:
    supervise = celeryconfig.beat_schedule["supervise"]
    interval = settings().sweep_interval.total_seconds()
    assert supervise["schedule"] == interval
    assert supervise["options"] == {"queue": "supervisor", "expires": interval}


@pytest.mark.proves("SUP-10", "SUP-11", "SUP-12")
def test_a_lease_is_untouched_until_it_is_over_and_taken_back_by_the_next_sweep(
    held: Bench,
) -> None:
    saga_id = held.scheduler.start("errand", {}).saga_id
    held.leases.grant(saga_id, "fetch", 1, held.node, held.known)
    before = held.step(saga_id, "fetch")
    held.pass_time(FETCH.timeout - SECOND)
    assert held.step(saga_id, "fetch") == before
    held.pass_time(SECOND)
    after = held.step(saga_id, "fetch")
    assert (after.state, after.failure_count) == (StepState.UNKNOWN, 1)
    assert after.doubt_at == before.granted_at


@pytest.mark.proves("SAS-14", "D-11")
def test_two_supervisors_at_once_recover_a_step_once(held: Bench) -> None:
    saga_id = held.scheduler.start("errand", {}).saga_id
    held.leases.grant(saga_id, "fetch", 1, held.node, held.known)
    held.pass_time(FETCH.timeout, sweeps=False)
    together = Barrier(4)

    def sweep() -> None:
        supervisor = Supervisor(held.scheduler, held)
        together.wait()
        supervisor.sweep()

    threads = [Thread(target=sweep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    step = held.step(saga_id, "fetch")
    assert (step.state, step.failure_count, step.inquiry_no) == (StepState.UNKNOWN, 1, 1)
    assert len(held.journal(saga_id, "fetch", "probe")) == 1


@pytest.mark.proves("D-10", "SUP-09")
def test_a_question_that_was_decided_and_never_sent_is_asked_by_a_later_sweep(held: Bench) -> None:
    handle = held.scheduler.start("errand", {})
    held.leases.grant(handle.saga_id, "fetch", 1, held.node, held.known)
    held.pass_time(FETCH.timeout)
    held.sent.clear()
    held.holds = False
    for _ in range(10):
        held.pass_time(3 * SECOND)
    assert handle.state() is SagaState.COMPLETED
    assert len(held.journal(handle.saga_id, "fetch", "probe")) >= 2


@pytest.mark.slow
@pytest.mark.proves("INV-12")
def test_a_remote_that_gives_no_answer_is_asked_and_called_ever_more_rarely(bench: Bench) -> None:
    def fail(call: Call[Errand]) -> None:
        raise ConnectionError("no answer")

    shop.on_call, shop.answer = fail, Unclear("no answer")
    saga_id = bench.scheduler.start("errand", {}).saga_id
    for _ in range(60):
        bench.pass_time(MINUTE)
    before = len(bench.sent)
    for _ in range(120):
        bench.pass_time(15 * SECOND)
    assert len(bench.sent) - before < 3 * 60
    assert {incident.kind for incident in bench.incidents(saga_id)} == {"stuck"}


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.proves("CT-08")
def test_an_action_and_its_compensation_are_told_as_one_story(bench: Bench) -> None:
    saga_id = bench.scheduler.start("vain", {}).saga_id
    with bench.store.reading() as connection:
        story = views.timeline(connection, saga_id)
    told = [(line.verb, line.attempt, line.text) for line in story if line.path == "fetch"]
    assert told == [
        ("grant", 1, "action"),
        ("report", 1, "succeeded"),
        ("compensate", 1, "the saga turned back"),
        ("grant", 2, "compensation"),
        ("report", 2, "succeeded"),
    ]
    assert len(shop.undone) == 1


@pytest.mark.proves("INV-8")
def test_a_saga_that_has_ended_holds_no_lease_and_waits_for_nothing(bench: Bench) -> None:
    handles = [bench.scheduler.start(name, {}) for name in ("errand", "vain")]
    assert [handle.state() for handle in handles] == [SagaState.COMPLETED, SagaState.COMPENSATED]
    assert bench.roster.held_by(bench.node.id) == []
    for handle in handles:
        assert bench.step(handle.saga_id, "fetch").wake_at is None
    bench.sent.clear()
    bench.pass_time(timedelta(days=30))
    assert bench.sent == []


@pytest.mark.proves("D-20", "INV-14")
def test_a_success_that_comes_after_the_end_is_undone_and_the_end_stays(held: Bench) -> None:
    handle = held.scheduler.start("errand", {})
    work = held.leases.grant(handle.saga_id, "fetch", 1, held.node, held.known)
    assert work is not None
    shop.answer = Absent()
    held.scheduler.lost(handle.saga_id, "fetch", 1, "its node has gone silent")
    held.scheduler.resolve(handle.saga_id, "fetch", Remedy.FAILED, by="ops", reason="was told so")
    assert handle.state() is SagaState.COMPENSATED
    shop.done[work.key] = 1
    held.holds = False
    held.leases.report(work, Done(result="bread"))
    assert handle.state() is SagaState.COMPENSATED
    assert held.step(handle.saga_id, "fetch").state == StepState.FAILED
    assert held.step(handle.saga_id, "fetch~late").state == StepState.COMPENSATED
    assert shop.undone == [work.key]
    assert [incident.kind for incident in held.incidents(handle.saga_id)] == ["late_effect"]


@pytest.mark.proves("D-29")
def test_an_operators_retry_is_refused_once_the_key_may_be_forgotten(held: Bench) -> None:
    handle = held.scheduler.start("errand", {})
    held.leases.grant(handle.saga_id, "fetch", 1, held.node, held.known)
    held.scheduler.lost(handle.saga_id, "fetch", 1, "its process is gone")
    held.pass_time(timedelta(hours=24), sweeps=False)
    with pytest.raises(RefusedError, match=r"forgotten.*use probe"):
        held.scheduler.resolve(handle.saga_id, "fetch", Remedy.RETRY, by="ops", reason="try")
    assert held.step(handle.saga_id, "fetch").state == StepState.UNKNOWN


def test_a_message_without_a_row_is_dropped(bench: Bench) -> None:
    message = Dispatch(
        saga_id=uuid4(), path="fetch", number=1, name="shop.fetch", queue="shop", time_limit=None
    )
    assert bench.deliver(message) == "refused"
