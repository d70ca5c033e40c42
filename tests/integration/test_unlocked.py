"""What is decided on what was seen a moment ago, without a lock, and when that is not done."""

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, insert, update
from sqlalchemy.exc import IntegrityError

from models import Attempt, JournalEntry, Saga, Step
from models.states import AttemptState
from orchestration.definition import Workflow, parallel, sequence
from orchestration.errors import StartConflictError
from orchestration.events import Done, Failed, FailureKind, Outcome, Reported
from orchestration.seen import LASTS, PROMPT
from orchestration.signals import Closed
from orchestration.statement import Batch
from orchestration.work import Work
from tests.support.core import BOOK, Core, line, steps


class Counting(Core):
    """A core that counts what was decided under a lock."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.locked = 0
        handle = self.scheduler.handle

        def counted(*given: Any, **named: Any) -> bool:
            self.locked += 1
            return handle(*given, **named)

        self.scheduler.handle = counted  # type: ignore[method-assign]


@pytest.fixture(params=["", "listened to"])
def core(engine: Engine, request: pytest.FixtureRequest) -> Counting:
    """Where somebody listens to SQLAlchemy's statements, as tracing does, they go its own way."""
    if request.param:
        event.listen(engine, "before_cursor_execute", lambda *_: None)
    return Counting(engine, line("a", "b"))


def everything(core: Core) -> list[Any]:
    return [core.rows(entity) for entity in (Saga, Step, Attempt, JournalEntry)]


def inline(core: Core, work: Work, outcome: Outcome | None = None) -> Work | None:
    return core.leases.report(work, outcome or Done(result=work.path), core.node)


# --- nothing has happened since ------------------------------------------------------------------


def test_a_saga_to_which_nothing_else_happens_is_decided_about_without_a_lock(
    core: Counting,
) -> None:
    saga = core.start()
    core.done(saga, "a", "b")
    assert core.locked == 0
    assert core.saga(saga).state == "completed"
    assert [entry.verb for entry in core.rows(JournalEntry)] == ["finish"]
    assert core.attempts(saga, "a") == core.attempts(saga, "b") == [(1, "succeeded")]


def test_its_instants_are_those_of_the_database(core: Counting) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.now += timedelta(seconds=2)
    core.report(work)
    assert core.locked == 0
    assert core.step(saga, "a").settled_at == core.step(saga, "b").dispatched_at == core.now


def test_what_is_undone_is_decided_about_without_a_lock_too(core: Counting) -> None:
    saga = core.start()
    core.done(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    core.locked = 0
    core.report(core.take(saga, "a"))
    assert (core.locked, core.saga(saga).state) == (0, "cancelled")


def test_each_event_raises_the_revision(core: Counting) -> None:
    saga = core.start()
    revisions = [core.saga(saga).revision]
    core.report(core.take(saga, "a"))
    revisions.append(core.saga(saga).revision)
    core.scheduler.lost(saga, "b", core.take(saga, "b").attempt, "killed")
    revisions.append(core.saga(saga).revision)
    core.scheduler.cancel(saga, by="ada")
    revisions.append(core.saga(saga).revision)
    assert revisions == [0, 1, 2, 3]


def test_evidence_raises_no_revision(core: Counting) -> None:
    saga = core.start()
    core.take(saga, "a")
    assert core.grant(saga, "a", 1) is None
    assert core.refusals(saga) == ["duplicate_delivery"]
    assert core.saga(saga).revision == 0


# --- something has happened since ----------------------------------------------------------------


@pytest.mark.proves("D-10", "D-17")
def test_what_has_happened_since_is_heeded(core: Counting) -> None:
    """The database has lost commits: what comes next is asked about and not sent."""
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.distrust(by="ada", reason="fail-over")
    core.news()
    core.locked = 0
    core.report(work)
    assert core.locked == 1
    assert core.step(saga, "a").state == "succeeded"
    assert core.news() == [("book.probe", "b", 1)]


@pytest.mark.proves("INV-5", "W-3")
def test_if_any_row_is_not_what_it_was_none_is_written(core: Counting) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    with core.store.transaction() as connection:
        ended = {"state": AttemptState.EXPIRED, "ended_at": core.now}
        connection.execute(update(Attempt.__table__).values(ended))
    before = everything(core)
    assert work.seen is not None
    kept = core.scheduler.handle_unlocked(
        work.seen, work.definition, _reported(work), core, lambda *given: given[2]
    )
    assert not kept
    assert everything(core) == before
    assert core.news() == [("book", "a", 1)]


@pytest.mark.proves("INV-7", "W-2")
def test_if_an_attempt_cannot_be_opened_its_lease_is_not_given(core: Counting) -> None:
    core.done(core.start(), "a")
    saga = core.start()
    opened = {
        "saga_id": saga, "path": "a", "no": 1, "direction": "forward", "incarnation": 0,
        "state": "open", "node": "another", "pid": 1, "granted_at": core.now,
    }  # fmt: skip
    with core.store.transaction() as connection:
        connection.execute(insert(Attempt.__table__).values(opened))
    before = everything(core)
    for expects in (True, False):
        if not expects:
            core.leases._expected.clear()
        with pytest.raises(IntegrityError):
            core.grant(saga, "a", 1)
        assert everything(core) == before


@pytest.mark.proves("D-22", "INV-2")
def test_what_comes_late_is_undone_beside_a_release_that_knows_no_revisions(
    engine: Engine,
) -> None:
    """Such a release has done the step again under another key, and gone on, meanwhile."""
    core = Counting(
        engine,
        Workflow("in", version=1, steps=sequence(*steps("a"), *steps("b", "c", inline=True))),
        contracts=[replace(BOOK, idempotent=False)],
    )
    saga = core.start()
    late = core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "its node was silent")
    while (step := core.step(saga, "a")).state == "unknown":
        if step.inquiry:
            core.leases.answer(saga, "a", step.inquiry_no, Closed())
        else:
            core.now = step.wake_at
            core.scheduler.wake(saga, "a")
    other = core.join("older")
    core.report(core.take(saga, "a", other))
    core.take(saga, "b", other)
    with core.store.transaction() as connection:
        connection.execute(update(Saga.__table__).values(revision=0))
    assert late.seen is not None
    late.seen = replace(late.seen, read_at=core.monotonic(), now=core.now)
    assert inline(core, late) is None
    assert core.refusals(saga) == ["stale_attempt"]
    assert core.step(saga, "a~late").state == "dispatched"


