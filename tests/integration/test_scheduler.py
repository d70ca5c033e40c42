"""Starting, chaining and deciding on real rows: what is committed together, what is refused."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, event, func, select
from sqlalchemy.orm import Session

from models import Definition, Saga, Step
from models.states import SagaState
from orchestration.contract import AgentContract
from orchestration.definition import Step as StepDefinition
from orchestration.definition import Workflow, parallel, sequence
from orchestration.draft import REDELIVERY
from orchestration.errors import (
    DefinitionChangedError,
    InputError,
    NotFoundError,
    RefusedError,
    StartConflictError,
    UnknownNameError,
)
from orchestration.events import Dispatch, Done, Failed, FailureKind, Remedy
from orchestration.ports import new_saga_id
from orchestration.registry import Registry
from orchestration.scheduler import Scheduler
from orchestration.signals import Absent, Applied, Closed, Conflict
from tests.support.core import (
    BOOK,
    NOW,
    Core,
    at_once,
    counted_commits,
    line,
    steps,
)


class Request(BaseModel):
    nights: int


@pytest.fixture
def core(engine: Engine) -> Core:
    return Core(engine)


def count(core: Core, entity: Any) -> int:
    with core.store.reading() as connection:
        table = entity.__table__
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


# --- starting ------------------------------------------------------------------------------------


@pytest.mark.proves("SAS-03", "SAS-04", "COL-01")
def test_a_start_writes_the_saga_and_every_step_and_then_sends_the_first(core: Core) -> None:
    saga = core.start({"nights": 2})
    assert core.saga(saga).state == SagaState.RUNNING
    assert core.saga(saga).input == {"nights": 2}
    assert core.states(saga) == {"a": "dispatched", "b": "waiting"}
    assert core.news() == [("book", "a", 1)]


@pytest.mark.proves("SAS-05", "INV-6")
def test_a_started_saga_has_a_deadline_and_a_time_at_which_it_is_looked_at(core: Core) -> None:
    row = core.saga(core.start())
    assert row.deadline_at == row.wake_at == core.now + timedelta(days=1)


@pytest.mark.parametrize("width", [2, 20], ids=["in one statement", "in several"])
def test_everything_that_a_start_writes_is_of_one_present(engine: Engine, width: int) -> None:
    workflow = Workflow("wide", version=1, steps=parallel(*steps(*map("s{}".format, range(width)))))
    core = Core(engine, workflow)
    core.now = NOW + timedelta(microseconds=123_456 if engine.dialect.name != "sqlite" else 123_000)
    own = core.start()
    with Session(engine) as session, session.begin():
        joined = core.scheduler.start("wide", session=session).saga_id
    for saga in (own, joined):
        row = core.saga(saga)
        assert (row.created_at, row.deadline_at) == (core.now, core.now + timedelta(days=1))
        for step in core.rows(Step, saga_id=saga):
            assert step.dispatched_at == step.ready_at == core.now
            assert step.wake_at == core.now + REDELIVERY


def test_a_day_is_24_hours_long_whatever_the_zone_of_the_session(engine: Engine) -> None:
    core = Core(engine, line("a", timeout=timedelta(days=1), name="long"))
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _to_new_york)
        engine.dispose()
    core.now = datetime(2027, 3, 13, 12, tzinfo=UTC)  # Clocks are put forward there that night.
    for _ in range(2):  # The second lease is taken as it was expected.
        saga = core.start()
        assert core.saga(saga).deadline_at == core.now + timedelta(days=1)
        core.take(saga, "a")
        step = core.step(saga, "a")
        assert step.deadline_at == step.wake_at == core.now + timedelta(days=1)


def _to_new_york(driver: Any, _: object) -> None:
    driver.autocommit = True
    driver.execute("SET TIME ZONE 'America/New_York'")
    driver.autocommit = False


@pytest.mark.proves("D-01", "SAS-15")
def test_the_same_key_with_the_same_input_returns_the_saga_that_is_there(core: Core) -> None:
    first = core.start({"nights": 2, "city": "LIS"}, key="order 7")
    core.news()
    assert core.start({"city": "LIS", "nights": 2}, key="order 7") == first
    assert core.news() == []
    assert count(core, Saga) == 1
    assert count(core, Step) == 2


@pytest.mark.proves("D-01", "IC-06")
def test_the_same_key_with_another_input_is_an_error_that_names_both(core: Core) -> None:
    first = core.start({"nights": 2}, key="order 7")
    with pytest.raises(StartConflictError) as refused:
        core.start({"nights": 3}, key="order 7")
    for part in ("'order 7'", "'stay'", str(first), "{'nights': 2}", "{'nights': 3}"):
        assert part in str(refused.value)
    assert count(core, Saga) == 1


def test_a_key_belongs_to_its_workflow(engine: Engine) -> None:
    core = Core(engine, line("a"), line("a", name="other"))
    one = core.scheduler.start("stay", key="7").saga_id
    assert core.scheduler.start("other", key="7").saga_id != one


def test_without_a_key_every_start_is_a_saga_of_its_own(core: Core) -> None:
    assert core.start() != core.start()


def test_a_start_with_an_input_that_does_not_fit_writes_nothing(engine: Engine) -> None:
    core = Core(engine, Workflow("stay", version=1, steps=sequence(*steps("a")), input=Request))
    with pytest.raises(InputError, match="nights"):
        core.start({"nights": "many"})
    assert count(core, Saga) == 0
    assert core.news() == []


def test_a_start_of_an_unknown_workflow_names_the_nearest(core: Core) -> None:
    with pytest.raises(UnknownNameError, match=r"'stya'.*did you mean 'stay'"):
        core.scheduler.start("stya")


def test_ids_are_uuids_of_version_seven_in_the_order_of_starts(core: Core) -> None:
    ids = [new_saga_id() for _ in range(50)]
    assert {one.version for one in ids} == {7}
    assert len(set(ids)) == 50


# --- definitions ---------------------------------------------------------------------------------


@pytest.mark.proves("D-22", "GM-08")
def test_a_saga_keeps_the_definition_that_it_was_started_with(engine: Engine) -> None:
    core = Core(engine, line("a", "b"))
    saga = core.start()
    newer = Core(engine, line("a", "c", version=2))
    newer.report(core.take(saga, "a"))
    assert newer.states(saga) == {"a": "succeeded", "b": "dispatched"}
    assert newer.states(newer.start()) == {"a": "dispatched", "c": "waiting"}


@pytest.mark.proves("D-22")
def test_other_content_under_a_stored_version_is_refused_with_a_difference(engine: Engine) -> None:
    Core(engine, line("a"))
    with pytest.raises(DefinitionChangedError) as refused:
        Core(engine, line("z"))
    assert "workflow 'stay' version 1" in str(refused.value)
    assert '+          "name": "z"' in str(refused.value)


@pytest.mark.proves("D-22")
def test_another_contract_of_an_agent_is_another_content(engine: Engine) -> None:
    Core(engine, line("a"))
    other = AgentContract(name="book", queue="slow", idempotent=True, compensation=True)
    with pytest.raises(DefinitionChangedError, match='"queue": "slow"'):
        Core(engine, line("a"), contracts=[other])


def test_definitions_are_stored_once_however_many_processes_register_them(engine: Engine) -> None:
    at_once(*[lambda: Core(engine)] * 4)
    core = Core(engine)
    assert count(core, Definition) == 1


@pytest.mark.proves("SAS-15")
def test_a_process_without_the_agents_starts_what_is_stored(engine: Engine) -> None:
    core = Core(engine)
    for known in ([core.workflows[0]], []):
        registry = Registry()
        for workflow in known:
            registry.add_workflow(workflow)
        outside = Scheduler(core.store, core, registry)
        handle = outside.start("stay", {"nights": 1})
        assert core.states(handle.saga_id) == {"a": "dispatched", "b": "waiting"}


def test_a_process_without_the_agents_cannot_start_what_nobody_has_stored(engine: Engine) -> None:
    core = Core(engine)
    registry = Registry()
    registry.add_workflow(line("a", name="new"))
    with pytest.raises(UnknownNameError, match="start a worker that has its agents"):
        Scheduler(core.store, core, registry).start("new")


def test_a_process_with_other_content_cannot_start_it(engine: Engine) -> None:
    core = Core(engine)
    registry = Registry()
    registry.add_workflow(line("z"))
    with pytest.raises(DefinitionChangedError):
        Scheduler(core.store, core, registry).start("stay")


# --- chaining ------------------------------------------------------------------------------------


@pytest.mark.proves("SAS-01", "SAS-07")
def test_a_report_and_the_dispatch_of_what_follows_are_committed_together(core: Core) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.news()
    with counted_commits(core.engine) as commits:
        core.report(work, Done(result={"seat": "1A"}))
    assert len(commits) == 1
    assert core.states(saga) == {"a": "succeeded", "b": "dispatched"}
    assert core.news() == [("book", "b", 1)]
    core.done(saga, "b")
    assert core.saga(saga).state == SagaState.COMPLETED
    assert core.saga(saga).ended_at == core.now
    assert core.saga(saga).wake_at is None


@pytest.mark.proves("W-1", "O-2", "SAS-03", "SAS-04")
def test_a_message_is_sent_after_its_row_is_committed(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def look(dispatches: Sequence[Dispatch]) -> None:
        """Look from another connection, as a worker would on the arrival of the message."""
        for sent in dispatches:
            seen.extend(row.state for row in core.rows(Step, saga_id=sent.saga_id, path=sent.path))

    monkeypatch.setattr(core, "publish", look)
    saga = core.start()
    core.done(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    assert seen == ["dispatched", "dispatched", "dispatched"]
    assert core.step(saga, "a").direction == "backward"


@pytest.mark.proves("T-2", "T-3")
def test_a_process_is_killed_within_the_time_that_the_horizon_counts(engine: Engine) -> None:
    minute = timedelta(minutes=1)
    core = Core(engine, line("a", timeout=minute))
    core.take(core.start(), "a")
    (sent,) = core.sent
    remote = AgentContract(name="book", request_lifetime=timedelta(0))
    assert sent.time_limit == remote.settle_horizon(minute)


@pytest.mark.parametrize("length", [1, 3, 10])
def test_a_sequence_costs_two_commits_for_each_step_and_two_for_the_saga(
    engine: Engine, length: int
) -> None:
    core = Core(engine, line(*(f"s{n}" for n in range(length))))
    with counted_commits(engine) as commits:
        saga = core.start()
        core.done(saga, *(f"s{n}" for n in range(length)))
    assert core.saga(saga).state == SagaState.COMPLETED
    assert len(commits) <= 2 * length + 2


@pytest.mark.proves("SAS-12", "REC-01")
def test_any_process_goes_on_with_what_another_began(engine: Engine) -> None:
    one, other = Core(engine), Core(engine)
    saga = one.start()
    other.done(saga, "a")
    one.done(saga, "b")
    assert other.saga(saga).state == SagaState.COMPLETED


@pytest.mark.proves("SAS-02", "SUP-04")
def test_one_scheduler_and_one_supervisor_serve_unrelated_workflows(engine: Engine) -> None:
    wide = Workflow("wide", version=1, steps=parallel(*steps("x", "y")))
    core = Core(engine, line("a"), wide)
    first, second = core.start(), core.scheduler.start("wide").saga_id
    core.take(first, "a")
    core.take(second, "x")
    core.later(minutes=6).supervisor.sweep()
    assert core.states(first) == {"a": "unknown"}
    assert core.states(second) == {"x": "unknown", "y": "dispatched"}


@pytest.mark.proves("CT-04", "CT-08", "REC-03", "REC-05", "GM-01")
def test_a_failure_undoes_the_saga_through_the_same_leases(engine: Engine) -> None:
    core = Core(engine, line("a", "b", "c"))
    saga = core.start()
    core.done(saga, "a", "b", result="kept")
    failed = Failed(kind=FailureKind.PERMANENT, type="SoldOut", message="no room")
    core.report(core.take(saga, "c"), failed)
    assert core.saga(saga).state == SagaState.COMPENSATING
    assert core.news()[-1] == ("book.compensation", "b", 2)
    work = core.take(saga, "b")
    assert work.own_result == "kept"
    core.leases.report(work, Failed(kind=FailureKind.ERROR, type="Timeout", message="?"))
    core.later(minutes=5).supervisor.sweep()
    core.done(saga, "b", "a")
    assert core.saga(saga).state == SagaState.COMPENSATED
    assert core.attempts(saga, "b") == [(1, "succeeded"), (2, "failed"), (3, "succeeded")]
    assert core.saga(saga).abort == {"reason": "failed", "step": "c", "message": "no room"}


@pytest.mark.proves("CT-08", "SAS-09", "K-1")
def test_an_action_and_its_undo_are_told_apart_and_belong_together_by_their_keys(
    engine: Engine,
) -> None:
    core = Core(engine, line("a", "b"))
    saga = core.start()
    first = core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.leases.answer(saga, "a", 1, Absent())
    core.later(minutes=1).supervisor.sweep()
    second = core.take(saga, "a")
    assert second.key == first.key == first.action_key
    core.report(second)
    core.scheduler.cancel(saga, by="ada")
    undo = core.take(saga, "a")
    assert undo.key != first.key
    assert undo.action_key == first.key


@pytest.mark.proves("K-2", "row 18")
def test_a_closed_key_is_never_used_again(engine: Engine) -> None:
    careful = AgentContract(name="book", probe=True, close=True, compensation=True)
    core = Core(engine, line("a"), contracts=[careful])
    saga = core.start()
    first = core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.leases.answer(saga, "a", 1, Absent())
    assert core.news()[-1] == ("book.close", "a", 2)
    core.leases.answer(saga, "a", 2, Closed())
    core.later(minutes=1).supervisor.sweep()
    assert core.take(saga, "a").key != first.key


# --- people --------------------------------------------------------------------------------------


@pytest.mark.proves("CT-13")
def test_a_cancelled_saga_is_undone(core: Core) -> None:
    saga = core.start()
    core.done(saga, "a")
    core.scheduler.cancel(saga, by="ada", reason="changed her mind")
    core.done(saga, "a")
    assert core.saga(saga).state == SagaState.CANCELLED


def test_a_refused_command_changes_nothing(core: Core) -> None:
    saga = core.start()
    core.done(saga, "a", "b")
    before = core.saga(saga)
    with counted_commits(core.engine) as commits, pytest.raises(RefusedError, match="has ended"):
        core.scheduler.cancel(saga, by="ada")
    assert core.saga(saga) == before
    assert commits == []


def test_a_saga_that_is_not_there_is_named(core: Core) -> None:
    missing = uuid4()
    with pytest.raises(NotFoundError, match=str(missing)):
        core.scheduler.cancel(missing, by="ada")


@pytest.mark.proves("CT-05", "INV-10", "row 7")
def test_a_halted_step_has_one_open_incident_until_somebody_decides(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.leases.answer(saga, "a", 1, Conflict("other amount"))
    assert core.saga(saga).state == SagaState.HALTED
    assert core.incidents(saga) == ["conflict"]
    core.scheduler.resolve(saga, "a", Remedy.SUCCEEDED, by="ada", reason="looked", result="7")
    assert core.incidents(saga) == []
    assert core.step(saga, "a").result == "7"
    core.done(saga, "b")
    assert core.saga(saga).state == SagaState.COMPLETED


def test_a_halted_saga_can_go_on_and_halt_again(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    for number in (1, 2, 3):
        core.leases.answer(saga, "a", number, Conflict("?"))
        assert core.saga(saga).state == SagaState.HALTED
        core.scheduler.resolve(saga, "a", Remedy.PROBE, by="ada", reason="again")
        assert core.saga(saga).state == SagaState.RUNNING
    core.leases.answer(saga, "a", 4, Applied())
    assert core.step(saga, "a").state == "succeeded"


@pytest.mark.proves("CT-12")
def test_a_cancel_after_the_pivot_is_refused_and_says_so(engine: Engine) -> None:
    pay = AgentContract(name="pay", queue="pay", idempotent=True)
    plan = sequence(StepDefinition("pay", agent="pay", pivot=True), *steps("mail"))
    core = Core(engine, Workflow("stay", version=1, steps=plan), contracts=[BOOK, pay])
    saga = core.start()
    core.take(saga, "pay")
    with pytest.raises(RefusedError, match="past its pivot 'pay'"):
        core.scheduler.cancel(saga, by="ada")
    assert core.saga(saga).state == SagaState.RUNNING


@pytest.mark.parametrize("key", ["", "k" * 201])
def test_a_key_that_no_column_can_hold_is_refused_by_its_name(core: Core, key: str) -> None:
    with pytest.raises(InputError, match=r"^key: must be 1 to 200 characters long"):
        core.start(key=key)
    assert count(core, Saga) == 0
