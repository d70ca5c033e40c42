from datetime import timedelta

from orchestration import RetryPolicy, Step, Workflow, sequence
from orchestration.contract import AgentContract
from tasks.proof.plans import Plan
from tasks.proof.scenes import scenes

CONTRACTS = {
    "good": AgentContract(name="good", idempotent=True, compensation=True),
    "last": AgentContract(name="last", idempotent=True),
}
PLAN = Plan(
    Workflow(
        "plan",
        version=1,
        deadline=timedelta(hours=1),
        steps=sequence(
            Step("a", agent="good", retry=RetryPolicy(max_attempts=2)),
            Step("p", agent="last", pivot=True),
            Step("z", agent="last", retry=RetryPolicy(max_attempts=1)),
        ),
    ),
    CONTRACTS,
)
FORCED = {scene.name: dict(scene.forced) for scene in scenes(PLAN)}


def test_in_the_first_scene_nothing_is_forced() -> None:
    assert next(iter(FORCED.values())) == {}


def test_every_step_is_refused_once_and_loses_each_kind_of_message() -> None:
    for step in "apz":
        for fault in ("refused", "lost", "late", "reply-lost"):
            assert {f"partner action */{step} 0": fault} in FORCED.values()


def test_a_reply_that_is_always_lost_is_lost_in_every_attempt() -> None:
    assert FORCED["a reply-lost always"] == {
        "partner action */a 0": "reply-lost",
        "partner action */a 1": "reply-lost",
    }
    assert "z reply-lost always" not in FORCED


def test_a_saga_turns_back_at_its_last_step_that_can_and_no_later() -> None:
    assert FORCED["a late, then back"]["partner action */p 0"] == "refused"
    assert not any("partner action */z 0" in f for name, f in FORCED.items() if name[0] == "a")


def test_only_what_can_be_undone_is_disturbed_while_it_is_undone() -> None:
    undoing = {s for forced in FORCED.values() for s in forced if "compensation" in s}
    assert undoing == {"partner compensation */a 0"}
