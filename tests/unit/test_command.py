"""What a person may decide about a step, what is refused, and that a refusal changes nothing."""

from datetime import timedelta
from typing import Any

import pytest

from models.states import AttemptState, StepState
from orchestration.definition import RetryPolicy, Step, parallel
from orchestration.errors import NotFoundError, RefusedError
from orchestration.events import FailureKind, Remedy
from orchestration.recovery import CRASH_LIMIT
from orchestration.signals import Absent, Applied, Closed, Conflict, Rejected
from tests.support.folding import Folded, contract, drain, line

PROBED = contract("book", probe=True)
PAY = contract("pay", compensation=False, probe=True)
MAIL = contract("mail", compensation=False, probe=True)


def halted(given: Any = PROBED, **properties: Any) -> Folded:
    """A saga whose second step is in conflict."""
    plan = line(Step("a", agent="book"), Step("hotel", agent="book", **properties))
    run = Folded(plan, given).done("a").lose("hotel")
    return run.answer("hotel", Conflict("other amount"))


def past_the_pivot() -> Folded:
    plan = line(Step("pay", agent="pay", pivot=True), Step("mail", agent="mail"))
    return Folded(plan, PAY, MAIL).done("pay").lose("mail").answer("mail", Rejected("no"))


@pytest.mark.proves("COL-08", "D-19")
@pytest.mark.parametrize(
    ("remedy", "state", "saga"),
    [
        (Remedy.RETRY, "dispatched", "running"),
        (Remedy.PROBE, "unknown", "running"),
        (Remedy.SUCCEEDED, "succeeded", "completed"),
        (Remedy.FAILED, "failed", "compensating"),
        (Remedy.SKIP, "abandoned", "completed"),
    ],
)
def test_a_halted_step_does_what_was_decided(remedy: Remedy, state: str, saga: str) -> None:
    run = halted()
    assert run.state == "halted"
    run.resolve("hotel", remedy)
    assert (run.step("hotel").state, run.state) == (state, saga)
    assert run.kinds("hotel") == set()
    assert ("hotel", "conflict", str(remedy)) in run.resolved


def test_a_decision_is_kept_with_who_took_it_and_why() -> None:
    run = halted().resolve("hotel", Remedy.SUCCEEDED, result="room 7")
    told = [entry for entry in run.journal if entry.verb == "resolve"]
    assert [entry.why for entry in told] == ["succeeded by ada: looked"]
    assert run.results["hotel"] == "room 7"


def test_a_result_that_is_not_given_is_left_as_it_is() -> None:
    run = halted().resolve("hotel", Remedy.SUCCEEDED)
    assert "hotel" not in run.results


@pytest.mark.parametrize("answer", [Applied("room 7"), Conflict("still")])
def test_the_answer_to_a_probe_that_an_operator_asked_for_is_acted_on(answer: Any) -> None:
    run = halted().resolve("hotel", Remedy.PROBE)
    assert run.news() == [("probe", "hotel")]
    run.answer("hotel", answer)
    assert run.state == ("completed" if isinstance(answer, Applied) else "halted")


def test_a_close_that_an_operator_asked_for_settles_the_step() -> None:
    closable = contract("book", probe=True, close=True)
    run = halted(closable).resolve("hotel", Remedy.CLOSE)
    assert run.news() == [("close", "hotel")]
    run.answer("hotel", Closed())
    assert run.step("hotel").incarnation == 1


@pytest.mark.proves("K-4", "D-29")
def test_a_retry_is_refused_where_the_key_may_be_forgotten() -> None:
    run = halted(contract("book", probe=True, key_retention=timedelta(hours=2)))
    before = run.later(hours=2).saga
    with pytest.raises(RefusedError, match=r"may have forgotten the key.*use probe, close"):
        run.resolve("hotel", Remedy.RETRY)
    assert run.saga == before
    assert run.kinds("hotel") == {"conflict"}


@pytest.mark.proves("K-4", "RT-07")
def test_a_retry_is_refused_where_it_could_act_twice() -> None:
    run = halted(contract("book", idempotent=False, probe=True, close=True))
    with pytest.raises(RefusedError, match=r"'hotel'.*not idempotent"):
        run.resolve("hotel", Remedy.RETRY)


