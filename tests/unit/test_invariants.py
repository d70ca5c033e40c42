"""Each invariant can fail: a record that was doctored in one way violates it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from orchestration.contract import AgentContract
from orchestration.definition import Definition, Step, Workflow, sequence
from tasks.proof.invariants import INVARIANTS, REMOTE_CALLS, check
from tasks.proof.record import Beat, Booking, Effect, Record, Request, Rows, transfer

START = datetime(2027, 1, 1, tzinfo=UTC)
SAGA = "saga"
PRICE = 500


def definition(*, pivot: bool = False) -> Definition:
    first = Step("a", agent="books", timeout=timedelta(minutes=1), pivot=pivot)
    second = Step("b", agent="books", timeout=timedelta(minutes=1))
    contract = AgentContract(name="books", idempotent=True, compensation=True)
    plan = Workflow("plan", version=1, steps=sequence(first, second))
    return Definition(plan, {"books": contract})


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


@dataclass
class Story:
    """A saga of two steps that was completed, or undone, without any accident."""

    saga: Any
    steps: dict[str, Any]
    attempts: list[Any]
    effects: list[Effect]
    requests: list[Request]
    payments: list[Booking]
    ledger: list[int] = field(default_factory=list)
    incidents: list[Any] = field(default_factory=list)
    journal: list[Any] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    definition: Definition = field(default_factory=definition)

    def record(self) -> Record:
        return Record(
            rows=Rows(
                sagas=[self.saga],
                steps=list(self.steps.values()),
                attempts=self.attempts,
                incidents=self.incidents,
                journal=self.journal,
            ),
            definitions={"plan": self.definition},
            effects=self.effects,
            requests=self.requests,
            payments=self.payments,
            always_returns=True,
            beats=self.beats,
            ledger=self.ledger,
        )

    def violated(self) -> set[str]:
        return {violation.invariant for violation in check(self.record())}


def attempt(path: str, number: int, second: int, direction: str = "forward") -> Any:
    return SimpleNamespace(
        saga_id=SAGA, path=path, no=number, direction=direction, state="succeeded",
        granted_at=at(second), ended_at=at(second + 1),
    )  # fmt: skip


def request(path: str, number: int, second: int, operation: str = "action") -> Request:
    return Request(
        saga_id=SAGA, step=path, operation=operation, attempt=number, at=at(second)
    )  # fmt: skip


def completed() -> Story:
    steps = {
        path: SimpleNamespace(
            saga_id=SAGA, path=path, state="succeeded", direction="forward", attempt=1,
            wake_at=None, deadline_at=None,
        )
        for path in ("a", "b")
    }  # fmt: skip
    return Story(
        saga=SimpleNamespace(id=SAGA, definition_id="plan", state="completed", ended_at=at(9)),
        steps=steps,
        attempts=[attempt("a", 1, 1), attempt("b", 1, 3)],
        effects=[Effect(f"key of {path}", SAGA, path, at(2)) for path in ("a", "b")],
        requests=[request("a", 1, 1), request("b", 1, 3)],
        payments=[one for path in ("a", "b") for one in transfer(SAGA, path, "books", PRICE)],
    )


def compensated() -> Story:
    story = completed()
    story.saga.state = "compensated"
    for number, path in enumerate(("b", "a")):
        story.steps[path].state, story.steps[path].direction = "compensated", "backward"
        story.steps[path].attempt = 2
        story.attempts.append(attempt(path, 2, 5 + 2 * number, "backward"))
        story.requests.append(request(path, 2, 5 + 2 * number, "compensation"))
        story.payments += transfer(SAGA, path, "books", -PRICE)
    for effect in story.effects:
        effect.undone_at = at(8)
    return story


def running(story: Story) -> None:
    story.saga.state, story.saga.ended_at = "running", None


@pytest.mark.parametrize("honest", [completed, compensated])
def test_an_honest_record_violates_nothing(honest: Callable[[], Story]) -> None:
    assert honest().violated() == set()


def twice_under_one_key(story: Story) -> None:
    story.effects.append(Effect("key of a", SAGA, "a", at(4), undone_at=at(5)))


def without_an_effect(story: Story) -> None:
    del story.effects[0]


def with_a_second_effect(story: Story) -> None:
    story.effects.append(Effect("another key of a", SAGA, "a", at(4)))


def not_undone(story: Story) -> None:
    story.effects[0].undone_at = None


def begun_before_its_turn(story: Story) -> None:
    story.attempts[1] = attempt("b", 1, 0)
    story.requests[1] = request("b", 1, 1)


def undone_in_the_wrong_order(story: Story) -> None:
    story.attempts[3].granted_at = at(4)
    story.attempts[3].ended_at = at(5)


def two_at_once(story: Story) -> None:
    story.attempts.append(attempt("a", 2, 1))
    story.attempts[-1].state = "failed"
    story.steps["a"].attempt = 2


def succeeded_twice(story: Story) -> None:
    story.attempts.append(attempt("a", 2, 2))
    story.steps["a"].attempt = 2


def never_woken(story: Story) -> None:
    running(story)
    story.steps["b"].state = "retrying"


def leased_for_ever(story: Story) -> None:
    running(story)
    story.steps["b"].state, story.steps["b"].wake_at = "leased", at(60)


def sent_without_a_lease(story: Story) -> None:
    story.requests.append(request("a", 7, 4))


def sent_before_its_lease(story: Story) -> None:
    story.requests[0] = request("a", 1, 0)


def held_after_the_end(story: Story) -> None:
    story.steps["b"].state, story.steps["b"].wake_at = "leased", at(60)
    story.steps["b"].deadline_at = at(60)


def money_that_did_not_arrive(story: Story) -> None:
    story.payments[1] = replace(story.payments[1], amount=PRICE - 1)


def money_out_of_nothing(story: Story) -> None:
    story.ledger += [PRICE, 1 - PRICE]


def paid_twice(story: Story) -> None:
    story.payments += transfer(SAGA, "a", "books", PRICE)


def not_given_back(story: Story) -> None:
    del story.payments[-2:]


def halted_without_a_question(story: Story) -> None:
    story.saga.state, story.saga.ended_at = "halted", None
    story.steps["b"].state = "halted"


def halted_with_two_questions(story: Story) -> None:
    halted_without_a_question(story)
    story.incidents += [SimpleNamespace(saga_id=SAGA, path="b", resolved_at=None)] * 2


def without_an_end(story: Story) -> None:
    running(story)
    story.steps["b"].state, story.steps["b"].wake_at = "retrying", at(60)


def called_too_often(story: Story) -> None:
    story.requests += [request("a", 1, 1 + number) for number in range(REMOTE_CALLS)]


def called_by_a_sweep(story: Story) -> None:
    story.requests[0] = replace(story.requests[0], caller="sweep")


def moved_after_the_end(story: Story) -> None:
    story.journal.append(
        SimpleNamespace(
            saga_id=SAGA, path="a", at=at(20), from_state="succeeded", to_state="failed"
        )
    )


def leased_after_the_end(story: Story) -> None:
    story.attempts.append(attempt("b", 2, 20))
    story.attempts[-1].state = "failed"
    story.steps["b"].attempt = 2


def undone_behind_the_pivot(story: Story) -> None:
    story.definition = definition(pivot=True)


def turned_back_behind_the_pivot(story: Story) -> None:
    story.definition = definition(pivot=True)
    story.saga.abort = {"reason": "cancelled"}


def without_its_result(story: Story) -> None:
    story.requests[-1] = replace(story.requests[-1], with_result=False)


def result_lost(story: Story) -> None:
    story.steps["a"].result = None


def late_success_kept(story: Story) -> None:
    story.steps["a"].state = "failed"
    story.attempts[0].state = "expired"
    story.attempts[0].late = {"outcome": "succeeded", "at": at(9).isoformat()}


def given_up_too_early(story: Story) -> None:
    story.journal.append(
        SimpleNamespace(
            saga_id=SAGA, path="a~late", at=at(20), from_state="unknown", to_state="dispatched",
            row="24",
        )
    )  # fmt: skip


def heard_without_the_lease(story: Story) -> None:
    story.beats.append(Beat(**BEAT, at=at(3), wake_at=at(50)))


def lease_put_off(story: Story) -> None:
    story.beats.append(Beat(**BEAT, at=at(1), wake_at=at(70)))


def sent_under_a_closed_key(story: Story) -> None:
    story.requests[0] = replace(story.requests[0], operation="close", key="k")
    story.attempts.append(attempt("a", 2, 3))
    story.attempts[0].state = "failed"
    story.steps["a"].attempt = 2
    story.requests.append(replace(request("a", 2, 3), key="k"))
    closed = {"answer": "closed"}
    story.journal.append(
        SimpleNamespace(
            saga_id=SAGA, path="a", at=at(2), from_state="unknown", to_state="retrying",
            row="18", details=closed,
        )
    )  # fmt: skip


def ended_twice(story: Story) -> None:
    end = SimpleNamespace(
        saga_id=SAGA, path="", at=at(9), from_state="running", to_state="completed", verb="finish"
    )
    story.journal += [end, end]


BEAT: dict[str, Any] = {"saga_id": SAGA, "step": "a", "attempt": 1, "deadline_at": at(60)}
DOCTORED: list[tuple[str, Callable[[], Story], Callable[[Story], None]]] = [
    ("INV-1", completed, twice_under_one_key),
    ("INV-2", completed, without_an_effect),
    ("INV-2", completed, with_a_second_effect),
    ("INV-3", compensated, not_undone),
    ("INV-3", compensated, without_its_result),
    ("INV-3", compensated, result_lost),
    ("INV-3", compensated, late_success_kept),
    ("INV-3", compensated, given_up_too_early),
    ("INV-4", compensated, undone_behind_the_pivot),
    ("INV-4", completed, turned_back_behind_the_pivot),
    ("INV-4", completed, begun_before_its_turn),
    ("INV-4", compensated, undone_in_the_wrong_order),
    ("INV-5", completed, two_at_once),
    ("INV-5", completed, succeeded_twice),
    ("INV-5", completed, heard_without_the_lease),
    ("INV-5", completed, lease_put_off),
    ("INV-6", completed, never_woken),
    ("INV-6", completed, leased_for_ever),
    ("INV-7", completed, sent_without_a_lease),
    ("INV-7", completed, sent_before_its_lease),
    ("INV-7", completed, sent_under_a_closed_key),
    ("INV-8", completed, held_after_the_end),
    ("INV-9", completed, money_that_did_not_arrive),
    ("INV-9", completed, money_out_of_nothing),
    ("INV-9", completed, paid_twice),
    ("INV-9", compensated, not_given_back),
    ("INV-10", completed, halted_without_a_question),
    ("INV-10", completed, halted_with_two_questions),
    ("INV-11", completed, without_an_end),
    ("INV-12", completed, called_too_often),
    ("INV-13", completed, called_by_a_sweep),
    ("INV-14", completed, moved_after_the_end),
    ("INV-14", completed, ended_twice),
    ("INV-14", completed, leased_after_the_end),
]


@pytest.mark.parametrize(
    ("invariant", "honest", "doctor"), DOCTORED, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_doctored_record_violates_its_invariant(
    invariant: str, honest: Callable[[], Story], doctor: Callable[[Story], None]
) -> None:
    story = honest()
    doctor(story)
    assert invariant in story.violated()


def test_no_invariant_is_left_out() -> None:
    assert {invariant for invariant, _, _ in DOCTORED} == set(INVARIANTS)
