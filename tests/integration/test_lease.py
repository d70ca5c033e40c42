"""The lease: who gets it, what is refused by name, and what is written while it is held."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from models import Attempt, JournalEntry
from models.states import Direction, Operation, SagaState
from orchestration.errors import LeaseLostError
from orchestration.events import Done, Failed, FailureKind
from orchestration.messages import ANSWER_TIMEOUT
from orchestration.roster import release_of
from orchestration.signals import Absent, Answer, Applied, Conflict
from orchestration.snapshot import idempotency_key
from tests.support.core import BOOK, Core, counted_commits, line

MINUTE = timedelta(minutes=1)


@pytest.fixture
def core(engine: Engine) -> Core:
    return Core(engine)


# --- the grant -----------------------------------------------------------------------------------


@pytest.mark.proves("SAS-05", "SAS-06", "COL-02", "COL-03", "W-2", "INV-7", "D-16")
def test_a_grant_opens_the_attempt_with_a_time_by_which_it_is_over(core: Core) -> None:
    saga = core.start({"nights": 2})
    with counted_commits(core.engine) as commits:
        work = core.take(saga, "a")
    assert len(commits) == 1
    row = core.step(saga, "a")
    assert (row.state, row.attempt, row.node_id) == ("leased", 1, core.node.id)
    assert row.granted_at == core.now
    assert row.deadline_at == row.wake_at == core.now + timedelta(minutes=5)
    assert core.attempts(saga, "a") == [(1, "open")]
    assert work.time_left == timedelta(minutes=5)
    assert work.input == {"nights": 2}


@pytest.mark.proves("SAS-09", "IC-07")
def test_the_work_holds_the_key_and_the_results_that_are_there(core: Core) -> None:
    saga = core.start()
    core.done(saga, "a", result={"seat": "1A"})
    work = core.take(saga, "b")
    assert work.results == {"a": {"seat": "1A"}}
    assert work.key == idempotency_key(saga, "b", Direction.FORWARD, 0)


@pytest.mark.proves("D-03", "D-05", "O-1", "IC-03")
def test_a_message_that_comes_twice_is_refused_by_name_and_journaled(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    before = core.step(saga, "a")
    assert core.grant(saga, "a", 1) is None
    assert core.step(saga, "a") == before
    assert core.refusals(saga) == ["duplicate_delivery"]
    (entry,) = core.rows(JournalEntry, saga_id=saga, verb="refuse")
    assert (entry.path, entry.attempt, entry.actor) == ("a", 1, "worker")


@pytest.mark.proves("D-05", "D-09")
def test_a_message_of_an_earlier_attempt_is_refused(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.leases.answer(saga, "a", 1, Absent())
    core.later(minutes=1).supervisor.sweep()
    core.take(saga, "a")
    assert core.grant(saga, "a", 1) is None
    core.done(saga, "b") if core.step(saga, "b").state == "dispatched" else None
    assert core.refusals(saga) == ["duplicate_delivery"]


@pytest.mark.parametrize("state", ["waiting", "retrying", "unknown", "succeeded"])
def test_a_step_that_is_not_dispatched_is_not_granted(core: Core, state: str) -> None:
    saga = core.start()
    path, number = ("b", 1) if state == "waiting" else ("a", 2)
    if state != "waiting":
        work = core.take(saga, "a")
        failed = Failed(kind=FailureKind.LATER, type="Busy", message="later")
        if state == "unknown":
            core.scheduler.lost(saga, "a", 1, "killed")
        else:
            core.report(work, failed if state == "retrying" else Done())
    assert core.step(saga, path).state == state
    assert core.grant(saga, path, number) is None
    assert core.refusals(saga) == ["not_dispatched"]
    assert core.step(saga, path).state == state


def test_a_message_without_a_row_is_dropped(core: Core) -> None:
    assert core.grant(uuid4(), "a", 1) is None
    assert core.grant(core.start(), "nothing", 1) is None


@pytest.mark.proves("D-22", "GM-08")
def test_a_worker_leaves_a_step_of_a_definition_that_it_does_not_know(core: Core) -> None:
    saga = core.start()
    before = core.step(saga, "a")
    assert core.leases.grant(saga, "a", 1, core.node, {"another definition"}) is None
    after = core.step(saga, "a")
    assert (after.state, after.attempt) == (before.state, before.attempt)
    assert core.refusals(saga) == ["unknown_definition"]
    core.take(saga, "a")


@pytest.mark.proves("D-22", "GM-08")
def test_what_one_release_does_not_know_is_passed_on_to_one_that_does(core: Core) -> None:
    saga = core.start()
    core.sent.clear()
    before = core.step(saga, "a")
    other, _ = core.roster.register("other", 2, ["book"], ["another definition"])
    assert core.leases.grant(saga, "a", 1, other, {"another definition"}) is None
    (message,) = core.sent
    assert (message.name, message.path, message.number) == ("book", "a", 1)
    assert message.queue == release_of(["book"], core.known)
    assert message.queue != release_of(["book"], ["another definition"])
    assert core.step(saga, "a") == before
    core.take(saga, "a")


@pytest.mark.proves("D-22")
def test_a_compensation_is_passed_on_to_the_queue_of_recovery(core: Core) -> None:
    saga = core.start()
    core.done(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    core.sent.clear()
    assert core.leases.grant(saga, "a", 2, core.node, set()) is None
    (message,) = core.sent
    release = release_of(["book"], core.known)
    assert (message.name, message.queue) == ("book.compensation", f"{release}.recovery")


@pytest.mark.proves("D-22")
@pytest.mark.parametrize("message", ["late", "of a release that has ended"])
def test_only_what_somebody_can_still_act_on_is_passed_on(core: Core, message: str) -> None:
    saga = core.start()
    if message == "late":
        core.take(saga, "a")
    else:
        core.roster.end(core.node.id)
    core.sent.clear()
    assert core.leases.grant(saga, "a", 1, core.node, set()) is None
    assert core.sent == []


@pytest.mark.proves("D-22")
def test_a_message_for_an_agent_that_is_not_there_is_passed_on(core: Core) -> None:
    saga = core.start()
    core.sent.clear()
    release = release_of(["book"], core.known)
    core.leases.turn_away(saga, "a", 1, Operation.ACTION, core.node)
    core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.leases.turn_away(saga, "a", 1, Operation.CLOSE, core.node)
    core.leases.turn_away(saga, "a", 2, Operation.PROBE, core.node)
    core.leases.turn_away(saga, "a", 1, Operation.PROBE, core.node)
    passed_on = [(m.name, m.queue) for m in core.sent if m.queue.startswith(release)]
    assert passed_on == [("book", release), ("book.probe", f"{release}.recovery")]


@pytest.mark.proves("K-4", "row 13", "INV-1")
def test_a_message_that_comes_when_its_key_may_be_forgotten_opens_no_attempt(
    engine: Engine,
) -> None:
    forgetful = replace(BOOK, probe=False, key_retention=60 * MINUTE)
    core = Core(engine, contracts=(forgetful,))
    saga = core.start()
    core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.now = core.step(saga, "a").wake_at
    core.scheduler.wake(saga, "a")
    core.later(hours=1)
    assert core.grant(saga, "a", 2) is None
    assert core.refusals(saga) == ["key_may_be_forgotten"]
    core.supervisor.sweep()
    assert core.decided(saga, "a") == ["12", "13"]
    assert core.step(saga, "a").inquiry == "close"


@pytest.mark.proves("W-3", "INV-5")
def test_the_message_of_an_action_does_not_open_the_attempt_of_its_compensation(
    engine: Engine,
) -> None:
    from orchestration.contract import AgentContract

    barrier = AgentContract(
        name="book", queue="book", idempotent=True, compensation=True, compensation_closes_key=True
    )
    core = Core(engine, line("a"), contracts=[barrier])
    saga = core.start()
    core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.later(minutes=1).supervisor.sweep()
    name, _, number = core.news()[-1]
    assert name == "book"
    core.scheduler.cancel(saga, by="ada")
    assert core.news()[-1][0] == "book.compensation"
    assert core.grant(saga, "a", number) is None
    assert core.refusals(saga) == ["duplicate_delivery"]
    assert core.take(saga, "a").direction is Direction.BACKWARD


# --- heartbeats ----------------------------------------------------------------------------------


def test_a_heartbeat_moves_the_time_of_the_next_look_but_not_the_deadline(engine: Engine) -> None:
    core = Core(engine, line("a", timeout=10 * MINUTE, heartbeat_timeout=MINUTE))
    saga = core.start()
    work = core.take(saga, "a")
    assert core.step(saga, "a").wake_at == core.now + MINUTE
    core.later(seconds=50)
    core.leases.renew(work, {"rooms": 3})
    assert core.step(saga, "a").wake_at == core.now + MINUTE
    core.later(minutes=9)
    core.leases.renew(work, None)
    row = core.step(saga, "a")
    assert row.wake_at == row.deadline_at == core.now + timedelta(seconds=10)


def test_a_heartbeat_keeps_what_the_agent_says(core: Core) -> None:
    saga = core.start()
    core.leases.renew(core.take(saga, "a"), {"rooms": 3})
    (row,) = core.rows(Attempt, saga_id=saga)
    assert (row.details, row.heartbeat_at) == ({"rooms": 3}, core.now)


@pytest.mark.proves("SAS-10", "W-3")
def test_a_heartbeat_without_the_lease_is_refused_and_changes_nothing(core: Core) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    before = core.step(saga, "a")
    with pytest.raises(LeaseLostError, match="attempt 1 of step 'a' no longer holds its lease"):
        core.leases.renew(work, "still here")
    assert core.step(saga, "a") == before
    assert core.rows(Attempt, saga_id=saga)[0].details is None


@pytest.mark.proves("SAS-10", "W-3")
def test_a_heartbeat_of_an_earlier_attempt_does_not_keep_the_present_one_alive(
    engine: Engine,
) -> None:
    core = Core(engine, line("a", timeout=10 * MINUTE, heartbeat_timeout=MINUTE))
    saga = core.start()
    lost = core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.leases.answer(saga, "a", 1, Absent())
    core.now = core.step(saga, "a").wake_at
    core.scheduler.wake(saga, "a")
    core.take(saga, "a")
    before = core.step(saga, "a")
    core.later(seconds=50)
    with pytest.raises(LeaseLostError):
        core.leases.renew(lost, "still here")
    assert core.step(saga, "a") == before


# --- reports -------------------------------------------------------------------------------------


@pytest.mark.proves("SAS-10", "W-4", "INV-5", "D-12")
def test_a_report_without_the_lease_changes_no_state_and_is_kept(core: Core) -> None:
    saga = core.start()
    first = core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.leases.answer(saga, "a", 1, Absent())
    core.later(minutes=1).supervisor.sweep()
    core.take(saga, "a")
    before = core.step(saga, "a")
    core.report(first, Done(result="room 7"))
    assert core.step(saga, "a") == before
    assert core.refusals(saga) == ["stale_attempt"]
    late = [row.late for row in core.rows(Attempt, saga_id=saga, no=1)]
    assert late == [
        {
            "name": "stale_attempt", "direction": "forward", "state": "leased",
            "outcome": "succeeded", "result": "room 7", "at": core.now.isoformat(),
        }
    ]  # fmt: skip
    assert core.attempts(saga, "a") == [(1, "expired"), (2, "open")]


@pytest.mark.proves("D-09", "INV-5")
def test_a_report_that_is_repeated_is_refused(core: Core) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.report(work)
    before = core.states(saga)
    core.report(work)
    assert core.states(saga) == before
    assert core.refusals(saga) == ["lease_lost"]


@pytest.mark.proves("row 3", "W-4")
def test_a_late_success_settles_a_step_that_is_still_open(core: Core) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "silent")
    core.report(work, Done(result="room 7"))
    assert core.states(saga) == {"a": "succeeded", "b": "dispatched"}
    assert core.step(saga, "a").result == "room 7"
    assert core.decided(saga, "a")[-1] == "3"


@pytest.mark.proves("row 24", "D-20", "INV-14")
def test_a_success_after_the_end_is_undone_in_a_row_of_its_own(engine: Engine) -> None:
    core = Core(engine, line("a"))
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    failed = Failed(kind=FailureKind.LATER, type="Busy", message="no")
    core.report(work, failed)
    ended = core.saga(saga)
    assert ended.state == SagaState.CANCELLED
    core.report(work, Done(result="room 7"))
    assert core.saga(saga) == ended
    assert core.news()[-1] == ("book.compensation", "a~late", 1)
    undo = core.take(saga, "a~late")
    assert (undo.own_result, undo.action_key) == ("room 7", work.key)
    core.report(undo)
    assert core.saga(saga) == ended
    assert core.states(saga) == {"a": "failed", "a~late": "compensated"}
    assert core.incidents(saga) == ["late_effect"]


# --- questions -----------------------------------------------------------------------------------


def asked(core: Core) -> Any:
    saga = core.start({"nights": 2})
    core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    return saga


@pytest.mark.proves("SUP-03")
def test_a_question_is_about_the_key_of_the_action(core: Core) -> None:
    saga = asked(core)
    assert core.news()[-1] == ("book.probe", "a", 1)
    work = core.leases.inquiry(saga, "a", 1, Operation.PROBE)
    assert work is not None
    assert work.action_key == idempotency_key(saga, "a", Direction.FORWARD, 0)
    assert (work.time_left, work.input) == (ANSWER_TIMEOUT, {"nights": 2})


def test_a_question_that_nobody_asks_any_more_is_dropped(core: Core) -> None:
    saga = asked(core)
    assert core.leases.inquiry(saga, "a", 2, Operation.PROBE) is None
    assert core.leases.inquiry(saga, "a", 1, Operation.CLOSE) is None
    assert core.leases.inquiry(saga, "b", 0, Operation.PROBE) is None
    assert core.leases.inquiry(uuid4(), "a", 1, Operation.PROBE) is None
    core.leases.answer(saga, "a", 1, Applied("room 7"))
    assert core.leases.inquiry(saga, "a", 1, Operation.PROBE) is None


@pytest.mark.proves("D-05", "D-14", "W-4")
@pytest.mark.parametrize(
    ("later", "told"),
    [
        (Conflict("other"), {"answer": "conflict", "reason": "other"}),
        (Absent(), {"answer": "absent"}),
    ],
    ids=["conflict", "absent"],
)
def test_an_answer_that_comes_too_late_changes_nothing_and_is_kept(
    core: Core, later: Answer, told: dict[str, Any]
) -> None:
    saga = asked(core)
    core.leases.answer(saga, "a", 1, Applied("room 7"))
    before = core.states(saga)
    core.leases.answer(saga, "a", 1, later)
    assert core.states(saga) == before
    (entry,) = core.rows(JournalEntry, saga_id=saga, verb="refuse")
    assert (entry.reason, entry.details) == ("stale_answer", told)


def test_a_lease_ends_with_the_time_that_all_attempts_have_together(engine: Engine) -> None:
    minute = timedelta(minutes=1)
    workflow = line("a", timeout=5 * minute, schedule_to_close=6 * minute)
    core = Core(engine, workflow)
    saga = core.start()
    core.now += 2 * minute
    work = core.take(saga, "a")
    assert work.time_left == 4 * minute
    assert core.step(saga, "a").deadline_at == core.now + 4 * minute