@pytest.mark.proves("K-4")
def test_a_retry_is_refused_after_an_effect_of_no_use_unless_it_is_idempotent() -> None:
    pay = contract("pay", idempotent=False, close=True, compensation=False)
    run = Folded(line(Step("pay", agent="pay", pivot=True)), pay)
    run.fail("pay", FailureKind.INVALID_RESULT, result="?")
    with pytest.raises(RefusedError, match="not idempotent"):
        run.resolve("pay", Remedy.RETRY)
    assert run.resolve("pay", Remedy.SUCCEEDED, result="paid").state == "completed"


def test_what_was_never_sent_may_always_be_tried_again() -> None:
    run = Folded(line(Step("hotel", agent="book")), contract("book", idempotent=False, close=True))
    for _ in range(CRASH_LIMIT):
        run.crash("hotel")
    run.resolve("hotel", Remedy.RETRY)
    assert run.done("hotel").state == "completed"


@pytest.mark.parametrize("remedy", [Remedy.PROBE, Remedy.CLOSE])
def test_only_what_the_agent_has_can_be_asked_of_it(remedy: Remedy) -> None:
    plain = contract("book", idempotent=True)
    run = Folded(line(Step("hotel", agent="book", retry=RetryPolicy(max_attempts=1))), plain)
    run.lose("hotel")
    with pytest.raises(RefusedError, match=f"agent 'book' has no {remedy}"):
        run.resolve("hotel", remedy)


@pytest.mark.proves("row 6")
@pytest.mark.parametrize("remedy", [Remedy.RETRY, Remedy.SUCCEEDED, Remedy.SKIP])
def test_after_the_pivot_a_step_can_be_retried_or_passed_over(remedy: Remedy) -> None:
    run = past_the_pivot().resolve("mail", remedy)
    drain(run)
    assert run.state == "completed"


@pytest.mark.proves("CT-12")
@pytest.mark.parametrize(
    ("remedy", "words"),
    [(Remedy.FAILED, "past the pivot and cannot fail"), (Remedy.COMPENSATED, "goes forward")],
)
def test_after_the_pivot_a_step_can_neither_fail_nor_be_undone(remedy: Remedy, words: str) -> None:
    run = past_the_pivot()
    before = run.saga
    with pytest.raises(RefusedError, match=words):
        run.resolve("mail", remedy)
    assert run.saga == before


@pytest.mark.parametrize("state", ["waiting", "dispatched", "leased", "succeeded", "failed"])
@pytest.mark.parametrize("remedy", [r for r in Remedy if r is not Remedy.ACKNOWLEDGE])
def test_a_step_that_waits_for_nobody_cannot_be_resolved(state: str, remedy: Remedy) -> None:
    run = Folded(line(Step("a", agent="book"), Step("b", agent="book")), PROBED)
    if state == "leased":
        run.take("a")
    if state == "succeeded":
        run.done("a")
    if state == "failed":
        run.fail("a")
    path = "b" if state == "waiting" else "a"
    assert run.step(path).state == state
    before = run.saga
    with pytest.raises(RefusedError, match=f"step '{path}' is {state}; only a step that is halted"):
        run.resolve(path, remedy)
    assert run.saga == before


def test_a_step_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(NotFoundError, match="no step 'hotl'; it has: a, hotel"):
        halted().resolve("hotl", Remedy.RETRY)


def test_a_step_that_waits_to_be_tried_again_can_be_tried_at_once() -> None:
    run = Folded(line(Step("a", agent="book")), PROBED).overdue("a").answer("a", Absent())
    assert run.step("a").state is StepState.RETRYING
    run.resolve("a", Remedy.RETRY)
    assert run.news() == [("action", "a")]


@pytest.mark.proves("CT-05", "CT-14", "COMP-04")
def test_a_compensation_can_be_marked_as_done_by_hand_with_a_reason() -> None:
    run = Folded(line(Step("a", agent="book"), Step("b", agent="book")), PROBED)
    run.done("a").fail("b").fail("a")
    assert run.kinds("a") == {"compensation_stuck"}
    run.resolve("a", Remedy.COMPENSATED)
    assert run.state == "compensated"
    assert run.open == {}


@pytest.mark.parametrize("remedy", [Remedy.SUCCEEDED, Remedy.FAILED, Remedy.PROBE, Remedy.CLOSE])
def test_a_compensation_can_neither_fail_nor_be_probed(remedy: Remedy) -> None:
    closable = contract("book", probe=True, close=True)
    run = Folded(line(Step("a", agent="book"), Step("b", agent="book")), closable)
    run.done("a").fail("b").fail("a")
    with pytest.raises(RefusedError):
        run.resolve("a", remedy)


