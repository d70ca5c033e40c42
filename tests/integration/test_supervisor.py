"""Sweeps: each finds what is stuck, does it once, leaves alone what is not due, and is bounded."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, event, text, update

from models import Saga, Step
from models.states import SagaState, StepState
from orchestration import due
from orchestration.contract import AgentContract
from orchestration.definition import Workflow, parallel
from orchestration.events import Failed, FailureKind
from orchestration.signals import Absent, Applied, Unclear
from orchestration.supervisor import Supervisor
from tests.support.core import (
    BOOK,
    Core,
    at_once,
    counted_commits,
    line,
    steps,
)

PLAIN = AgentContract(name="book", queue="book", idempotent=True, compensation=True)


@pytest.fixture
def core(engine: Engine) -> Core:
    return Core(engine, line("a", "b"))


@pytest.fixture
def concurrent(writers: Engine) -> Core:
    return Core(writers, line("a"))


def counts(core: Core) -> dict[str, int]:
    return {name: count for name, count in core.supervisor.sweep().counts.items() if count}


# --- each duty -----------------------------------------------------------------------------------


@pytest.mark.proves("SUP-12", "SUP-10")
def test_a_sweep_with_nothing_to_do_writes_nothing(core: Core) -> None:
    core.start()
    core.take(core.start(), "a")
    with counted_commits(core.engine) as commits:
        report = core.supervisor.sweep()
    assert report.quiet
    assert commits == []


@pytest.mark.proves("SUP-01", "SUP-02", "SUP-11", "SAS-10", "SAS-11", "CT-06")
def test_an_overdue_lease_is_taken_back_and_asked_about(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    core.later(minutes=5)
    core.now -= timedelta(microseconds=1)
    assert counts(core) == {}
    core.now += timedelta(microseconds=1)
    core.news()
    assert counts(core) == {"overdue_leases": 1}
    assert core.states(saga)["a"] == "unknown"
    assert core.attempts(saga, "a") == [(1, "expired")]
    assert core.news() == [("book.probe", "a", 1)]


def test_a_silent_agent_is_taken_back_before_its_lease_is_over(engine: Engine) -> None:
    core = Core(engine, line("a", heartbeat_timeout=timedelta(seconds=5)))
    saga = core.start()
    core.take(saga, "a")
    core.later(seconds=5)
    assert counts(core) == {"overdue_leases": 1}
    assert core.states(saga) == {"a": "unknown"}


@pytest.mark.proves("D-04", "D-02", "O-1")
def test_a_message_that_was_lost_is_sent_again_at_growing_intervals(core: Core) -> None:
    saga = core.start()
    core.news()
    times = []
    began = core.now
    while core.now - began < timedelta(minutes=6):
        core.later(seconds=5)
        core.supervisor.sweep()
        if core.news():
            times.append(round((core.now - began).total_seconds()))
    assert times == [5, 15, 35, 75, 155, 315]
    assert core.states(saga)["a"] == "dispatched"
    core.take(saga, "a")


@pytest.mark.proves("D-23")
def test_messages_that_still_wait_in_a_long_queue_are_not_sent_again(engine: Engine) -> None:
    core = Core(engine, line("a"))
    for _ in range(20):
        core.start()
    core.news()
    # One or two of them are in the hands of a worker that has not taken the lease yet.
    core.depths["book"] = 19
    core.later(seconds=5)
    assert counts(core) == {"undelivered": 20}
    assert core.news() == []
    core.depths["book"] = 17
    core.later(minutes=1)
    assert counts(core) == {"undelivered": 20}
    assert len(core.news()) == 20


@pytest.mark.proves("D-02", "D-09", "REC-02")
def test_what_a_crashed_worker_had_in_its_hands_is_sent_again_at_once(engine: Engine) -> None:
    core = Core(engine, line("a"))
    sagas = [core.start() for _ in range(3)]
    core.take(sagas[0], "a")
    core.news()
    core.depths = {"book": 0}
    assert core.supervisor.ring_again() == 2
    assert core.news() == [("book", "a", 1)] * 2
    assert {core.step(saga, "a").state for saga in sagas} == {"leased", "dispatched"}
    assert core.take(sagas[1], "a").attempt == 1


@pytest.mark.proves("D-23")
@pytest.mark.parametrize("depth", [1, None])
def test_what_may_be_in_a_queue_is_not_sent_again_because_of_a_crash(
    engine: Engine, depth: int | None
) -> None:
    core = Core(engine, line("a"))
    saga = core.start()
    core.news()
    core.depths = {} if depth is None else {"book": depth}
    before = core.step(saga, "a")
    assert core.supervisor.ring_again() == 0
    assert core.news() == []
    assert core.step(saga, "a") == before


@pytest.mark.proves("D-23", "D-04")
def test_a_lost_compensation_is_sent_again_though_the_actions_queue_is_long(
    engine: Engine,
) -> None:
    core = Core(engine, line("a", "b"))
    saga = core.start()
    core.done(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    assert core.news()[-1] == ("book.compensation", "a", 2)
    core.depths = {"book": 1000, "book.recovery": 0}
    core.later(seconds=5)
    assert counts(core) == {"undelivered": 1}
    assert core.news() == [("book.compensation", "a", 2)]


@pytest.mark.proves("D-22")
def test_a_step_that_nobody_can_take_raises_one_alarm_until_somebody_takes_it(core: Core) -> None:
    saga = core.start()
    core.roster.end(core.node.id)
    for _ in range(6):
        core.now += timedelta(minutes=10)
        core.supervisor.sweep()
    assert core.incidents(saga) == ["unserved"]
    core.node = core.join("worker")
    core.take(saga, "a")
    assert core.incidents(saga) == []


@pytest.mark.proves("SUP-06", "SUP-07")
def test_a_due_retry_is_sent_under_the_next_attempt(core: Core) -> None:
    saga = core.start()
    failed = Failed(kind=FailureKind.LATER, type="Busy", message="x", delay=timedelta(seconds=30))
    core.report(core.take(saga, "a"), failed)
    core.news()
    core.later(seconds=29)
    assert counts(core) == {}
    core.later(seconds=2)
    assert counts(core) == {"due_retries": 1}
    assert core.news() == [("book", "a", 2)]


@pytest.mark.proves("row 11", "D-10")
def test_a_question_that_was_lost_is_asked_again(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.news()
    for _ in range(4):
        core.later(seconds=30)
        assert counts(core) == {"unresolved": 1}
    assert [number for _, _, number in core.news()] == [2, 3]


@pytest.mark.proves("SUP-08", "REC-03")
def test_a_step_past_its_last_attempt_has_its_saga_undone(core: Core) -> None:
    saga = core.start()
    core.done(saga, "a")
    for attempt in (1, 2, 3):
        core.take(saga, "b")
        core.scheduler.lost(saga, "b", attempt, "killed")
        core.leases.answer(saga, "b", core.step(saga, "b").inquiry_no, Absent())
        core.later(minutes=1).supervisor.sweep()
    assert core.step(saga, "b").failure_count == 3
    assert core.news()[-1][0] == "book.close"


def test_a_saga_past_its_deadline_is_undone(core: Core) -> None:
    saga = core.start()
    core.done(saga, "a")
    core.later(days=1)
    found = counts(core)
    assert found["deadlines"] == 1
    assert core.saga(saga).state == SagaState.COMPENSATING
    assert core.saga(saga).wake_at is None
    core.done(saga, "a")
    assert core.saga(saga).state == SagaState.COMPENSATED


@pytest.mark.proves("INV-6", "REC-02")
def test_a_saga_in_which_nothing_is_due_is_found_and_goes_on(core: Core) -> None:
    saga = core.start()
    table: Any = Step.__table__
    with core.store.transaction() as connection:
        connection.execute(
            update(table).where(table.c.path == "a").values(state="waiting", wake_at=None)
        )
    assert counts(core) == {"stranded": 1}
    assert core.states(saga)["a"] == "dispatched"


@pytest.mark.proves("INV-6", "INV-10", "CT-05")
def test_a_saga_in_which_nothing_can_ever_be_due_is_halted_with_an_alarm(core: Core) -> None:
    saga = core.start()
    table: Any = Step.__table__
    with core.store.transaction() as connection:
        connection.execute(
            update(table)
            .where(table.c.path == "a")
            .values(state="compensated", wake_at=None, settled_at=core.now)
        )
    core.supervisor.sweep()
    assert core.saga(saga).state == SagaState.HALTED
    assert core.incidents(saga) == ["stranded"]


# --- nodes ---------------------------------------------------------------------------------------


@pytest.mark.proves("SAS-11", "SUP-05", "ORCH-04")
def test_a_node_that_goes_silent_loses_its_leases_long_before_they_are_over(core: Core) -> None:
    saga = core.start()
    lost = core.join("lost")
    core.take(saga, "a", lost)
    core.later(seconds=6)
    assert counts(core) == {}
    core.later(seconds=1)
    assert counts(core) == {"dead_nodes": 1}
    assert core.states(saga)["a"] == "unknown"
    assert core.nodes() == {"worker": True, "lost": False}


@pytest.mark.proves("D-11")
def test_a_node_that_speaks_while_it_is_looked_at_keeps_its_leases(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    saga = core.start()
    core.take(saga, "a")
    core.now += timedelta(seconds=7)
    roster = core.supervisor.roster
    silent = roster.silent(timedelta(seconds=6))
    assert len(silent) == 1
    core.roster.beat(core.node.id)
    monkeypatch.setattr(roster, "silent", lambda timeout: silent)
    assert core.supervisor.sweep_dead_nodes() == 0
    assert core.states(saga)["a"] == "leased"


@pytest.mark.proves("REC-01", "D-27")
def test_a_node_that_restarts_frees_what_its_earlier_incarnation_held(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    core.now += timedelta(seconds=1)
    core.join("worker")
    assert counts(core) == {"dead_nodes": 1}
    assert core.states(saga)["a"] == "unknown"


def test_what_a_node_does_after_it_was_taken_for_dead_is_refused_and_kept(core: Core) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.now += timedelta(seconds=7)
    core.supervisor.sweep()
    core.leases.answer(saga, "a", 1, Absent())
    core.now += timedelta(seconds=5)
    core.supervisor.sweep()
    other = core.join("other")
    core.take(saga, "a", other)
    core.report(work)
    assert core.refusals(saga) == ["stale_attempt"]
    assert core.step(saga, "a").node_id == other.id


# --- bounds, order and company -------------------------------------------------------------------


@pytest.mark.proves("D-23", "B-3")
def test_a_sweep_takes_a_bounded_batch_oldest_first(engine: Engine) -> None:
    core = Core(engine, line("a"), batch=3)
    sagas = []
    for _ in range(8):
        sagas.append(core.start())
        core.take(sagas[-1], "a")
        core.later(seconds=1)
    core.later(minutes=5)
    taken: list[UUID] = []
    for expected in (3, 3, 2):
        assert core.supervisor.sweep_overdue_leases() == expected
        now = [saga for saga in sagas if core.states(saga)["a"] == "unknown"]
        taken += [saga for saga in now if saga not in taken]
        assert taken == sagas[: len(taken)]
    assert taken == sagas


ONCE: dict[str, dict[str, Any]] = {
    "leases": {"state": "unknown", "failure_count": 1, "inquiry_no": 1},
    "retries": {"state": "dispatched", "failure_count": 0, "dispatch_count": 1},
    "deliveries": {"state": "dispatched", "attempt": 0, "dispatch_count": 2},
    "questions": {"state": "unknown", "failure_count": 1, "inquiry_no": 2},
    "deadlines": {"state": "skipped", "attempt": 0},
}


def stuck(core: Core, duty: str) -> list[UUID]:
    """Three sagas of four steps each that wait for one duty of the supervisor."""
    sagas = [core.start() for _ in range(3)]
    for saga in sagas:
        for path in "abcd" if duty in {"leases", "retries", "questions"} else "":
            work = core.take(saga, path)
            if duty == "retries":
                core.report(work, Failed(kind=FailureKind.LATER, type="Busy", message="x"))
            if duty == "questions":
                core.scheduler.lost(saga, path, 1, "killed")
                core.leases.answer(saga, path, 1, Unclear("503"))
    core.news()
    core.later(minutes=5, days=duty == "deadlines")
    return sagas


@pytest.mark.proves("SAS-13", "SAS-14", "SUP-09", "D-11", "D-27")
@pytest.mark.parametrize("duty", ONCE)
def test_sweeps_at_once_do_each_thing_once(engine: Engine, duty: str) -> None:
    core = Core(engine, Workflow("wide", version=1, steps=parallel(*steps(*"abcd"))))
    sagas = stuck(core, duty)
    reports = at_once(*[Supervisor(core.scheduler, core).sweep for _ in range(4)])
    assert not [report for report in reports if isinstance(report, Exception)], reports
    core.supervisor.sweep()
    rows = [core.step(saga, path) for saga in sagas for path in "abcd"]
    assert [{name: getattr(row, name) for name in ONCE[duty]} for row in rows] == [ONCE[duty]] * 12
    if duty != "deadlines":
        assert len(core.news()) == 12


@pytest.mark.proves("SUP-09")
def test_a_sweep_that_dies_half_way_is_continued_by_the_next(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    sagas = [core.start() for _ in range(3)]
    for saga in sagas:
        core.take(saga, "a")
    core.later(minutes=5)
    handle = core.scheduler.handle
    calls: list[UUID] = []

    def dies(saga_id: UUID, *args: Any, **kwargs: Any) -> bool:
        calls.append(saga_id)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return handle(saga_id, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(core.scheduler, "handle", dies)
        with pytest.raises(KeyboardInterrupt):
            core.supervisor.sweep()
    found = [saga for saga in sagas if core.states(saga)["a"] == "unknown"]
    assert found == calls[:1]
    core.supervisor.sweep()
    assert [core.states(saga)["a"] for saga in sagas] == ["unknown"] * 3


@pytest.mark.proves("ORCH-01", "COMP-03", "D-25")
def test_a_saga_that_cannot_be_decided_does_not_hold_up_the_others(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    sagas = [core.start() for _ in range(3)]
    for saga in sagas:
        core.take(saga, "a")
    core.later(minutes=5)
    handle = core.scheduler.handle

    def fails(saga_id: UUID, *args: Any, **kwargs: Any) -> bool:
        if saga_id == sagas[0]:
            raise RuntimeError("its rows make no sense")
        return handle(saga_id, *args, **kwargs)

    monkeypatch.setattr(core.scheduler, "handle", fails)
    report = core.supervisor.sweep()
    assert report.counts["overdue_leases"] == 2
    assert report.counts["failed"] >= 1
    assert [core.states(saga)["a"] for saga in sagas] == ["leased", "unknown", "unknown"]


@pytest.mark.proves("SUP-12", "SAS-14")
def test_a_saga_that_somebody_is_working_on_is_skipped(concurrent: Core) -> None:
    core = concurrent
    held, free = core.start(), core.start()
    for saga in (held, free):
        core.take(saga, "a")
    core.later(minutes=5)
    with core.store.transaction() as connection:
        core.store.lock_saga(connection, held)
        assert core.supervisor.sweep_overdue_leases() == 1
    assert core.states(held) == {"a": "leased"}
    assert core.states(free) == {"a": "unknown"}


@pytest.mark.proves("D-18", "SUP-09")
def test_what_a_failed_sweep_did_not_do_is_still_due(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    core.later(minutes=5)

    def breaks(connection: Any) -> None:
        raise ConnectionError("the database is gone")

    event.listen(core.engine, "commit", breaks)
    try:
        core.supervisor.sweep()
    except ConnectionError:
        pass
    finally:
        event.remove(core.engine, "commit", breaks)
    assert core.states(saga)["a"] == "leased"
    core.supervisor.sweep()
    assert core.states(saga)["a"] == "unknown"


# --- what the supervisor is not ------------------------------------------------------------------


@pytest.mark.proves("SUP-03", "SUP-04", "INV-13")
def test_the_supervisor_imports_no_agent_and_nothing_that_could_call_a_remote() -> None:
    code = (
        "import sys, orchestration.supervisor\n"
        "wrong = {'tasks', 'examples', 'httpx', 'requests', 'celery', 'kombu', 'redis'}\n"
        "print(sorted(wrong & {name.partition('.')[0] for name in sys.modules}))\n"
        "print([name for name in sys.modules if name.startswith('orchestration.workflows')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


@pytest.mark.proves("SUP-03")
def test_the_supervisor_only_asks_for_what_the_steps_own_agent_then_does(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    core.later(minutes=5).supervisor.sweep()
    assert {name.partition(".")[0] for name, _, _ in core.news()} == {"book"}
    core.leases.answer(saga, "a", 1, Applied("room 7"))
    assert core.step(saga, "a").result == "room 7"


# --- indexes -------------------------------------------------------------------------------------


@pytest.mark.proves("D-23")
@pytest.mark.parametrize(
    ("look", "index"),
    [
        (lambda c, core: due.steps(c, core.store, StepState.LEASED, 10), "ix_steps_wake"),
        (lambda c, core: due.steps(c, core.store, StepState.DISPATCHED, 10), "ix_steps_wake"),
        (lambda c, core: due.sagas(c, core.store, 10), "ix_sagas_wake"),
        (lambda c, core: due.stranded(c, due.FIRST, 10), "ix_sagas_live"),
        (lambda c, core: core.roster.held_by(core.node.id), "ix_steps_held_by_node"),
        (lambda c, core: core.roster.silent(timedelta(seconds=6)), "ix_nodes_alive"),
    ],
)
@pytest.mark.parametrize("writers", ["postgres"], indirect=True)
def test_what_is_looked_for_often_is_found_by_a_partial_index(
    concurrent: Core, look: Any, index: str
) -> None:
    core, engine = concurrent, concurrent.engine
    asked: list[tuple[str, Any]] = []

    def listen(connection: Any, cursor: Any, statement: str, given: Any, *rest: Any) -> None:
        if statement.startswith("SELECT") and "clock_timestamp" not in statement:
            asked.append((statement, given))

    event.listen(engine, "before_cursor_execute", listen)
    with core.store.reading() as connection:
        look(connection, core)
    event.remove(engine, "before_cursor_execute", listen)
    told = ""
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        for statement, given in asked:
            plan = connection.exec_driver_sql(f"EXPLAIN {statement}", given)
            told += "\n".join(row[0] for row in plan)
    assert index in told, told


@pytest.mark.proves("D-23")
def test_a_sweep_with_full_batches_goes_on_until_less_than_one_is_left(engine: Engine) -> None:
    core = Core(engine, line("a"), batch=2)
    for _ in range(7):
        core.start()
    core.later(seconds=5)
    assert counts(core) == {"undelivered": 2}
    core.supervisor.go_on_for = 60.0
    assert counts(core) == {"undelivered": 5}
    assert counts(core) == {}


def test_a_sweep_does_not_repeat_what_it_cannot_do(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Core(engine, line("a"), batch=2)
    for _ in range(5):
        core.start()
    core.later(seconds=5)
    core.supervisor.go_on_for = 60.0
    with monkeypatch.context() as locked:
        locked.setattr(core.scheduler, "wake", lambda *_, **__: False)
        assert counts(core) == {}
    with monkeypatch.context() as broken:
        broken.setattr(core.scheduler, "wake", lambda *_, **__: 1 / 0)
        assert counts(core) == {"failed": 2}
    assert core.supervisor.sweep(go_on=False).counts["undelivered"] == 2
    assert counts(core) == {"undelivered": 3}


def test_a_sweep_goes_on_for_a_bounded_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Core(engine, line("a"), batch=1)
    for _ in range(5):
        core.start()
    core.later(seconds=5)
    seconds = iter(range(100))
    monkeypatch.setattr("orchestration.supervisor.time.monotonic", lambda: float(next(seconds)))
    core.supervisor.go_on_for = 3.5
    assert counts(core) == {"undelivered": 3}


def test_terminal_rows_are_in_no_hot_index(core: Core) -> None:
    """What has ended has no wake-up time and is in no state that the indexes hold."""
    saga = core.start()
    core.done(saga, "a", "b")
    assert [row.wake_at for row in core.rows(Saga)] == [None]
    assert {row.state for row in core.rows(Step)} == {"succeeded"}
    assert {row.wake_at for row in core.rows(Step)} == {None}


@pytest.mark.proves("row 12b", "INV-11")
def test_a_step_that_can_only_be_repeated_gets_to_its_end_by_sweeps_alone(engine: Engine) -> None:
    core = Core(engine, line("a", "b"), contracts=[PLAIN])
    saga = core.start()
    core.done(saga, "a")
    core.take(saga, "b")
    core.scheduler.cancel(saga, by="ada")
    core.scheduler.lost(saga, "b", 1, "killed")
    core.later(minutes=3).supervisor.sweep()
    core.done(saga, "b", "b", "a")
    assert core.saga(saga).state == SagaState.CANCELLED
    assert core.incidents(saga) == []


def test_contracts_decide_and_not_the_name_of_an_agent(engine: Engine) -> None:
    other = AgentContract(name="other", queue="other", idempotent=True, compensation=True)
    plan = Workflow("two", version=1, steps=parallel(*steps("a"), *steps("b", agent="other")))
    core = Core(engine, plan, contracts=[BOOK, other])
    saga = core.start()
    core.take(saga, "a")
    core.take(saga, "b")
    core.later(minutes=5).supervisor.sweep()
    assert core.states(saga) == {"a": "unknown", "b": "retrying"}
