import pytest

from tasks.proof.faults import FAULTS
from tasks.proof.words import strike_told, told


@pytest.mark.parametrize(
    ("site", "fault", "words"),
    [
        (
            "call s0/hotel action 1",
            "crash@p6",
            "the action of step 'hotel': the process dies after the partner has acted",
        ),
        ("partner probe s12/car 0", "lost", "the probe of step 'car': the request never arrives"),
        ("partner action s0/car 0", "refused", "the action of step 'car': the partner refuses"),
        (
            "call s0/car compensation 3 #2",
            "die@p5",
            "the compensation of step 'car': the whole machine dies with the lease taken",
        ),
        ("publish s0/car action 1", "twice", "the action of step 'car': its message is delivered"),
        ("cancel s0", "cancel", "a customer cancels"),
        ("sweep 12", "none@beat", "a sweep: no beat rings for a while"),
        (
            "start s0",
            "crash@p0",
            "the start: the process dies after the start is committed and before anything is sent",
        ),
    ],
)
def test_a_fault_is_told_with_the_call_that_it_befalls(site: str, fault: str, words: str) -> None:
    (phrase,) = told({site: fault})
    assert phrase.startswith(words)


def test_what_befalls_each_attempt_alike_is_told_once() -> None:
    assert len(told({f"partner action s0/car {n}": "lost" for n in range(3)})) == 1


@pytest.mark.parametrize(
    ("role", "fault"), [(role, fault) for role, faults in FAULTS.items() for fault in faults]
)
def test_every_fault_that_there_is_has_words(role: str, fault: str) -> None:
    kind, _, point = fault.partition("@")
    phrase = strike_told(f"{role} {fault}")
    assert phrase != f"{role}: {fault}"
    assert not phrase.startswith(f"{kind} ")
    assert not point or not phrase.endswith(f" {point}")