def test_a_compensation_can_be_tried_again_at_once() -> None:
    run = Folded(line(Step("a", agent="book"), Step("b", agent="book")), PROBED)
    run.done("a").fail("b").fail("a").resolve("a", Remedy.RETRY)
    assert run.news() == [("compensation", "a")]
    assert run.step("a").failure_count == 0


@pytest.mark.proves("CT-05")
def test_a_manual_step_that_is_undone_by_hand_lets_its_predecessors_be_undone() -> None:
    manual = contract("hand", manual=True, compensation=False, idempotent=False)
    plan = line(Step("a", agent="book"), Step("hand", agent="hand"), Step("b", agent="book"))
    run = Folded(plan, PROBED, manual).done("a", "hand").fail("b")
    assert run.state == "halted"
    run.resolve("hand", Remedy.COMPENSATED)
    assert (run.state, run.news()) == ("compensating", [("compensation", "a")])


@pytest.mark.proves("D-28")
def test_a_halted_branch_holds_up_only_what_preceded_its_fork() -> None:
    plan = line(Step("a", agent="book"), parallel(Step("b", agent="book"), Step("c", agent="book")))
    run = Folded(plan, PROBED).done("a", "b").lose("c").answer("c", Conflict()).cancel()
    assert run.news() == [("compensation", "b")]
    run.done("b")
    assert run.state == "halted"
    run.resolve("c", Remedy.SUCCEEDED, result="seat")
    assert drain(run) == ["c", "a"]
    assert run.state == "cancelled"


def test_an_alarm_can_be_acknowledged_but_a_decision_cannot_be_replaced_by_it() -> None:
    run = Folded(line(Step("a", agent="book")), PROBED).wake("a", unserved=True)
    assert run.resolve("a", Remedy.ACKNOWLEDGE).open == {}
    with pytest.raises(RefusedError, match="needs a decision"):
        halted().resolve("hotel", Remedy.ACKNOWLEDGE)


def test_a_halted_saga_goes_on_as_soon_as_it_is_resolved() -> None:
    plan = line(Step("a", agent="book"), Step("b", agent="book"))
    run = Folded(plan, PROBED).lose("a").answer("a", Conflict())
    assert run.state == "halted"
    run.resolve("a", Remedy.SUCCEEDED)
    assert run.state == "running"
    assert run.attempts["a", 1] is AttemptState.EXPIRED
    assert run.done("b").state == "completed"


@pytest.mark.proves("row 4")
def test_a_halted_saga_past_its_deadline_is_undone_once_it_is_resolved() -> None:
    run = halted().deadline()
    assert run.state == "halted"
    run.resolve("hotel", Remedy.SUCCEEDED, result="room 7")
    assert drain(run) == ["hotel", "a"]
    assert run.state == "compensated"


# --- the row that looks out for a late effect ----------------------------------------------------


def watched() -> Folded:
    bounded = contract("book", probe=True, request_lifetime=timedelta(seconds=1))
    plan = line(Step("hotel", agent="book", retry=RetryPolicy(max_attempts=1)))
    run = Folded(plan, bounded).lose("hotel").answer("hotel", Absent())
    run.wake("hotel").answer("hotel", Absent())
    assert run.state == "compensated"
    return run


@pytest.mark.parametrize("remedy", [Remedy.RETRY, Remedy.SUCCEEDED, Remedy.FAILED, Remedy.CLOSE])
def test_a_row_that_looks_out_never_acts_by_itself(remedy: Remedy) -> None:
    run = watched()
    with pytest.raises(RefusedError, match="only looks out for a late effect"):
        run.resolve("hotel~late", remedy)
    assert run.step("hotel~late").state is StepState.UNKNOWN


@pytest.mark.parametrize("remedy", [Remedy.COMPENSATED, Remedy.SKIP])
def test_looking_out_can_be_ended_by_hand(remedy: Remedy) -> None:
    run = watched().resolve("hotel~late", remedy)
    assert run.step("hotel~late").wake_at is None
    assert run.state == "compensated"


def test_looking_out_can_be_done_at_once() -> None:
    assert watched().resolve("hotel~late", Remedy.PROBE).news() == [("probe", "hotel~late")]
