"""What arrives too late is refused, kept, and undone where it left an effect."""

from datetime import timedelta
from typing import Any

import pytest

from models.states import Direction, StepState
from orchestration.definition import RetryPolicy, Step
from orchestration.events import Done, Failed, FailureKind, Refuse, Reported
from orchestration.late import WATCH_FOR
from orchestration.signals import Absent, Applied, Closed, Conflict, Unclear
from tests.support.folding import Folded, contract, drain, line

PROBED = contract("book", probe=True)
BOUNDED = contract("book", probe=True, request_lifetime=timedelta(seconds=1))
DONE = Done(result="room 7")


def one(given: Any = PROBED, **policy: Any) -> Folded:
    return Folded(line(Step("hotel", agent="book", retry=RetryPolicy(**policy))), given)


def late(run: Folded, outcome: Any = DONE, attempt: int = 1, **changes: Any) -> Folded:
    """The first attempt's forward report comes in now."""
    known: dict[str, Any] = {"direction": Direction.FORWARD, "incarnation": 0} | changes
    run.event(Reported(path="hotel", attempt=attempt, outcome=outcome, **known))
    return run


@pytest.mark.proves("row 3", "W-4")
@pytest.mark.parametrize("state", ["unknown", "retrying", "dispatched", "halted"])
def test_a_late_success_proves_the_effect_of_a_step_that_is_still_open(state: str) -> None:
    run = one().overdue("hotel")
    if state == "halted":
        run.answer("hotel", Conflict("?"))
    if state in {"retrying", "dispatched"}:
        run.answer("hotel", Absent())
    if state == "dispatched":
        run.wake("hotel")
    assert run.step("hotel").state == state
    late(run)
    assert run.step("hotel").state is StepState.SUCCEEDED
    assert run.results["hotel"] == "room 7"
    assert run.rows("hotel")[-1] == "3"
    assert (run.state, run.open) == ("completed", {})


@pytest.mark.proves("W-4", "INV-5", "D-12")
def test_a_late_report_changes_no_state_and_is_kept_as_evidence() -> None:
    run = one().lose("hotel").answer("hotel", Absent()).wake("hotel")
    run.take("hotel")
    before = run.saga
    late(run)
    assert run.saga == before
    assert run.refused == [
        Refuse(
            path="hotel",
            attempt=1,
            name="stale_attempt",
            evidence={
                "direction": "forward", "state": "leased", "outcome": "succeeded",
                "result": "room 7",
            },
            to_attempt=True,
        )
    ]  # fmt: skip


def test_a_late_failure_settles_nothing() -> None:
    run = one().lose("hotel")
    failure = Failed(kind=FailureKind.PERMANENT, type="SoldOut", message="no")
    late(run, failure)
    assert run.step("hotel").state is StepState.UNKNOWN
    assert run.refused[0].name == "lease_lost"
    assert run.refused[0].evidence["error"] == {"type": "SoldOut", "message": "no"}


@pytest.mark.proves("D-09")
def test_a_report_that_is_repeated_changes_nothing() -> None:
    run = Folded(line(Step("hotel", agent="book"), Step("b", agent="book")), PROBED)
    run.done("hotel", result="room 7")
    before = run.saga
    late(run)
    assert run.saga == before
    assert run.open == {}


def test_a_report_that_is_repeated_while_its_effect_is_undone_is_no_late_effect() -> None:
    """Also under a later key: what is being undone is just what is reported."""
    closable = contract("book", idempotent=False, probe=True, close=True)
    run = Folded(line(Step("hotel", agent="book"), Step("b", agent="book")), closable)
    run.lose("hotel").answer("hotel", Absent()).answer("hotel", Closed()).wake("hotel")
    run.done("hotel", result="room 7").fail("b")
    late(run, attempt=2, incarnation=1)
    assert list(run.saga.steps) == ["hotel", "b"]
    assert run.open == {}


@pytest.mark.proves("row 24", "D-20", "INV-14", "INV-3")
@pytest.mark.parametrize("state", ["compensated", "failed", "skipped"])
def test_a_success_that_is_reported_after_the_end_is_undone_and_not_revived(state: str) -> None:
    run = ended(state)
    before = run.state, run.step("hotel")
    late(run)
    assert (run.state, run.step("hotel")) == before
    assert run.news() == [("compensation", "hotel~late")]
    assert run.results["hotel~late"] == "room 7"
    assert run.kinds("hotel~late") == {"late_effect"}
    run.done("hotel~late")
    assert run.step("hotel~late").state is StepState.COMPENSATED
    assert (run.state, run.step("hotel")) == before


def ended(state: str) -> Folded:
    """A saga that has turned back, with its step in a given end."""
    if state == "failed":
        run = one(BOUNDED, max_attempts=1).lose("hotel").answer("hotel", Absent())
        run.wake("hotel").answer("hotel", Absent())
        run.event(Reported(
            path="hotel", attempt=9, direction=Direction.FORWARD, incarnation=0,
            outcome=Failed(kind=FailureKind.ERROR, type="X", message="y"),
        ))  # fmt: skip
    elif state == "skipped":
        run = one().cancel()
    else:
        run = Folded(line(Step("hotel", agent="book"), Step("b", agent="book")), PROBED)
        run.done("hotel").fail("b").done("hotel")
    assert run.step("hotel").state == state
    return run


def test_a_success_after_an_undo_that_closed_the_key_is_no_effect() -> None:
    barrier = contract("book", probe=True, compensation_closes_key=True)
    run = Folded(line(Step("hotel", agent="book"), Step("b", agent="book")), barrier)
    run.done("hotel").fail("b").done("hotel")
    late(run)
    assert "hotel~late" not in run.saga.steps


