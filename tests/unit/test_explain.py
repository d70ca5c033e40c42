from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from models.states import Operation
from orchestration import Step
from orchestration.contract import AgentContract
from tasks.proof.explain import Evidence, cause_of, kind_of
from tasks.proof.invariants import Violation
from tasks.proof.own import Said
from tasks.proof.record import Effect
from tasks.proof.world import EPOCH

AGENT: Any = SimpleNamespace(result_to_json=lambda value: value)


def effect(key: str = "key", at: int = 0) -> Effect:
    return Effect(key=key, saga_id="saga", step="step", at=EPOCH + timedelta(seconds=at))


def said(operation: Operation, word: str, at: int, **more: Any) -> Said:
    when = EPOCH + timedelta(seconds=at)
    return Said(when, "saga", "step", operation, 1, "key", word=word, text=f"said {word}", **more)


def evidence(*words: Said, **properties: Any) -> Evidence:
    return Evidence(
        step=Step("step", agent="agent"),
        contract=AgentContract(name="agent", **properties),
        said=list(words),
        effects=[effect for word in words for effect in word.made],
        agents={"agent": AGENT},
    )


@pytest.mark.parametrize(
    ("invariant", "standing", "kind"),
    [
        ("INV-1", 1, "doubled"),
        ("INV-2", 2, "doubled"),
        ("INV-2", 0, "missing"),
        ("INV-3", 1, "orphaned"),
        ("INV-11", 0, "stuck"),
        ("plain", 0, "fails"),
        ("undone twice", 0, "undone twice"),
        ("undeclared", 1, "undeclared"),
        ("INV-5", 1, "broken"),
    ],
)
def test_what_is_wrong_has_a_word(invariant: str, standing: int, kind: str) -> None:
    assert kind_of(Violation(invariant, "saga", "step", "text"), standing) == kind


def test_what_was_kept_has_no_cause() -> None:
    kept = evidence(
        said(Operation.ACTION, "str", 0, made=[effect()]),
        said(Operation.ACTION, "str", 1),
        said(Operation.PROBE, "Applied", 2),
        idempotent=True,
    )
    assert cause_of(kept) is None


def test_a_probe_that_tells_of_what_never_was_is_to_blame() -> None:
    cause = cause_of(evidence(said(Operation.PROBE, "Applied", 0)))
    assert cause is not None
    assert "answered Applied, and nothing had happened" in cause.why


def test_a_probe_is_blamed_for_the_oldest_effect_that_it_denies() -> None:
    cause = cause_of(
        evidence(
            said(Operation.ACTION, "str", 0, made=[effect()]),
            said(Operation.PROBE, "Absent", 1),
            said(Operation.PROBE, "Absent", 60),
            said(Operation.PROBE, "Applied", 120),
        )
    )
    assert cause is not None
    assert "answered Absent 1 min 0 s after the effect" in cause.why
    assert "more than 1 min 0 s" in cause.remedy


@pytest.mark.parametrize(
    ("age", "retention", "remedy"),
    [
        (5, None, "let the partner act once for one key"),
        (300, None, "a key_retention below 5 min 0 s"),
        (5, timedelta(days=1), "a key_retention below 5.00 s"),
    ],
)
def test_a_key_that_is_forgotten_is_told_from_one_that_is_ignored(
    age: int, retention: timedelta | None, remedy: str
) -> None:
    cause = cause_of(
        evidence(
            said(Operation.ACTION, "str", 0, made=[effect()]),
            said(Operation.ACTION, "str", age, made=[effect(at=age)]),
            idempotent=True,
            key_retention=retention,
        )
    )
    assert cause is not None
    assert remedy in cause.remedy


def test_a_compensation_that_cannot_undo_is_told_apart_from_one_that_need_not() -> None:
    failed = [said(Operation.COMPENSATION, "Error", n, standing=[effect()]) for n in range(4)]
    for one in failed:
        one.text = "raised Error: no"
    cause = cause_of(evidence(*failed, compensation=True))
    assert cause is not None
    assert "with the effect standing, 4 times" in cause.why
    assert "no way to refuse" in cause.remedy


def test_books_in_which_nothing_is_written_are_asked_about() -> None:
    cause = cause_of(evidence(said(Operation.ACTION, "str", 0)))
    assert cause is not None
    assert "the books hold nothing of it" in cause.why
    assert "reaches this very partner" in cause.remedy
