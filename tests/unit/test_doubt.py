"""A partner that rings: what is in doubt is asked about at once, and nothing else comes of it."""

from datetime import timedelta

import pytest

from models.states import StepState
from orchestration.events import Hastened, Woken
from orchestration.recovery import UNCLEAR_LIMIT
from orchestration.signals import Absent, Applied, Pending, Unclear
from tests.support.folding import Folded, contract, line
from tests.unit.test_decide import BOOK, CLOSABLE, NO_JITTER, PROBED, book

RING = Hastened(path="hotel")
ASKED = [("probe", "hotel")]


def pending(times: int = 8) -> Folded:
    """Return a saga whose partner has said so often that it still works on the hotel."""
    run = Folded(line(book("hotel")), PROBED).lose("hotel").answer("hotel", Pending())
    for _ in range(times - 1):
        run.wake("hotel")
        run.answer("hotel", Pending())
    return run


def waits(run: Folded) -> timedelta:
    wake_at = run.step("hotel").wake_at
    assert wake_at is not None
    return wake_at - run.now


def test_a_step_in_doubt_is_asked_about_at_once_when_its_partner_rings() -> None:
    run = pending().later(seconds=2)
    assert waits(run) > timedelta(minutes=1)
    run.event(RING)
    assert run.news() == ASKED
    run.answer("hotel", Applied("room 7"))
    assert run.results["hotel"] == "room 7"
    assert run.state == "completed"


def test_a_ring_is_not_counted_among_the_questions_asked_in_vain() -> None:
    run = Folded(line(book("hotel")), PROBED).lose("hotel").answer("hotel", Unclear("503"))
    asked = run.step("hotel").asked_count
    for _ in range(UNCLEAR_LIMIT):
        run.later(seconds=1).event(RING)
        run.answer("hotel", Unclear("503"))
    assert run.step("hotel").asked_count == asked
    assert run.step("hotel").state is StepState.UNKNOWN


def test_however_often_a_partner_rings_it_is_asked_once_a_second() -> None:
    run = pending().later(seconds=2)
    questions = 0
    for _ in range(100):
        run.later(milliseconds=50).event(RING)
        questions += run.news() == ASKED
        if run.step("hotel").inquiry:
            run.answer("hotel", Pending())
            questions += run.news() == ASKED
        elif run.step("hotel").wake_at == run.now:
            run.event(Woken(path="hotel"))
            questions += run.news() == ASKED
    assert 4 <= questions <= 6


def test_a_ring_while_a_question_is_under_way_is_followed_by_another_question() -> None:
    """The answer may have been given before there was any news."""
    run = pending()
    run.wake("hotel")
    run.event(RING)
    assert run.news() == []
    assert run.event(RING) == []
    run.later(seconds=3).answer("hotel", Pending())
    assert run.news() == ASKED
    run.answer("hotel", Pending())
    assert waits(run) > timedelta(minutes=1)


def test_a_second_ring_within_a_second_brings_the_next_question_forward() -> None:
    run = pending().later(seconds=2)
    run.event(RING)
    run.answer("hotel", Pending())
    run.event(RING)
    assert run.news() == []
    assert waits(run) == timedelta(seconds=1)
    assert run.event(RING) == []


def test_a_question_that_nobody_answers_is_put_again_though_its_partner_has_rung() -> None:
    run = pending(1)
    run.wake("hotel")
    run.event(RING)
    run.wake("hotel")
    assert run.news() == ASKED


@pytest.mark.parametrize("state", ["dispatched", "leased", "succeeded", "closing", "unasked"])
def test_a_ring_about_what_is_not_in_doubt_changes_nothing(state: str) -> None:
    run = Folded(line(book("hotel")), CLOSABLE if state == "closing" else BOOK)
    match state:
        case "leased":
            run.take("hotel")
        case "succeeded":
            run.done("hotel")
        case "unasked":
            run.lose("hotel")
        case "closing":
            run.lose("hotel").cancel()
            assert run.step("hotel").inquiry == "close"
    assert run.event(RING) == []


def test_a_ring_about_a_step_that_there_is_not_changes_nothing() -> None:
    assert pending().event(Hastened(path="motel")) == []


def test_a_late_effect_is_looked_for_at_once_when_the_partner_rings() -> None:
    watched = contract("book", probe=True, idempotent=False, request_lifetime=timedelta(minutes=1))
    run = Folded(line(book("hotel", retry=NO_JITTER)), watched).lose("hotel").cancel()
    while "hotel~late" not in run.states():
        run.wake("hotel")
        if run.step("hotel").inquiry:
            run.answer("hotel", Absent())
    run.event(Hastened(path="hotel~late"))
    assert run.news() == [("probe", "hotel~late")]
    run.answer("hotel~late", Applied("room 7"))
    assert run.news() == [("compensation", "hotel~late")]