@pytest.mark.proves("row 24")
def test_an_effect_under_a_key_that_was_given_up_is_undone_while_the_saga_goes_on() -> None:
    closable = contract("book", idempotent=False, probe=True, close=True)
    run = one(closable).lose("hotel").answer("hotel", Absent()).answer("hotel", Closed())
    late(run)
    assert ("compensation", "hotel~late") in run.news()
    assert run.step("hotel~late").incarnation == 0
    assert run.state == "running"
    run.wake("hotel")
    drain(run)
    assert run.state == "completed"


@pytest.mark.proves("row 24")
def test_a_late_success_of_what_was_passed_over_is_undone_once_the_saga_has_turned_back() -> None:
    careless = contract("book", idempotent=False, at_most_once=True)
    run = Folded(line(Step("hotel", agent="book"), Step("b", agent="book")), careless)
    run.lose("hotel")
    assert late(run).open == {}
    run.fail("b")
    assert late(run).news() == [("compensation", "hotel~late")]


def test_a_late_effect_that_cannot_be_undone_is_an_alarm() -> None:
    pay = contract("book", compensation=False)
    run = Folded(line(Step("hotel", agent="book", pivot=True)), pay)
    run.take("hotel")
    run.fail("hotel")
    assert run.state == "compensated"
    late(run)
    assert run.kinds("hotel~late") == {"late_effect"}
    assert "hotel~late" not in run.saga.steps


# --- looking out ---------------------------------------------------------------------------------


def watched(given: Any = BOUNDED) -> Folded:
    run = one(given, max_attempts=1).lose("hotel").answer("hotel", Absent())
    run.wake("hotel").answer("hotel", Absent())
    assert run.state == "compensated"
    return run


@pytest.mark.proves("row 17", "row 24", "D-13")
def test_a_step_that_was_given_up_on_absence_is_looked_out_for_until_its_key_is_forgotten() -> None:
    run = watched()
    began = run.now
    looks = 0
    while run.step("hotel~late").state is StepState.UNKNOWN:
        if run.step("hotel~late").inquiry:
            looks += 1
            run.answer("hotel~late", Absent())
        else:
            run.wake("hotel~late")
    assert run.step("hotel~late").state is StepState.SKIPPED
    assert WATCH_FOR - timedelta(minutes=5) <= run.now - began <= WATCH_FOR + timedelta(hours=2)
    assert 10 <= looks <= 40
    assert run.open == {}


@pytest.mark.proves("row 24", "D-20", "INV-14")
def test_an_effect_that_is_seen_afterwards_is_undone_and_not_revived() -> None:
    run = watched().wake("hotel~late")
    assert run.news() == [("probe", "hotel~late")]
    run.answer("hotel~late", Applied("room 7"))
    assert run.news() == [("compensation", "hotel~late")]
    assert run.kinds("hotel~late") == {"late_effect"}
    assert run.results["hotel~late"] == "room 7"
    run.done("hotel~late")
    assert run.state == "compensated"
    assert run.step("hotel").state is StepState.FAILED


@pytest.mark.parametrize("reported", [False, True])
def test_what_is_seen_afterwards_and_cannot_be_undone_waits_for_a_person(reported: bool) -> None:
    final = contract("book", probe=True, request_lifetime=timedelta(seconds=1), compensation=False)
    plan = line(Step("hotel", agent="book", pivot=True, retry=RetryPolicy(max_attempts=1)))
    run = Folded(plan, final).lose("hotel").answer("hotel", Absent())
    run.wake("hotel").answer("hotel", Absent())
    run.news()
    if reported:
        late(run)
    else:
        run.wake("hotel~late").answer("hotel~late", Applied("room 7"))
    assert ("compensation", "hotel~late") not in run.news()
    assert run.step("hotel~late").state is StepState.HALTED
    assert run.kinds("hotel~late") == {"late_effect"}
    assert run.state == "compensated"


def test_a_late_report_undoes_at_once_what_is_looked_out_for() -> None:
    run = late(watched())
    assert run.news() == [("compensation", "hotel~late")]


def test_a_second_late_report_undoes_nothing_twice() -> None:
    run = late(late(watched()))
    assert [send.path for send in run.sent].count("hotel~late") == 1


@pytest.mark.parametrize("answer", [Unclear("503"), Conflict("?"), Closed()])
def test_looking_out_goes_on_whatever_else_is_answered(answer: Any) -> None:
    run = watched().wake("hotel~late").answer("hotel~late", answer)
    assert run.step("hotel~late").state is StepState.UNKNOWN
    assert run.step("hotel~late").wake_at is not None


def test_looking_out_goes_on_when_nobody_answers() -> None:
    run = watched().wake("hotel~late")
    assert run.wake("hotel~late").news() == []
    assert run.wake("hotel~late").news() == [("probe", "hotel~late")]


@pytest.mark.proves("row 23")
def test_the_undo_of_a_late_effect_is_never_given_up() -> None:
    run = late(watched())
    for _ in range(10):
        run.fail("hotel~late", FailureKind.ERROR)
        run.wake("hotel~late")
    assert "compensation_stuck" in run.kinds("hotel~late")
    assert run.done("hotel~late").step("hotel~late").state is StepState.COMPENSATED


def test_a_row_that_looks_out_does_not_keep_its_saga_from_ending() -> None:
    plan = line(
        Step("a", agent="book"),
        Step("hotel", agent="book", retry=RetryPolicy(max_attempts=1)),
    )
    run = Folded(plan, BOUNDED).done("a").lose("hotel").answer("hotel", Absent())
    run.wake("hotel").answer("hotel", Absent())
    assert run.state == "compensating"
    assert run.done("a").state == "compensated"
    assert run.step("hotel~late").state is StepState.UNKNOWN
