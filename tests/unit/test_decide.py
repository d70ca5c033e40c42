"""What follows from what: starts, ends, turning back, retries and time-outs, on a folded saga."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from models.states import AttemptState, Direction, StepState
from orchestration.decide import decide
from orchestration.definition import RetryOverride, RetryPolicy, Step, Workflow, parallel, sequence
from orchestration.draft import REDELIVERY, REDELIVERY_CEILING
from orchestration.errors import RefusedError
from orchestration.events import (
    Answered,
    Crashed,
    FailureKind,
    Lost,
    MoveStep,
    Nudged,
    Reported,
    Send,
    Started,
    Woken,
)
from orchestration.events import Done as Returned
from orchestration.recovery import CRASH_LIMIT, UNCLEAR_LIMIT
from orchestration.signals import Absent, Applied, Closed, Conflict, Pending, Rejected, Unclear
from tests.support.folding import NOW, Folded, contract, drain, line

BOOK = contract("book")
PROBED = contract("book", probe=True)
BARRIER = contract("book", probe=True, compensation_closes_key=True)
CLOSABLE = contract("book", idempotent=False, probe=True, close=True)
PAY = contract("pay", compensation=False, probe=True)
MAIL = contract("mail", compensation=False)
NO_JITTER = RetryPolicy(jitter="none")
SECOND = timedelta(seconds=1)
PERMANENT, LATER = FailureKind.PERMANENT, FailureKind.LATER
ERROR, UNKNOWN = FailureKind.ERROR, FailureKind.UNKNOWN
INVALID = FailureKind.INVALID_RESULT


def book(name: str, **properties: Any) -> Step:
    return Step(name, agent="book", **({"retry": NO_JITTER} | properties))


def trip(*contracts: Any, **properties: Any) -> Folded:
    """Flight and hotel at once, the car, the payment that is the pivot, the receipt."""
    plan = line(
        parallel(book("flight"), book("hotel")),
        book("car"),
        Step("payment", agent="pay", pivot=True, retry=NO_JITTER),
        Step("receipt", agent="mail", retry=NO_JITTER),
        **({"deadline": timedelta(hours=1)} | properties),
    )
    return Folded(plan, *(contracts or (PROBED, PAY, MAIL)))


def one(given: Any = BOOK, **properties: Any) -> Folded:
    return Folded(line(book("hotel", **properties)), given)


# --- forward -------------------------------------------------------------------------------------


@pytest.mark.proves("SAS-01", "SAS-03")
def test_a_start_dispatches_the_first_step_and_leaves_the_others_waiting() -> None:
    run = Folded(line(book("a"), book("b"), book("c")), BOOK)
    assert run.states() == {"a": "dispatched", "b": "waiting", "c": "waiting"}
    assert run.news() == [("action", "a")]


@pytest.mark.proves("SAS-01", "SAS-07")
def test_a_step_starts_when_its_predecessor_is_recorded_complete_and_not_before() -> None:
    run = Folded(line(book("a"), book("b")), BOOK)
    run.take("a")
    assert run.step("b").state is StepState.WAITING
    run.done("a", result={"seat": "1A"})
    assert run.news() == [("action", "b")]
    assert run.results == {"a": {"seat": "1A"}}
    assert run.done("b").state == "completed"


@pytest.mark.proves("SAS-04")
def test_what_is_sent_was_first_written() -> None:
    run = Folded(line(book("a"), book("b")), BOOK, start=False)
    kinds = [type(decision) for decision in run.event(Started())]
    assert kinds.index(MoveStep) < kinds.index(Send)


def test_branches_start_together_and_are_waited_for_together() -> None:
    run = trip()
    assert run.news() == [("action", "flight"), ("action", "hotel")]
    run.done("hotel")
    assert run.news() == []
    run.done("flight")
    assert run.news() == [("action", "car")]
    assert drain(run) == ["car", "payment", "receipt"]
    assert run.state == "completed"


def test_a_branch_of_several_steps_goes_on_by_itself() -> None:
    plan = line(parallel(sequence(book("a"), book("b")), book("c")), book("d"))
    run = Folded(plan, BOOK).done("a")
    assert run.states() == {
        "a": "succeeded", "b": "dispatched", "c": "dispatched", "d": "waiting"
    }  # fmt: skip


@pytest.mark.proves("REC-01", "REC-02")
def test_deriving_again_what_should_be_under_way_changes_nothing_in_a_healthy_saga() -> None:
    run = trip().done("flight", "hotel")
    assert run.event(Nudged()) == []


@pytest.mark.proves("SAS-02", "SUP-04")
def test_a_workflow_of_another_shape_needs_nothing_else() -> None:
    plan = Workflow("other", version=7, steps=parallel(book("x"), sequence(book("y"), book("z"))))
    assert drain(Folded(plan, BOOK)) == ["x", "y", "z"]


@pytest.mark.proves("SAS-05", "INV-6")
def test_a_running_step_always_has_a_time_by_which_it_is_looked_at() -> None:
    run = one(timeout=timedelta(seconds=40), heartbeat_timeout=timedelta(seconds=5))
    assert run.step("hotel").wake_at == NOW + REDELIVERY
    run.take("hotel")
    assert run.step("hotel").deadline_at == NOW + timedelta(seconds=40)
    assert run.step("hotel").wake_at == NOW + timedelta(seconds=5)


# --- turning back --------------------------------------------------------------------------------


@pytest.mark.proves("REC-03", "CT-03", "GM-01")
def test_a_failure_undoes_what_was_done_in_reverse_order() -> None:
    run = Folded(line(book("a"), book("b"), book("c")), BOOK)
    run.done("a", "b").fail("c")
    assert run.state == "compensating"
    assert run.news() == [("compensation", "b")]
    run.done("b")
    assert run.news() == [("compensation", "a")]
    run.done("a")
    assert run.state == "compensated"
    assert run.states() == {"a": "compensated", "b": "compensated", "c": "failed"}
    assert run.saga.abort == {"reason": "failed", "step": "c", "message": "no"}


@pytest.mark.proves("GM-12", "INV-4", "CT-03")
def test_branches_are_undone_at_once_and_before_what_preceded_their_fork() -> None:
    plan = line(book("a"), parallel(sequence(book("b"), book("c")), book("d")), book("e"))
    run = Folded(plan, BOOK).done("a", "b", "c", "d").fail("e")
    assert sorted(run.news()) == [("compensation", "c"), ("compensation", "d")]
    run.done("d")
    assert run.news() == []
    run.done("c")
    assert run.news() == [("compensation", "b")]
    run.done("b")
    assert run.news() == [("compensation", "a")]
    assert run.done("a").state == "compensated"


@pytest.mark.proves("D-28", "GM-13")
def test_siblings_in_flight_are_settled_before_what_preceded_the_fork_is_undone() -> None:
    run = Folded(line(book("a"), parallel(book("b"), book("c"), book("d"))), PROBED).done("a")
    run.take("b")
    run.lose("c")
    run.fail("d")
    assert run.step("b").state is StepState.LEASED
    assert run.step("c").state is StepState.UNKNOWN
    assert run.step("a").state is StepState.SUCCEEDED
    run.done("b")
    assert run.news() == [("compensation", "b")]
    run.answer("c", Applied("seat"))
    assert run.news() == [("compensation", "c")]
    assert run.results["c"] == "seat"
    run.done("b")
    assert run.news() == []
    run.done("c")
    assert run.news() == [("compensation", "a")]


@pytest.mark.proves("D-28")
def test_a_sibling_that_was_not_taken_yet_is_skipped() -> None:
    run = Folded(line(parallel(book("a"), book("b"))), BOOK).fail("a")
    assert run.states() == {"a": "failed", "b": "skipped"}
    assert run.state == "compensated"


def test_a_sibling_that_waits_to_be_tried_again_is_skipped_if_nothing_was_sent() -> None:
    run = Folded(line(parallel(book("a"), book("b"))), BOOK)
    run.fail("b", LATER)
    assert run.step("b").state is StepState.RETRYING
    assert run.fail("a").states()["b"] == "skipped"


def test_a_sibling_that_waits_to_be_tried_again_in_doubt_is_asked_about() -> None:
    run = Folded(line(parallel(book("a"), book("b"))), PROBED)
    run.overdue("b").answer("b", Absent())
    assert run.step("b").state is StepState.RETRYING
    run.fail("a")
    assert run.news() == [("probe", "b")]


def test_a_query_has_nothing_to_undo() -> None:
    look = contract("look", effect=False, idempotent=False, compensation=False)
    run = Folded(line(Step("look", agent="look"), book("b")), look, BOOK).done("look").fail("b")
    assert run.state == "compensated"
    assert run.step("look").state is StepState.SUCCEEDED


def test_a_query_whose_process_is_lost_is_simply_asked_again() -> None:
    look = contract("look", effect=False, idempotent=False, compensation=False)
    run = Folded(line(Step("look", agent="look", retry=NO_JITTER)), look).lose("look")
    assert run.step("look").state is StepState.DISPATCHED
    assert run.step("look").doubt_at is None
    assert run.rows("look") == ["1"]


QUERY = contract("look", effect=False, idempotent=False, compensation=False)


@pytest.mark.proves("REC-01", "row 1", "row 12")
@pytest.mark.parametrize("kind", ["query", "repeated", "asked", "undone"])
def test_a_step_whose_process_is_gone_is_tried_again_at_once(kind: str) -> None:
    if kind == "query":
        run = Folded(line(Step("a", agent="look", retry=NO_JITTER)), QUERY)
    elif kind == "undone":
        run = turned_back(retry=NO_JITTER)
    else:
        known = PROBED if kind == "asked" else contract("book", probe=False)
        run = Folded(line(book("a", retry=NO_JITTER)), known)
    run.lose("a")
    if kind == "asked":
        run.answer("a", Absent())
    assert run.news() == [("compensation" if kind == "undone" else "action", "a")]
    assert run.step("a").state is StepState.DISPATCHED


@pytest.mark.proves("REC-01")
@pytest.mark.parametrize("kind", ["query", "repeated", "undone"])
def test_a_step_that_takes_its_process_down_again_waits_before_the_next_one(kind: str) -> None:
    patient = RetryPolicy(max_attempts=9, jitter="none")
    if kind == "query":
        run = Folded(line(Step("a", agent="look", retry=patient)), QUERY)
    elif kind == "undone":
        run = turned_back(retry=patient)
    else:
        run = Folded(line(book("a", retry=patient)), contract("book", probe=False))
    for seconds in (2, 4):
        run.lose("a")
        if run.step("a").state is StepState.DISPATCHED:
            run.lose("a")
        assert run.step("a").state is StepState.RETRYING
        assert run.step("a").wake_at == run.now + timedelta(seconds=seconds)
        run.wake("a")


def test_a_step_whose_remote_has_failed_before_waits_as_its_policy_says() -> None:
    run = Folded(line(book("a", retry=NO_JITTER)), BOOK)
    run.fail("a", UNKNOWN)
    run.wake("a").lose("a")
    assert run.step("a").state is StepState.RETRYING


@pytest.mark.proves("CT-05", "row 20")
def test_a_manual_step_is_undone_by_hand() -> None:
    manual = contract("hand", manual=True, compensation=False, idempotent=False)
    run = Folded(line(Step("hand", agent="hand"), book("b")), manual, BOOK).done("hand").fail("b")
    assert run.state == "halted"
    assert run.kinds("hand") == {"manual_compensation"}


@pytest.mark.proves("CT-02", "CT-07", "REC-04")
def test_the_result_that_an_undo_needs_is_kept_when_the_undo_succeeds() -> None:
    run = Folded(line(book("a"), book("b")), BOOK).done("a", result="room 7").fail("b")
    run.done("a", result="whatever the compensation returned")
    assert run.results["a"] == "room 7"


@pytest.mark.proves("CT-12", "KIND-05")
def test_a_failing_pivot_turns_the_saga_back() -> None:
    run = trip().done("flight", "hotel", "car").fail("payment")
    assert run.state == "compensating"
    assert run.news() == [("compensation", "car")]


@pytest.mark.proves("CT-12", "KIND-03", "row 22")
def test_after_the_pivot_a_failure_is_repeated_slowly_and_somebody_is_told() -> None:
    run = trip().done("flight", "hotel", "car", "payment").fail("receipt")
    assert run.state == "running"
    assert run.rows("receipt") == ["22"]
    assert run.kinds("receipt") == {"stuck"}
    run.wake("receipt").done("receipt")
    assert run.state == "completed"
    assert run.kinds("receipt") == set()


@pytest.mark.proves("row 6")
def test_after_the_pivot_a_definite_no_halts_the_saga() -> None:
    mail = contract("mail", compensation=False, probe=True)
    run = trip(PROBED, PAY, mail).done("flight", "hotel", "car", "payment").lose("receipt")
    run.answer("receipt", Rejected("no such address"))
    assert run.state == "halted"
    assert run.kinds("receipt") == {"rejected_after_pivot"}


# --- cancelling ----------------------------------------------------------------------------------


@pytest.mark.proves("CT-13")
def test_a_cancelled_saga_is_undone_and_says_so() -> None:
    run = trip().done("flight", "hotel").cancel()
    assert run.step("car").state is StepState.SKIPPED
    drain(run)
    assert run.state == "cancelled"
    assert run.saga.abort is not None
    assert run.saga.abort["message"] == "cancelled by ada: changed her mind"


def test_a_second_cancel_changes_nothing() -> None:
    run = trip().done("flight").cancel()
    before = run.saga
    assert run.cancel().last == []
    assert run.saga == before


def test_a_cancel_after_a_failure_changes_nothing() -> None:
    run = Folded(line(book("a"), book("b")), BOOK).done("a").fail("b").cancel()
    drain(run)
    assert run.state == "compensated"


@pytest.mark.proves("D-21")
@pytest.mark.parametrize("reached", ["leased", "unknown", "succeeded", "retrying in doubt"])
def test_a_cancel_is_refused_once_the_pivot_may_have_taken_effect(reached: str) -> None:
    run = trip().done("flight", "hotel", "car")
    if reached == "succeeded":
        run.done("payment")
    else:
        run.take("payment")
    if reached == "unknown":
        run.lose("payment")
    if reached == "retrying in doubt":
        run.overdue("payment").answer("payment", Absent())
        assert run.step("payment").state is StepState.RETRYING
    before = run.saga
    with pytest.raises(RefusedError, match="past its pivot 'payment'"):
        run.cancel()
    assert run.saga == before


@pytest.mark.proves("D-21")
@pytest.mark.parametrize("reached", ["waiting", "dispatched", "retrying"])
def test_a_cancel_wins_while_the_pivot_was_certainly_not_sent(reached: str) -> None:
    run = trip().done("flight", "hotel")
    if reached != "waiting":
        run.done("car")
    if reached == "retrying":
        run.fail("payment", LATER)
    run.cancel()
    drain(run)
    assert run.state == "cancelled"
    assert run.step("payment").state is StepState.SKIPPED


def test_a_cancel_after_the_end_is_refused() -> None:
    run = one().done("hotel")
    with pytest.raises(RefusedError, match="has ended"):
        run.cancel()


@pytest.mark.proves("D-21")
def test_a_cancel_that_overtakes_the_last_report_undoes_the_last_step() -> None:
    run = one()
    run.take("hotel")
    run.cancel().done("hotel")
    assert run.news() == [("compensation", "hotel")]
    assert run.done("hotel").state == "cancelled"


@pytest.mark.proves("D-21")
def test_a_cancel_that_overtakes_a_failure_to_be_retried_ends_the_step() -> None:
    run = one()
    run.take("hotel")
    run.cancel().fail("hotel", LATER)
    assert run.step("hotel").state is StepState.FAILED
    assert run.state == "cancelled"


def test_an_invalid_result_does_not_change_why_a_saga_turned_back() -> None:
    run = one()
    run.take("hotel")
    run.cancel().fail("hotel", INVALID)
    assert run.saga.abort is not None
    assert run.saga.abort["reason"] == "cancelled"
    assert run.done("hotel").state == "cancelled"


def test_a_cancel_ends_a_poisoned_step_that_was_never_sent() -> None:
    run = one()
    for _ in range(CRASH_LIMIT):
        run.crash("hotel")
    assert run.state == "halted"
    run.cancel()
    assert (run.state, run.step("hotel").state) == ("cancelled", "skipped")
    assert run.open == {}


# --- the deadline --------------------------------------------------------------------------------


def test_a_saga_past_its_deadline_is_undone() -> None:
    run = trip().done("flight", "hotel").deadline()
    assert run.saga.abort is not None
    assert run.saga.abort["reason"] == "deadline"
    drain(run)
    assert run.state == "compensated"


def test_a_deadline_that_has_not_passed_changes_nothing() -> None:
    from orchestration.events import DeadlinePassed

    assert trip().event(DeadlinePassed()) == []


@pytest.mark.proves("row 5")
def test_a_saga_past_its_deadline_and_its_pivot_goes_forward_and_somebody_is_told() -> None:
    run = trip().done("flight", "hotel", "car", "payment").deadline()
    assert run.state == "running"
    assert run.kinds() == {"overdue"}
    assert run.saga.wake_at is None
    assert run.done("receipt").state == "completed"
    assert run.kinds() == set()


def test_no_step_starts_after_the_deadline_though_nobody_has_looked_yet() -> None:
    run = trip()
    run.take("flight")
    run.take("hotel")
    run.later(hours=1).done("flight", "hotel")
    assert run.step("car").state is StepState.SKIPPED
    assert run.state == "compensating"


def test_a_pivot_that_was_never_sent_does_not_hold_a_late_saga() -> None:
    run = trip().done("flight", "hotel", "car").fail("payment", LATER).deadline()
    assert run.state == "compensating"
    assert run.step("payment").state is StepState.SKIPPED


@pytest.mark.proves("row 4")
def test_an_effect_that_is_learnt_of_after_the_deadline_is_undone() -> None:
    run = trip().lose("flight").done("hotel").deadline()
    run.answer("flight", Applied("1A"))
    assert run.rows("flight")[-1] == "4"
    assert ("compensation", "flight") in run.news()
    drain(run)
    assert run.state == "compensated"


def test_the_deadline_is_acted_on_once() -> None:
    run = trip().deadline()
    assert run.saga.wake_at is None


# --- failures that certainly had no effect -------------------------------------------------------


@pytest.mark.proves("CT-11", "RT-01")
def test_a_permanent_failure_is_not_tried_again() -> None:
    run = one().fail("hotel", PERMANENT)
    assert run.step("hotel").state is StepState.FAILED
    assert run.attempts == {("hotel", 1): AttemptState.FAILED}
    assert run.rows("hotel") == ["2"]


@pytest.mark.proves("D-15")
def test_a_failure_to_be_tried_later_does_not_count_as_one() -> None:
    run = one(retry=RetryPolicy(max_attempts=1, jitter="none"))
    for _ in range(5):
        run.fail("hotel", LATER)
        assert run.step("hotel").failure_count == 0
        run.wake("hotel")
    assert run.done("hotel").state == "completed"


def test_the_delay_that_the_remote_names_is_kept() -> None:
    run = one().fail("hotel", LATER, delay=timedelta(minutes=7))
    wake_at = run.step("hotel").wake_at
    assert wake_at is not None
    assert timedelta(minutes=7) <= wake_at - NOW <= timedelta(minutes=7, seconds=1)


def test_a_delay_beyond_the_end_of_the_step_ends_it_at_once() -> None:
    run = one(schedule_to_close=timedelta(minutes=10))
    run.fail("hotel", LATER, delay=timedelta(minutes=11))
    assert run.step("hotel").state is StepState.FAILED
    assert run.state == "compensated"


def test_an_error_that_is_named_as_non_retryable_is_permanent() -> None:
    policy = RetryPolicy(non_retryable_errors=("SoldOut",))
    assert one(retry=policy).fail("hotel", ERROR, "SoldOut").step("hotel").state == "failed"
    assert one(retry=policy).fail("hotel", ERROR, "Other").step("hotel").state == "retrying"


def test_an_outcome_that_is_not_known_is_never_permanent_whatever_its_name() -> None:
    policy = RetryPolicy(non_retryable_errors=("Lost",))
    run = one(PROBED, retry=policy).fail("hotel", UNKNOWN, "Lost")
    assert run.step("hotel").state is StepState.UNKNOWN
    assert run.attempts["hotel", 1] is AttemptState.UNKNOWN


def test_a_permanent_failure_does_not_settle_what_an_earlier_attempt_may_have_done() -> None:
    run = one(PROBED).lose("hotel").answer("hotel", Absent()).wake("hotel")
    run.fail("hotel", PERMANENT)
    assert run.step("hotel").state is StepState.UNKNOWN
    assert run.news() == [("probe", "hotel")]


# --- retries -------------------------------------------------------------------------------------


@pytest.mark.proves("SUP-07", "SUP-08", "CT-11", "RT-02")
def test_a_step_is_tried_as_often_as_its_policy_says_with_growing_delays() -> None:
    run = one(retry=RetryPolicy(max_attempts=3, jitter="none"))
    waits = []
    for _ in range(2):
        run.fail("hotel", ERROR, "Timeout")
        wake_at = run.step("hotel").wake_at
        assert wake_at is not None
        waits.append(wake_at - run.now)
        run.wake("hotel")
    assert waits == [SECOND, 2 * SECOND]
    run.fail("hotel", ERROR, "Timeout")
    assert run.rows("hotel") == ["12", "12", "12b"]


def test_an_override_changes_the_policy_for_its_error() -> None:
    override = RetryOverride(max_attempts=1, initial_interval=timedelta(minutes=1))
    policy = RetryPolicy(jitter="none", overrides={"Throttled": override})
    assert one(retry=policy).fail("hotel", ERROR, "Throttled").rows("hotel") == ["12b"]
    run = one(retry=policy).fail("hotel", ERROR, "Other")
    assert run.rows("hotel") == ["12"]
    assert run.step("hotel").wake_at == NOW + SECOND


def test_jitter_is_full_and_the_same_for_the_same_attempt() -> None:
    first, second = (one(retry=RetryPolicy()).fail("hotel", ERROR) for _ in range(2))
    wake_at = first.step("hotel").wake_at
    assert wake_at is not None
    assert NOW <= wake_at <= NOW + SECOND
    assert wake_at == second.step("hotel").wake_at


@pytest.mark.proves("SAS-09", "SUP-06")
def test_a_retry_keeps_the_incarnation_and_raises_the_attempt() -> None:
    run = one().lose("hotel").wake("hotel")
    run.take("hotel")
    assert (run.step("hotel").incarnation, run.step("hotel").attempt) == (0, 2)


@pytest.mark.proves("row 18")
def test_the_key_is_closed_at_once_when_what_is_not_idempotent_is_absent() -> None:
    run = one(CLOSABLE).lose("hotel").answer("hotel", Absent())
    assert run.news() == [("close", "hotel")]
    run.answer("hotel", Closed())
    assert (run.step("hotel").incarnation, run.step("hotel").doubt_at) == (1, None)
    assert run.wake("hotel").done("hotel").state == "completed"


def test_a_retry_that_the_end_of_the_step_would_overtake_is_not_waited_for() -> None:
    policy = RetryPolicy(initial_interval=timedelta(minutes=5), jitter="none")
    run = one(BARRIER, retry=policy, schedule_to_close=timedelta(minutes=6), timeout=SECOND)
    run.later(minutes=2).overdue("hotel").answer("hotel", Absent())
    assert run.news() == [("compensation", "hotel")]
    assert run.rows("hotel") == ["0", "15"]


@pytest.mark.parametrize("field", ["schedule_to_close", "total_timeout"])
def test_no_attempt_begins_after_the_time_of_its_step(field: str) -> None:
    limit = timedelta(minutes=10)
    if field == "total_timeout":
        run = one(BARRIER, retry=RetryPolicy(total_timeout=limit, max_attempts=99))
    else:
        run = one(BARRIER, schedule_to_close=limit)
    run.later(minutes=10).lose("hotel").answer("hotel", Absent())
    assert run.rows("hotel") == ["0", "15"]


def test_a_step_that_nobody_takes_ends_when_its_time_is_over() -> None:
    run = one(schedule_to_close=timedelta(minutes=10))
    while run.step("hotel").state is StepState.DISPATCHED:
        run.wake("hotel")
    assert timedelta(minutes=10) <= run.now - NOW <= timedelta(minutes=20)
    assert run.step("hotel").state is StepState.FAILED


@pytest.mark.proves("row 12b", "INV-11")
@pytest.mark.parametrize("given", [BOOK, PROBED], ids=["no probe", "probe"])
@pytest.mark.parametrize("end", ["cancel", "deadline", "spent"])
def test_a_step_that_can_only_be_repeated_is_repeated_until_it_is_known(
    given: Any, end: str
) -> None:
    run = one(given, retry=RetryPolicy(max_attempts=1 if end == "spent" else 3, jitter="none"))
    run.take("hotel")
    if end == "cancel":
        run.cancel()
    if end == "deadline":
        run.deadline()
    run.lose("hotel")
    for _ in range(10):
        step = run.step("hotel")
        if step.state is StepState.DISPATCHED:
            break
        if step.inquiry is not None:
            run.answer("hotel", Absent())
        else:
            run.wake("hotel")
    assert run.step("hotel").state is StepState.DISPATCHED
    assert run.kinds("hotel") == {"stuck"}
    run.done("hotel")
    drain(run)
    expected = {"cancel": "cancelled", "deadline": "compensated", "spent": "completed"}
    assert run.state == expected[end]
    assert run.open == {}


@pytest.mark.proves("row 13", "K-4")
def test_a_retry_is_not_sent_when_the_key_was_forgotten_while_it_waited() -> None:
    forgetful = contract("book", key_retention=timedelta(minutes=10))
    run = one(forgetful, retry=RetryPolicy(initial_interval=timedelta(minutes=20), jitter="none"))
    run.fail("hotel", UNKNOWN).wake("hotel")
    assert run.step("hotel").state is StepState.HALTED
    assert run.rows("hotel") == ["12", "13"]


@pytest.mark.proves("row 13", "K-4")
def test_the_age_of_a_key_counts_from_the_first_time_that_it_was_sent() -> None:
    forgetful = contract("book", key_retention=timedelta(minutes=15))
    policy = RetryPolicy(initial_interval=timedelta(minutes=6), jitter="none", max_attempts=5)
    run = one(forgetful, retry=policy)
    run.lose("hotel").wake("hotel")
    first_sent_at = run.step("hotel").doubt_at
    run.lose("hotel")
    assert run.step("hotel").doubt_at == first_sent_at
    run.wake("hotel")
    assert run.step("hotel").state is StepState.HALTED
    assert run.rows("hotel") == ["12", "12", "13"]


def test_what_is_repeated_slowly_waits_for_a_worker_as_long_as_it_takes() -> None:
    """A busy queue must not make it take number after number that no message has any more."""
    only_repeated = contract("book", probe=False)
    run = one(only_repeated, schedule_to_close=timedelta(minutes=6), schedule_to_start=SECOND)
    run.lose("hotel").later(minutes=6).wake("hotel")
    run.wake("hotel").wake("hotel")
    assert (run.rows("hotel")[-1], run.kinds("hotel")) == ("12b", {"stuck"})
    number = run.step("hotel").attempt
    for _ in range(5):
        run.wake("hotel", queued=True)
        assert (run.step("hotel").state, run.step("hotel").attempt) == ("dispatched", number)


# --- time-outs -----------------------------------------------------------------------------------


@pytest.mark.proves("SAS-10", "SAS-11", "SUP-02", "CT-06")
def test_a_lease_that_runs_out_leaves_the_step_in_doubt() -> None:
    run = one(PROBED)
    run.take("hotel")
    run.wake("hotel")
    assert run.attempts["hotel", 1] is AttemptState.EXPIRED
    assert run.step("hotel").state is StepState.UNKNOWN
    assert run.news() == [("probe", "hotel")]


@pytest.mark.proves("SUP-12")
@pytest.mark.parametrize("state", ["dispatched", "leased", "retrying", "unknown"])
def test_a_step_whose_time_has_not_come_is_not_touched(state: str) -> None:
    run = one(PROBED)
    if state != "dispatched":
        run.take("hotel")
    if state in {"retrying", "unknown"}:
        run.overdue("hotel")
    if state == "retrying":
        run.answer("hotel", Absent())
    assert run.step("hotel").state == state
    wake_at = run.step("hotel").wake_at
    assert wake_at is not None
    run.now = wake_at - timedelta(microseconds=1)
    assert run.event(Woken(path="hotel")) == []


def test_a_silent_agent_is_noticed_before_its_lease_runs_out() -> None:
    run = one(PROBED, heartbeat_timeout=timedelta(seconds=5))
    run.take("hotel")
    run.wake("hotel")
    assert run.now == NOW + timedelta(seconds=5)
    assert "heartbeat" in run.journal[-1].why
    assert run.step("hotel").state is StepState.UNKNOWN


@pytest.mark.proves("SAS-11")
def test_a_crash_a_hang_and_a_report_of_not_knowing_leave_the_same_picture() -> None:
    crashed, hung, told = one(PROBED), one(PROBED), one(PROBED)
    crashed.take("hotel")
    crashed.now += timedelta(minutes=5)
    crashed.lose("hotel")
    hung.take("hotel")
    hung.wake("hotel")
    told.take("hotel")
    told.now += timedelta(minutes=5)
    told.fail("hotel", UNKNOWN)

    def picture(run: Folded) -> dict[str, Any]:
        return {k: v for k, v in vars(run.step("hotel")).items() if k != "error"}

    assert picture(crashed) == picture(hung) == picture(told)


@pytest.mark.proves("D-04")
def test_a_message_that_nobody_takes_is_sent_again_at_growing_intervals() -> None:
    run = one()
    times = [run.now]
    for _ in range(9):
        run.wake("hotel")
        assert run.news() == [("action", "hotel")]
        times.append(run.now)
    waits = [after - before for before, after in pairwise(times)]
    assert waits == sorted(waits)
    assert waits[:3] == [REDELIVERY, 2 * REDELIVERY, 4 * REDELIVERY]
    assert waits[-1] == REDELIVERY_CEILING
    assert {send.number for send in run.sent} == {1}


@pytest.mark.proves("D-23")
def test_a_message_that_waits_in_a_long_queue_is_not_sent_again() -> None:
    run = one().wake("hotel", queued=True)
    assert run.news() == []
    assert run.step("hotel").dispatch_count == 2


@pytest.mark.proves("D-22")
def test_a_step_that_no_worker_knows_is_left_and_somebody_is_told() -> None:
    run = one().wake("hotel", unserved=True)
    assert run.step("hotel").state is StepState.DISPATCHED
    assert run.kinds("hotel") == {"unserved"}
    assert run.news() == [("action", "hotel")]


def test_an_unserved_step_that_is_skipped_asks_for_nobody_any_more() -> None:
    run = one().wake("hotel", unserved=True).cancel()
    assert run.state == "cancelled"
    assert run.open == {}


def test_a_step_that_is_not_taken_in_time_fails() -> None:
    run = one(schedule_to_start=timedelta(seconds=8))
    run.wake("hotel")
    assert run.step("hotel").state is StepState.DISPATCHED
    run.wake("hotel")
    assert run.now - NOW >= timedelta(seconds=8)
    assert run.step("hotel").state is StepState.FAILED
    assert (run.step("hotel").error or {})["type"] == "ScheduleToStartTimeout"


def test_a_compensation_that_is_not_taken_in_time_does_not_fail() -> None:
    run = Folded(line(book("a", schedule_to_start=timedelta(seconds=8)), book("b")), BOOK)
    run.done("a").fail("b")
    for _ in range(4):
        run.wake("a")
    assert (run.step("a").state, run.step("a").direction) == ("dispatched", "backward")


# --- doubts --------------------------------------------------------------------------------------


@pytest.mark.proves("row 3", "D-07")
def test_an_effect_that_a_probe_finds_is_adopted_with_its_result() -> None:
    run = one(PROBED).lose("hotel").answer("hotel", Applied("room 7"))
    assert run.results["hotel"] == "room 7"
    assert run.state == "completed"
    assert run.rows("hotel") == ["0", "3"]


@pytest.mark.proves("row 8", "D-15")
def test_pending_work_is_asked_about_at_growing_intervals_and_counts_as_no_failure() -> None:
    run = one(PROBED).lose("hotel")
    waits = []
    for _ in range(12):
        run.answer("hotel", Pending())
        assert run.step("hotel").failure_count == 1
        wake_at = run.step("hotel").wake_at
        assert wake_at is not None
        waits.append(wake_at - run.now)
        run.wake("hotel")
    assert waits == sorted(waits)
    assert waits[-1] == timedelta(minutes=5)


@pytest.mark.proves("row 11")
def test_a_probe_that_is_not_answered_is_put_again() -> None:
    run = one(PROBED).lose("hotel")
    for number in range(1, UNCLEAR_LIMIT):
        assert run.step("hotel").inquiry_no == number
        run.wake("hotel").wake("hotel")
    run.wake("hotel")
    assert run.rows("hotel")[-1] == "11"


def test_an_answer_to_an_earlier_question_is_kept_as_evidence_and_not_acted_on() -> None:
    run = one(PROBED).lose("hotel").answer("hotel", Unclear("503")).wake("hotel")
    assert run.step("hotel").inquiry_no == 2
    run.event(Answered(path="hotel", inquiry_no=1, answer=Conflict("other")))
    assert run.step("hotel").state is StepState.UNKNOWN
    assert run.refused[-1].name == "stale_answer"
    assert run.refused[-1].evidence == {"answer": "conflict", "reason": "other"}


@pytest.mark.proves("row 15")
def test_an_undo_behind_a_barrier_turns_the_saga_back() -> None:
    run = Folded(line(book("a"), book("b")), BARRIER).done("a")
    run.lose("b").cancel().answer("b", Absent())
    assert run.news() == [("compensation", "b")]
    assert run.step("b").direction is Direction.BACKWARD
    drain(run)
    assert run.state == "cancelled"


@pytest.mark.proves("row 15")
def test_a_spent_step_is_undone_behind_its_barrier_and_the_saga_turns_back() -> None:
    run = Folded(line(book("a"), book("b", retry=RetryPolicy(max_attempts=1))), BARRIER)
    run.done("a").lose("b").answer("b", Absent())
    assert run.state == "compensating"
    assert drain(run) == ["b", "a"]
    assert run.state == "compensated"


@pytest.mark.proves("row 14", "row 9")
@pytest.mark.parametrize("answer", [None, Pending(), Absent(), Unclear("503")])
def test_a_doubt_in_a_saga_that_turns_back_is_closed_by_its_key(answer: Any) -> None:
    closable = contract("book", probe=True, close=True)
    run = Folded(line(parallel(book("a"), book("b"))), closable).lose("a")
    if answer is not None:
        run.answer("a", answer)
    run.fail("b")
    while ("close", "a") not in run.news():
        run.answer("a", answer) if run.step("a").inquiry else run.wake("a")
    run.answer("a", Closed())
    assert run.states() == {"a": "failed", "b": "failed"}
    assert run.state == "compensated"


@pytest.mark.proves("row 16", "row 17", "row 21")
def test_absence_counts_only_once_every_request_is_dead_and_visible() -> None:
    bounded = contract(
        "book",
        idempotent=False,
        probe=True,
        probe_staleness=timedelta(seconds=2),
        request_lifetime=timedelta(seconds=30),
    )
    run = one(bounded, timeout=timedelta(seconds=20), retry=RetryPolicy(max_attempts=1))
    run.take("hotel")
    run.later(seconds=1).lose("hotel").answer("hotel", Absent())
    horizon = NOW + timedelta(seconds=20 + 10 + 30 + 2)
    assert run.rows("hotel")[-1] == "21"
    assert run.step("hotel").wake_at == horizon
    run.wake("hotel").answer("hotel", Absent())
    assert run.step("hotel").state is StepState.FAILED
    assert run.rows("hotel")[-1] == "17"
    assert run.state == "compensated"
    assert run.step("hotel~late").state is StepState.UNKNOWN


def test_a_horizon_counts_all_that_a_task_may_go_on_with() -> None:
    """The process that called the hotel may live until the car would be booked, too."""
    bounded = contract("book", idempotent=False, probe=True, request_lifetime=timedelta(seconds=30))
    minute = timedelta(minutes=1)
    steps = book("hotel", timeout=minute), book("car", timeout=2 * minute, inline=True)
    run = Folded(line(*steps, deadline=timedelta(hours=1)), bounded)
    granted_at = run.now
    run.lose("hotel").answer("hotel", Absent())
    assert run.step("hotel").wake_at == granted_at + timedelta(seconds=60 + 120 + 10 + 30)


@pytest.mark.proves("D-14")
def test_an_answer_to_a_question_from_before_the_horizon_does_not_count() -> None:
    bounded = contract("book", idempotent=False, probe=True, request_lifetime=timedelta(seconds=30))
    run = one(bounded, timeout=timedelta(seconds=20), retry=RetryPolicy(max_attempts=1))
    run.take("hotel")
    run.later(seconds=1).lose("hotel")
    run.later(seconds=120).answer("hotel", Absent())
    assert run.step("hotel").state is StepState.UNKNOWN
    run.wake("hotel").answer("hotel", Absent())
    assert run.rows("hotel")[-1] == "17"


@pytest.mark.proves("row 20")
def test_what_was_declared_at_most_once_is_passed_over_in_doubt() -> None:
    careless = contract("book", idempotent=False, at_most_once=True)
    run = Folded(line(book("a"), book("b")), careless).lose("a")
    assert run.step("a").state is StepState.ABANDONED
    assert run.news() == [("action", "b")]


@pytest.mark.proves("row 7", "INV-10")
def test_a_conflict_halts_the_saga_with_one_open_incident() -> None:
    run = one(PROBED).lose("hotel").answer("hotel", Conflict("other amount"))
    assert run.state == "halted"
    assert run.kinds("hotel") == {"conflict"}


@pytest.mark.proves("INV-10")
def test_a_step_that_was_stuck_and_is_parked_has_one_open_incident() -> None:
    forgetful = contract("book", key_retention=timedelta(minutes=30))
    run = one(forgetful, retry=RetryPolicy(max_attempts=1, initial_interval=timedelta(minutes=1)))
    run.lose("hotel")
    assert run.kinds("hotel") == {"stuck"}
    while run.step("hotel").state is not StepState.HALTED:
        if run.step("hotel").state is StepState.DISPATCHED:
            run.lose("hotel")
        else:
            run.wake("hotel")
    assert run.kinds("hotel") == {"in_doubt"}


def test_what_was_unresolved_and_is_undone_asks_for_nobody_any_more() -> None:
    barrier = contract("book", idempotent=False, probe=True, compensation_closes_key=True)
    run = one(barrier).lose("hotel")
    while run.kinds("hotel") != {"unresolved"}:
        run.answer("hotel", Unclear()) if run.step("hotel").inquiry else run.wake("hotel")
    run.cancel()
    while run.step("hotel").state is StepState.UNKNOWN:
        run.answer("hotel", Unclear()) if run.step("hotel").inquiry else run.wake("hotel")
    assert run.kinds("hotel") == set()
    assert run.done("hotel").state == "cancelled"


# --- fences --------------------------------------------------------------------------------------


@pytest.mark.proves("INV-5", "D-09")
def test_the_loss_of_an_attempt_that_no_longer_holds_the_lease_changes_nothing() -> None:
    run = one(PROBED).lose("hotel")
    assert run.event(Lost(path="hotel", attempt=1, why="again")) == []
    run.answer("hotel", Absent()).wake("hotel")
    run.take("hotel")
    assert run.event(Lost(path="hotel", attempt=1, why="again")) == []
    assert run.step("hotel").state is StepState.LEASED


@pytest.mark.proves("INV-5", "W-3")
@pytest.mark.parametrize("given", [BARRIER, contract("book", compensation_closes_key=True)])
def test_the_message_of_an_action_never_opens_the_attempt_of_its_compensation(given: Any) -> None:
    """A step in doubt was sent again, nobody has taken it, and the saga turns back."""
    run = one(given).lose("hotel")
    if given.probe:
        run.answer("hotel", Absent())
    run.wake("hotel")
    action = run.sent[-1]
    assert (str(action.operation), action.number) == ("action", 2)
    run.cancel()
    while run.step("hotel").state is StepState.UNKNOWN:
        run.answer("hotel", Absent())
    compensation = run.sent[-1]
    assert str(compensation.operation) == "compensation"
    assert compensation.number > action.number


@pytest.mark.proves("INV-5")
def test_a_message_from_before_a_doubt_was_settled_is_not_taken_under_the_next_key() -> None:
    closable = contract("book", probe=True, close=True, key_retention=timedelta(minutes=10))
    run = one(closable, schedule_to_start=timedelta(minutes=9)).lose("hotel")
    run.answer("hotel", Absent()).wake("hotel")
    old = run.sent[-1]
    while run.step("hotel").state is StepState.DISPATCHED:
        run.wake("hotel")
    assert run.step("hotel").attempt >= old.number


# --- poison --------------------------------------------------------------------------------------


@pytest.mark.proves("row 25", "D-25")
def test_a_message_that_kills_its_workers_is_put_aside() -> None:
    run = one()
    for crash in range(1, CRASH_LIMIT):
        run.crash("hotel")
        assert run.step("hotel").crash_count == crash
        assert run.news() == [("action", "hotel")]
    run.crash("hotel")
    assert run.kinds("hotel") == {"poison"}
    assert run.state == "halted"


def test_crashes_before_the_lease_count_as_no_failure() -> None:
    run = one().crash("hotel")
    assert run.step("hotel").failure_count == 0
    run.take("hotel")
    assert run.step("hotel").crash_count == 0


def test_the_crash_of_another_attempt_changes_nothing() -> None:
    run = one()
    assert run.event(Crashed(path="hotel", attempt=7)) == []
    run.take("hotel")
    assert run.event(Crashed(path="hotel", attempt=1)) == []


@pytest.mark.proves("row 25")
@pytest.mark.parametrize("direction", ["forward in doubt", "backward"])
def test_poison_is_put_aside_in_doubt_and_backward_too(direction: str) -> None:
    run = Folded(line(book("a"), book("b")), BOOK)
    if direction == "backward":
        run.done("a").fail("b")
    else:
        run.lose("a").wake("a")
    for _ in range(CRASH_LIMIT):
        run.crash("a")
    assert (run.step("a").state, run.kinds("a")) == (StepState.HALTED, {"poison"})


# --- compensations -------------------------------------------------------------------------------


def turned_back(**properties: Any) -> Folded:
    plan = line(book("a", **properties), book("b"))
    return Folded(plan, BOOK).done("a", result="seat").fail("b")


@pytest.mark.proves("row 23", "REC-05", "CT-04", "COMP-01")
@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_compensation_is_never_given_up(kind: FailureKind) -> None:
    run = turned_back()
    for _ in range(20):
        run.fail("a", kind)
        run.wake("a")
        assert (run.step("a").state, run.step("a").direction) == ("dispatched", "backward")
    assert run.done("a").state == "compensated"
    assert run.open == {}


@pytest.mark.proves("row 23", "COMP-02", "D-19")
def test_a_compensation_that_keeps_failing_is_repeated_slowly_with_one_incident() -> None:
    run = turned_back(retry=RetryPolicy(max_attempts=2, jitter="none"))
    run.fail("a", ERROR)
    assert run.kinds("a") == set()
    run.wake("a").fail("a", ERROR)
    assert run.kinds("a") == {"compensation_stuck"}
    wake_at = run.step("a").wake_at
    assert wake_at is not None
    assert wake_at - run.now >= timedelta(seconds=50)
    run.wake("a").fail("a", ERROR)
    assert len(run.open) == 1


@pytest.mark.proves("row 23", "D-19")
@pytest.mark.parametrize("lost", ["killed", "overdue"])
def test_a_compensation_in_doubt_is_repeated_without_a_probe(lost: str) -> None:
    run = turned_back()
    run.take("a")
    run.lose("a") if lost == "killed" else run.wake("a")
    again = StepState.DISPATCHED if lost == "killed" else StepState.RETRYING
    assert run.step("a").state is again
    assert run.rows("a") == ["23"]


def test_a_compensation_that_is_to_be_tried_later_counts_as_no_failure() -> None:
    run = turned_back(retry=RetryPolicy(max_attempts=1))
    for _ in range(5):
        run.fail("a", LATER).wake("a")
    assert run.open == {}


@pytest.mark.proves("COMP-03")
def test_a_stuck_compensation_does_not_hold_up_an_independent_one() -> None:
    run = Folded(line(parallel(book("a"), book("b")), book("c")), BOOK).done("a", "b").fail("c")
    run.fail("a", PERMANENT)
    run.done("b")
    assert run.step("b").state is StepState.COMPENSATED
    assert run.kinds("a") == {"compensation_stuck"}


def test_failures_of_the_action_do_not_count_against_its_compensation() -> None:
    run = Folded(line(book("a"), book("b")), BOOK).lose("a").wake("a").done("a").fail("b")
    assert run.step("a").failure_count == 0


# --- invalid results -----------------------------------------------------------------------------


def test_an_effect_whose_result_is_of_no_use_is_undone() -> None:
    run = one().fail("hotel", INVALID, result={"room": None})
    assert run.results["hotel"] == {"room": None}
    assert run.news() == [("compensation", "hotel")]
    assert run.saga.abort is not None
    assert run.saga.abort["reason"] == "invalid_result"
    assert run.done("hotel").state == "compensated"


@pytest.mark.parametrize("path", ["payment", "receipt"])
def test_at_or_after_the_pivot_a_result_of_no_use_is_left_to_an_operator(path: str) -> None:
    run = trip().done("flight", "hotel", "car")
    if path == "receipt":
        run.done("payment")
    run.fail(path, INVALID, result="?")
    assert run.state == "halted"
    assert run.kinds(path) == {"invalid_result"}
    assert run.step(path).doubt_at is not None


# --- ends ----------------------------------------------------------------------------------------


@pytest.mark.proves("INV-14")
@pytest.mark.parametrize("end", ["completed", "compensated", "cancelled"])
def test_an_ended_saga_never_changes(end: str) -> None:
    run = Folded(line(book("a"), book("b")), PROBED).done("a")
    if end == "completed":
        run.done("b")
    else:
        run.cancel() if end == "cancelled" else run.fail("b")
        drain(run)
    assert run.state == end
    before = run.saga
    late = Reported(
        path="b", attempt=1, direction=Direction.FORWARD, incarnation=0, outcome=Returned()
    )
    for event in (Nudged(), Woken(path="a"), Lost(path="a", attempt=1, why="late"), late):
        run.event(event)
        assert run.saga == before


@pytest.mark.proves("INV-2")
def test_a_saga_whose_last_step_ends_it_completes_though_it_is_late() -> None:
    """GM-16."""
    run = one()
    run.take("hotel")
    assert run.later(days=2).done("hotel").state == "completed"


def test_deciding_changes_nothing_that_it_was_given() -> None:
    run = one()
    before = run.saga
    steps = dict(before.steps)
    decide(run.definition, before, Crashed(path="hotel", attempt=1), run.now)
    assert before.steps == steps


def test_deciding_twice_gives_the_same() -> None:
    run = trip()
    event = Crashed(path="hotel", attempt=1)
    first = decide(run.definition, run.saga, event, run.now)
    assert decide(run.definition, run.saga, event, run.now) == first


@pytest.mark.proves("row 5")
def test_a_late_effect_of_the_pivot_is_an_alarm_about_the_saga_until_it_ends() -> None:
    run = trip().done("flight", "hotel", "car")
    run.take("payment")
    run.deadline().lose("payment").answer("payment", Applied("paid"))
    assert (run.kinds(), run.kinds("payment")) == ({"overdue"}, set())
    assert run.done("receipt").state == "completed"
    assert run.open == {}


def test_a_late_step_behind_the_pivot_that_succeeds_asks_for_nobody_any_more() -> None:
    run = trip().done("flight", "hotel", "car", "payment").deadline().crash("receipt")
    assert run.kinds("receipt") == {"stuck"}
    run.wake("receipt").done("receipt")
    assert (run.state, run.open) == ("completed", {})


def test_a_retry_that_comes_due_after_the_deadline_turns_the_saga_back_instead() -> None:
    policy = RetryPolicy(max_attempts=1, initial_interval=timedelta(minutes=5))
    plan = line(book("a"), book("hotel", retry=policy), deadline=timedelta(hours=1))
    run = Folded(plan, BOOK).done("a").lose("hotel")
    assert run.step("hotel").state == "retrying"
    run.wake("hotel")
    assert run.news() == []
    assert run.saga.abort is not None
    assert run.saga.abort["reason"] == "deadline"
    run.wake("hotel")
    assert run.news() == [("action", "hotel")]
