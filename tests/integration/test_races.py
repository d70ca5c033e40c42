"""Every race, on PostgreSQL and MariaDB: one is first, the other waits, loses and changes nothing.

A side that skips what is locked does not wait; it is through while the other still holds the lock.
Then the order in which locks are taken, by tests that would deadlock if it were another one; and
at last many at once, on each database, without any order.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, select, update
from sqlalchemy.orm import Session

from models import Node, Saga, Step
from models.states import SagaState, StepState
from orchestration.database import open_engine
from orchestration.definition import Workflow, parallel, sequence
from orchestration.errors import LeaseLostError, RefusedError, StartConflictError
from orchestration.events import Done, Failed, FailureKind, Remedy
from orchestration.signals import Absent, Applied, Closed, Conflict
from orchestration.snapshot import StepSnapshot
from orchestration.supervisor import Supervisor
from orchestration.work import Work, as_leased
from tests.support.core import Core, at_once, line, steps
from tests.support.mariadb import Mariadb
from tests.support.races import RacingCore, everything, in_turn, race, wait_until_blocked

BUSY = Failed(kind=FailureKind.LATER, type="Busy", message="later")
MINUTE = timedelta(minutes=1)


@pytest.fixture
def core(writers: Engine) -> RacingCore:
    return RacingCore(writers, line("a"))


def step_of(core: Core, saga: UUID) -> StepSnapshot:
    with core.store.transaction() as connection:
        locked = core.store.lock_saga(connection, saga)
    assert locked is not None
    return locked.saga.steps["a"]


def lose(core: Core, saga: UUID, path: str = "a") -> bool:
    return core.scheduler.lost(saga, path, core.step(saga, path).attempt, "killed")


# --- two claims ----------------------------------------------------------------------------------


@pytest.mark.proves("D-05", "SAS-13", "IC-03")
def test_of_two_claims_the_second_waits_and_gets_nothing(core: RacingCore) -> None:
    saga, other = core.start(), core.join("other")
    raced = race(core, lambda: core.grant(saga, "a", 1), lambda: core.grant(saga, "a", 1, other))
    assert isinstance(raced.won, Work)
    assert raced.lost is None
    assert core.refusals(saga) == ["lost_the_race"]
    assert core.step(saga, "a").node_id == core.node.id


@pytest.mark.proves("D-05", "W-3", "INV-5")
def test_a_claim_that_has_read_an_earlier_attempt_gets_nothing(core: RacingCore) -> None:
    saga = retrying(core)
    step = replace(step_of(core, saga), attempt=0, state=StepState.DISPATCHED)
    stale = as_leased(step, core.definition().step("a"), core.node, 1, core.now)
    core.supervisor.sweep_due_retries()
    before = everything(core)
    with core.store.transaction() as connection:
        assert not core.store.grant_lease_if_dispatched(connection, saga, stale, "worker")
    assert everything(core) == before


# --- claim and sweep -----------------------------------------------------------------------------


@pytest.mark.proves("D-11", "SAS-14")
def test_a_sweep_waits_for_a_claim_and_then_sends_nothing_again(core: RacingCore) -> None:
    saga = core.start()
    core.later(seconds=5)
    raced = race(core, lambda: core.grant(saga, "a", 1), core.supervisor.sweep_undelivered)
    assert isinstance(raced.won, Work)
    assert core.step(saga, "a").state == "leased"


@pytest.mark.proves("D-11", "SAS-14")
def test_a_claim_waits_for_the_sweep_that_turns_its_saga_back_and_gets_nothing(
    core: RacingCore,
) -> None:
    saga = core.start()
    core.later(days=1)
    raced = race(core, core.supervisor.sweep_deadlines, lambda: core.grant(saga, "a", 1))
    assert (raced.won, raced.lost) == (1, None)
    assert core.refusals(saga) == ["lost_the_race"]
    assert core.states(saga) == {"a": "skipped"}


# --- report and sweep ----------------------------------------------------------------------------


@pytest.mark.proves("D-11", "INV-5")
@pytest.mark.parametrize("outcome", [Done(result="room 7"), BUSY], ids=["success", "failure"])
def test_a_sweep_of_a_silent_node_waits_for_the_report_and_takes_nothing_back(
    core: RacingCore, outcome: Done | Failed
) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.now += MINUTE
    race(core, lambda: core.report(work, outcome), core.supervisor.sweep_dead_nodes)
    assert core.step(saga, "a").failure_count == 0
    assert core.states(saga) == {"a": "succeeded" if isinstance(outcome, Done) else "retrying"}


@pytest.mark.proves("D-11", "SAS-14")
def test_a_sweep_of_overdue_leases_passes_by_a_step_that_is_just_reported(core: RacingCore) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.later(minutes=5)
    sweep = core.supervisor.sweep_overdue_leases
    raced = race(core, lambda: core.report(work), sweep, blocks=False)
    assert raced.lost == 0
    assert core.attempts(saga, "a") == [(1, "succeeded")]


@pytest.mark.proves("D-11", "INV-5", "W-3")
def test_a_report_waits_for_the_sweep_that_takes_its_lease_and_is_only_kept(
    core: RacingCore,
) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.later(minutes=5)
    race(core, core.supervisor.sweep_overdue_leases, lambda: core.report(work, BUSY))
    assert core.refusals(saga) == ["lease_lost"]
    assert core.states(saga) == {"a": "unknown"}
    assert core.attempts(saga, "a") == [(1, "expired")]


@pytest.mark.proves("D-11", "D-12", "SAS-10")
def test_a_heartbeat_waits_for_the_sweep_that_takes_its_lease_and_is_refused(
    core: RacingCore,
) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    raced = race(core, lambda: lose(core, saga), lambda: core.leases.renew(work, "still here"))
    assert isinstance(raced.lost, LeaseLostError)


@pytest.mark.proves("D-11")
def test_a_sweep_waits_for_a_heartbeat_and_leaves_the_lease_alone(core: RacingCore) -> None:
    core.workflows = (line("b", name="slow", heartbeat_timeout=MINUTE),)
    core.registry.add_workflow(core.workflows[0])
    core.known |= set(core.scheduler.register_definitions())
    saga = core.start()
    work = core.take(saga, "b")
    core.later(minutes=1)
    race(core, lambda: core.leases.renew(work, "here"), core.supervisor.sweep_overdue_leases)
    assert core.states(saga) == {"b": "leased"}


# --- cancel and the last report ------------------------------------------------------------------


@pytest.mark.proves("D-21", "CT-13")
def test_a_cancel_waits_for_the_last_report_and_is_refused(core: RacingCore) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    raced = race(core, lambda: core.report(work), lambda: core.scheduler.cancel(saga, by="ada"))
    assert isinstance(raced.lost, RefusedError)
    assert "has ended (completed)" in str(raced.lost)
    assert core.saga(saga).state == SagaState.COMPLETED


@pytest.mark.proves("D-21", "CT-13")
def test_the_last_report_waits_for_a_cancel_and_completes_nothing(core: RacingCore) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    in_turn(core, lambda: core.scheduler.cancel(saga, by="ada"), lambda: core.report(work))
    assert core.states(saga) == {"a": "dispatched"}
    assert core.news()[-1] == ("book.compensation", "a", 2)
    core.done(saga, "a")
    assert core.saga(saga).state == SagaState.CANCELLED


# --- two sweeps ----------------------------------------------------------------------------------


@pytest.mark.proves("D-11", "SAS-14", "SUP-09")
def test_of_two_sweeps_the_second_passes_by_what_the_first_has_locked(core: RacingCore) -> None:
    saga = core.start()
    core.take(saga, "a")
    core.later(minutes=5)
    sweep = core.supervisor.sweep_overdue_leases
    raced = race(core, sweep, Supervisor(core.scheduler, core).sweep_overdue_leases, blocks=False)
    assert (raced.won, raced.lost) == (1, 0)
    assert core.step(saga, "a").failure_count == 1


@pytest.mark.proves("D-11", "SUP-09")
def test_of_two_nodes_that_report_a_lease_lost_the_second_waits_and_counts_nothing(
    core: RacingCore,
) -> None:
    saga = core.start()
    core.take(saga, "a")
    race(core, lambda: lose(core, saga), lambda: lose(core, saga))
    assert core.step(saga, "a").failure_count == 1
    assert core.attempts(saga, "a") == [(1, "expired")]


# --- two starts with one key ---------------------------------------------------------------------


@pytest.mark.proves("D-01", "SAS-13", "SAS-15", "IC-03")
def test_of_two_starts_with_one_key_the_second_waits_and_gets_the_saga_of_the_first(
    core: RacingCore,
) -> None:
    raced = race(core, lambda: core.start({"n": 1}, "7"), lambda: core.start({"n": 1}, "7"))
    assert raced.won == raced.lost
    assert [row.id for row in core.rows(Saga)] == [raced.won]


@pytest.mark.proves("D-01", "IC-06")
def test_of_two_starts_with_one_key_and_two_inputs_the_second_waits_and_is_refused(
    core: RacingCore,
) -> None:
    raced = race(core, lambda: core.start({"n": 1}, "7"), lambda: core.start({"n": 2}, "7"))
    assert isinstance(raced.lost, StartConflictError)


@pytest.mark.proves("D-01", "IC-03")
def test_a_start_waits_for_the_other_with_its_key_and_takes_over_if_that_is_rolled_back(
    core: RacingCore,
) -> None:
    with Session(core.engine) as session, ThreadPoolExecutor(1) as thread:
        first = core.scheduler.start(core.workflows[0], {"n": 1}, key="7", session=session)
        other = thread.submit(core.start, {"n": 2}, "7")
        wait_until_blocked(core, other)
        session.rollback()
    (there,) = core.rows(Saga)
    assert there.id == other.result() != first.saga_id
    assert there.input == {"n": 2}


# --- resolve and retry ---------------------------------------------------------------------------


def retrying(core: Core) -> UUID:
    """A saga whose step has waited long enough to be tried again."""
    saga = core.start()
    core.report(core.take(saga, "a"), BUSY)
    core.later(minutes=5)
    return saga


def resolve(core: Core, saga: UUID, remedy: Remedy) -> None:
    core.scheduler.resolve(saga, "a", remedy, by="ada", reason="looked")


@pytest.mark.proves("SAS-14", "D-21")
def test_an_operators_decision_waits_for_the_retry_and_is_refused(core: RacingCore) -> None:
    saga = retrying(core)
    sweep = core.supervisor.sweep_due_retries
    raced = race(core, sweep, lambda: resolve(core, saga, Remedy.SUCCEEDED))
    assert isinstance(raced.lost, RefusedError)
    assert "step 'a' is dispatched" in str(raced.lost)
    assert core.states(saga) == {"a": "dispatched"}


@pytest.mark.proves("SAS-14", "D-21")
def test_a_retry_passes_by_what_an_operator_just_decides(core: RacingCore) -> None:
    saga = retrying(core)
    sweep = core.supervisor.sweep_due_retries
    raced = race(core, lambda: resolve(core, saga, Remedy.SUCCEEDED), sweep, blocks=False)
    assert raced.lost == 0
    assert core.saga(saga).state == SagaState.COMPLETED


@pytest.mark.proves("SAS-14", "INV-10")
def test_of_two_operators_the_second_waits_and_is_refused(core: RacingCore) -> None:
    saga = core.start()
    core.take(saga, "a")
    lose(core, saga)
    core.leases.answer(saga, "a", 1, Conflict("other amount"))
    raced = race(
        core,
        lambda: resolve(core, saga, Remedy.SUCCEEDED),
        lambda: resolve(core, saga, Remedy.FAILED),
    )
    assert isinstance(raced.lost, RefusedError)
    assert core.saga(saga).state == SagaState.COMPLETED


# --- answers, crashes and late reports -----------------------------------------------------------


@pytest.mark.proves("D-05", "W-4")
def test_of_two_answers_to_one_question_the_second_waits_and_is_only_kept(core: RacingCore) -> None:
    saga = core.start()
    core.take(saga, "a")
    lose(core, saga)
    answer = core.leases.answer
    race(
        core,
        lambda: answer(saga, "a", 1, Applied("room 7")),
        lambda: answer(saga, "a", 1, Conflict("other amount")),
    )
    assert core.refusals(saga) == ["stale_answer"]
    assert core.saga(saga).state == SagaState.COMPLETED


@pytest.mark.proves("D-20", "D-12", "INV-3")
def test_two_late_successes_at_once_are_undone_once(core: RacingCore) -> None:
    saga = core.start()
    first = core.take(saga, "a")
    lose(core, saga)
    core.leases.answer(saga, "a", 1, Absent())
    core.now = core.step(saga, "a").wake_at
    core.scheduler.wake(saga, "a")
    second = core.take(saga, "a")
    lose(core, saga)
    core.scheduler.cancel(saga, by="ada")
    core.leases.answer(saga, "a", core.step(saga, "a").inquiry_no, Closed())
    assert core.saga(saga).state == SagaState.CANCELLED
    race(core, lambda: core.report(first), lambda: core.report(second))
    assert core.states(saga) == {"a": "failed", "a~late": "dispatched"}
    assert core.refusals(saga) == ["stale_attempt", "lease_lost"]


@pytest.mark.proves("D-11", "D-16")
def test_a_sweep_waits_for_the_word_of_a_node_and_does_not_end_it(core: RacingCore) -> None:
    core.now += MINUTE
    ((node, heartbeat_at),) = core.roster.silent(MINUTE / 2)
    table: Any = Node.__table__
    with core.store.transaction() as speaking, ThreadPoolExecutor(1) as thread:
        speaking.execute(update(table).where(table.c.id == node).values(heartbeat_at=core.now))
        sweep = thread.submit(core.roster.end_if_silent, node, heartbeat_at)
        wait_until_blocked(core, sweep)
        speaking.commit()
        assert sweep.result() is False
    assert core.nodes() == {"worker": True}


# --- the order of locks --------------------------------------------------------------------------


def wide(*names: str) -> Workflow:
    return Workflow("wide", version=1, steps=parallel(*steps(*names)))


def busy(core: Core) -> tuple[UUID, Work]:
    """A saga of two leased steps, made in the other order than that of their names."""
    saga = core.start()
    work = core.take(saga, "b")
    core.take(saga, "a")
    core.later(minutes=5)
    return saga, work


EVENTS: dict[str, Callable[[Core, UUID, Work], Any]] = {
    "report": lambda core, saga, work: core.report(work),
    "lost": lambda core, saga, work: core.scheduler.lost(saga, "b", 1, "killed"),
    "cancel": lambda core, saga, work: core.scheduler.cancel(saga, by="ada"),
    "sweep": lambda core, saga, work: core.scheduler.wake(saga, "b"),
    "nudge": lambda core, saga, work: core.scheduler.nudge(saga),
    "distrust": lambda core, saga, work: core.scheduler.distrust(by="ada", reason="restored"),
}


@pytest.fixture
def forked(writers: Engine) -> RacingCore:
    return RacingCore(writers, wide("b", "a"))


def lock(connection: Connection, saga: UUID, *paths: str) -> None:
    """Lock steps of a saga, one after another, or without paths the saga itself."""
    if not paths:
        connection.execute(select(Saga.id).where(Saga.id == saga).with_for_update())
    for path in paths:
        step = select(Step.path).where(Step.saga_id == saga, Step.path == path)
        connection.execute(step.with_for_update())


@pytest.mark.proves("D-24", "SAS-13")
@pytest.mark.parametrize("name", [name for name in EVENTS if name not in {"sweep", "nudge"}])
def test_whatever_decides_locks_the_saga_before_its_steps(forked: RacingCore, name: str) -> None:
    """Whoever held a step while it waits for the saga would be in a deadlock with this one."""
    saga, work = busy(forked)
    with ThreadPoolExecutor(1) as thread:
        with forked.store.transaction() as connection:
            lock(connection, saga)
            other = thread.submit(EVENTS[name], forked, saga, work)
            wait_until_blocked(forked, other)
            lock(connection, saga, "a", "b")
        other.result()


@pytest.mark.proves("D-24", "SAS-13")
@pytest.mark.parametrize("name", EVENTS)
def test_whatever_decides_locks_steps_in_the_order_of_their_paths(
    forked: RacingCore, name: str
) -> None:
    """Whoever held the second step while it waits for the first would be in a deadlock here."""
    saga, work = busy(forked)
    with ThreadPoolExecutor(1) as thread:
        with forked.store.transaction() as connection:
            lock(connection, saga, "a")
            other = thread.submit(EVENTS[name], forked, saga, work)
            wait_until_blocked(forked, other)
            lock(connection, saga, "b")
        other.result()


@pytest.mark.proves("D-24")
@pytest.mark.parametrize("name", ["grant", "heartbeat"])
def test_a_grant_and_a_heartbeat_hold_nothing_while_they_wait_for_their_step(
    forked: RacingCore, name: str
) -> None:
    saga = forked.start()
    work = forked.take(saga, "b")
    with ThreadPoolExecutor(1) as thread:
        with forked.store.transaction() as connection:
            lock(connection, saga, "a", "b")
            other = thread.submit(
                lambda: (
                    forked.grant(saga, "a", 1)
                    if name == "grant"
                    else forked.leases.renew(work, "here")
                )
            )
            wait_until_blocked(forked, other)
            lock(connection, saga)
        other.result()


def test_what_was_rolled_back_in_a_deadlock_is_decided_again(
    mariadb: Mariadb, mariadb_template: str
) -> None:
    """InnoDB ends the one that has changed less."""
    with mariadb.database(mariadb_template) as url, ThreadPoolExecutor(1) as thread:
        core = RacingCore(open_engine(url), wide("b", "a"))
        for name in "cdefgh":
            core.join(name)
        saga, work = busy(core)
        with core.store.transaction() as connection:
            connection.execute(update(Node.__table__).values(pid=2))
            lock(connection, saga, "a")
            other = thread.submit(core.report, work)
            wait_until_blocked(core, other)
            lock(connection, saga)
        assert other.result() is None
        assert core.states(saga) == {"a": "leased", "b": "succeeded"}
        core.engine.dispose()


# --- many at once, on each database --------------------------------------------------------------


@pytest.mark.proves("D-05", "SAS-13", "COL-02", "IC-03")
def test_one_of_many_workers_gets_the_lease(engine: Engine) -> None:
    core = Core(engine, Workflow("wide", version=1, steps=parallel(*steps(*"abcde"))))
    saga = core.start()
    for path in "abcde":
        taken = at_once(*[lambda path=path: core.grant(saga, path, 1)] * 4)
        assert [isinstance(work, Work) for work in taken].count(True) == 1, taken
        assert core.attempts(saga, path) == [(1, "open")]
    assert set(core.refusals(saga)) <= {"duplicate_delivery", "lost_the_race"}
    assert len(core.refusals(saga)) == 3 * 5


@pytest.mark.proves("SAS-13", "SAS-15", "D-01")
def test_two_starts_with_one_key_at_once_make_one_saga(engine: Engine) -> None:
    core = Core(engine)
    for turn in range(5):
        starts = [lambda: core.start({"n": 1}, key=f"key {turn}")] * 4  # noqa: B023 - called at once
        ids = at_once(*starts)
        assert len(set(ids)) == 1, ids
    assert len(core.rows(Saga)) == 5
    assert len(core.news()) == 5


@pytest.mark.proves("D-21", "SAS-14")
def test_a_grant_and_a_cancel_at_once_end_in_one_of_two_ways(engine: Engine) -> None:
    core = Core(engine, line("a"))
    for _ in range(8):
        saga = core.start()
        work, refused = at_once(
            lambda: core.grant(saga, "a", 1),  # noqa: B023 - called at once
            lambda: core.scheduler.cancel(saga, by="ada"),  # noqa: B023
        )
        assert refused is None
        if work is None:
            assert core.states(saga) == {"a": "skipped"}
        else:
            assert core.states(saga) == {"a": "leased"}
            core.report(work)
            core.done(saga, "a")
        assert core.saga(saga).state == "cancelled"


@pytest.mark.proves("D-21")
def test_the_last_report_and_a_cancel_at_once_end_in_one_of_two_ways(engine: Engine) -> None:
    core = Core(engine, line("a"))
    for _ in range(8):
        saga = core.start()
        work = core.take(saga, "a")
        _, refused = at_once(
            lambda: core.report(work),  # noqa: B023 - called at once
            lambda: core.scheduler.cancel(saga, by="ada"),  # noqa: B023
        )
        if refused is None:
            core.done(saga, "a")
            assert core.saga(saga).state == "cancelled"
        else:
            assert isinstance(refused, RefusedError)
            assert core.saga(saga).state == "completed"


@pytest.mark.proves("D-11", "INV-5")
def test_a_report_and_the_loss_of_its_lease_at_once_count_once(engine: Engine) -> None:
    core = Core(engine, line("a"))
    for _ in range(8):
        saga = core.start()
        work = core.take(saga, "a")
        at_once(
            lambda: core.report(work),  # noqa: B023 - called at once
            lambda: core.scheduler.lost(saga, "a", 1, "killed"),  # noqa: B023
        )
        assert core.states(saga) == {"a": "succeeded"}
        assert core.attempts(saga, "a") in ([(1, "succeeded")], [(1, "expired")])
        assert core.step(saga, "a").failure_count <= 1


@pytest.mark.proves("D-24", "D-28")
def test_branches_that_end_at_once_are_joined_once(engine: Engine) -> None:
    joined = sequence(parallel(*steps(*"abcdef")), *steps("last"))
    core = Core(engine, Workflow("joined", version=1, steps=joined))
    saga = core.start()
    works = [core.take(saga, path) for path in "abcdef"]
    core.news()
    errors = at_once(*[lambda work=work: core.report(work) for work in works])
    assert errors == [None] * 6
    assert core.news() == [("book", "last", 1)]