def test_no_saga_is_started_without_its_steps(
    core: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(batch: Batch) -> None:
        raise RuntimeError(batch)

    with monkeypatch.context() as broken, suppress(RuntimeError):
        broken.setattr(Batch, "flush", fail)
        core.start()
    started = {saga.id for saga in core.rows(Saga)}
    assert started == {step.saga_id for step in core.rows(Step)}


def _reported(work: Work) -> Any:
    return Reported(
        path=work.path, attempt=work.attempt, direction=work.direction,
        incarnation=work.step.incarnation, outcome=Done(),
    )  # fmt: skip


@pytest.mark.proves("D-22")
def test_branches_are_joined_beside_a_release_that_knows_no_revisions(engine: Engine) -> None:
    """Such a release raises none, so a revision says nothing of what it has decided."""
    wide = Workflow("wide", version=1, steps=sequence(parallel(*steps("a", "b")), *steps("c")))
    core = Counting(engine, wide)
    saga = core.start()
    first, second = core.take(saga, "a"), core.take(saga, "b")
    core.report(first)
    with core.store.transaction() as connection:
        connection.execute(update(Saga.__table__).values(revision=0))
    core.report(second)
    assert core.states(saga) == {"a": "succeeded", "b": "succeeded", "c": "dispatched"}


def test_a_failure_is_decided_about_under_a_lock(core: Counting) -> None:
    saga = core.start()
    core.report(core.take(saga, "a"), Failed(kind=FailureKind.LATER, type="Busy", message="no"))
    assert core.locked == 1


@pytest.mark.proves("T-1")
def test_what_was_seen_too_long_ago_is_read_again(core: Counting) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.now += timedelta(seconds=LASTS + 0.001)
    core.report(work)
    assert core.locked == 1
    assert core.step(saga, "a").settled_at == core.now


def test_the_time_that_a_connection_is_waited_for_counts(
    core: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    at_once = core.store.at_once

    def after_a_while() -> Any:
        core.now += timedelta(seconds=1)
        return at_once()

    monkeypatch.setattr(core.store, "at_once", after_a_while)
    core.report(work)
    assert core.locked == 0
    assert core.step(saga, "a").settled_at == core.now


def test_no_attempt_ends_before_its_last_heartbeat(engine: Engine) -> None:
    core = Counting(engine, line("a", heartbeat_timeout=timedelta(minutes=1)))
    saga = core.start()
    work = _read_late(core.take(saga, "a"), timedelta(milliseconds=50))
    core.now += timedelta(milliseconds=60)
    core.leases.renew(work, None)
    core.report(work)
    (attempt,) = core.rows(Attempt)
    assert attempt.ended_at == attempt.heartbeat_at == core.now


def test_an_open_incident_is_closed_with_the_saga(core: Counting) -> None:
    saga = core.start()
    core.done(saga, "a")
    for _ in range(6):  # Nobody serves it, until somebody comes.
        core.now = core.step(saga, "b").wake_at
        core.scheduler.wake(saga, "b", unserved=True)
    with core.store.transaction() as connection:
        from sqlalchemy import insert

        from models import Incident

        asked = {
            "saga_id": saga,
            "path": "",
            "kind": "overdue",
            "message": "",
            "opened_at": core.now,
        }
        connection.execute(insert(Incident.__table__), asked)
    core.report(core.take(saga, "b"))
    assert core.saga(saga).state == "completed"
    assert core.incidents(saga) == []


def test_a_saga_of_many_steps_is_not_read_for_each_of_them(engine: Engine) -> None:
    names = [f"s{number:02}" for number in range(40)]
    core = Counting(engine, line(*names))
    saga = core.start()
    work = core.take(saga, "s00")
    assert work.seen is None
    core.report(work, Done(result=7))
    assert core.locked == 1
    assert core.take(saga, "s01").results == {"s00": 7}


# --- inline steps --------------------------------------------------------------------------------


@pytest.fixture
def in_line(engine: Engine) -> Counting:
    return Counting(engine, Workflow("in", version=1, steps=sequence(
        *steps("a"), *steps("b", "c", inline=True)
    )))  # fmt: skip


@pytest.mark.proves("D-05", "INV-7")
def test_inline_steps_are_gone_on_with_without_a_lock(in_line: Counting) -> None:
    saga = in_line.start({"nights": 2})
    first = in_line.take(saga, "a")
    second = inline(in_line, first)
    assert second is not None
    assert (second.path, second.attempt, second.input) == ("b", 1, {"nights": 2})
    assert in_line.step(saga, "b").state == "leased"
    assert in_line.step(saga, "b").ready_at == in_line.step(saga, "b").dispatched_at == in_line.now
    third = inline(in_line, second)
    assert third is not None
    assert third.results == {"a": "a", "b": "b"}
    assert inline(in_line, third) is None
    assert (in_line.locked, in_line.saga(saga).state) == (0, "completed")
    assert in_line.news() == [("book", "a", 1)]


def test_what_others_have_done_meanwhile_is_among_the_results(engine: Engine) -> None:
    branch = sequence(*steps("a"), *steps("b", inline=True))
    core = Counting(engine, Workflow("two", version=1, steps=parallel(branch, *steps("x"))))
    saga = core.start()
    first = core.take(saga, "a")
    core.done(saga, "x", result="meanwhile")
    second = inline(core, first)
    assert second is not None
    assert second.results == {"a": "a", "x": "meanwhile"}


@pytest.mark.proves("SAS-10", "INV-1")
def test_the_lease_of_an_inline_step_ends_no_later_than_its_row_says(in_line: Counting) -> None:
    saga = in_line.start()
    first = in_line.take(saga, "a")
    behind = timedelta(milliseconds=50)  # The answer took so long to come.
    assert behind <= PROMPT
    in_line.now += behind
    assert first.seen is not None
    late = _read_late(first, behind)
    second = inline(in_line, late)
    assert second is not None
    ends_at = in_line.now + second.time_left
    assert ends_at <= in_line.step(saga, "b").deadline_at


def _read_late(work: Work, behind: timedelta) -> Work:
    assert work.seen is not None
    read_at = work.seen.read_at + behind.total_seconds()
    return replace(work, seen=replace(work.seen, read_at=read_at))


def test_nothing_is_gone_on_with_in_a_saga_that_is_gone(in_line: Counting) -> None:
    saga = in_line.start()
    first = in_line.take(saga, "a")
    with in_line.store.transaction() as connection:
        for entity in (Attempt, Step, Saga):
            table: Any = entity.__table__
            column = table.c.id if entity is Saga else table.c.saga_id
            connection.execute(delete(table).where(column == saga))
    assert inline(in_line, first) is None


def test_a_lease_is_not_taken_while_another_event_has_turned_the_saga_back(
    in_line: Counting,
) -> None:
    saga = in_line.start()
    first = in_line.take(saga, "a")
    in_line.scheduler.cancel(saga, by="ada")
    assert inline(in_line, first) is None
    assert in_line.states(saga) == {"a": "dispatched", "b": "skipped", "c": "skipped"}


# --- starts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 40])
def test_a_start_whose_key_is_taken_writes_nothing(engine: Engine, count: int) -> None:
    core = Core(engine, line(*(f"s{number:02}" for number in range(count))))
    saga = core.start(key="one")
    before = everything(core)
    assert core.start(key="one") == saga
    with pytest.raises(StartConflictError):
        core.start({"other": 1}, key="one")
    assert everything(core) == before
    assert len(core.rows(Step)) == count


@pytest.mark.parametrize("count", [2, 40])
def test_a_start_finds_its_definition_again_after_the_database_was_put_back(
    engine: Engine, count: int
) -> None:
    core = Core(engine, line(*(f"s{number:02}" for number in range(count))))
    with core.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM definitions")
    saga = core.start()
    assert len(core.rows(Step, saga_id=saga)) == count
