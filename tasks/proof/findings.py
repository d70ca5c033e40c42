"""A finding: what is wrong, in the user's words, and the story of the run that shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from models.states import STEP_SETTLED
from orchestration.errors import NotFoundError
from tasks.proof.explain import REPORT, Cause, Evidence, cause_of, kind_of
from tasks.proof.invariants import Violation
from tasks.proof.trial import Trial
from tasks.proof.words import strike_told, told
from web.schema import SagaShown, TimelineEntryShown

BROKEN = "broken"
"""Something is wrong that has no other name; beside a finding with one it tells nothing new."""
HEADLINES = {
    "doubled": "the effect of step {step!r} is there more than once",
    "orphaned": "the effect of step {step!r} is left behind",
    "missing": "step {step!r} counts as done, and its effect is not there",
    "fails": "with all well, the saga is not completed, because of step {step!r}",
    "stuck": "the saga does not come to its end because of step {step!r}",
    "undone twice": "the effect of step {step!r} is undone more than once",
    "undeclared": "step {step!r} has an effect and says that it has none",
    "refused": "step {step!r} is declared in a way that is not safe",
    BROKEN: "something that must never be",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    kind: str
    step: str
    effect: str
    """Which effect stands in which final state."""
    crash: list[str]
    """What has to go wrong for it, in order; empty: nothing."""
    explanation: str
    remedy: str
    timeline: list[TimelineEntryShown]
    saga: SagaShown | None = None
    rule: str = ""
    """For a refused step: what the rules say of it."""

    @classmethod
    def of_rule(cls, step: str, rule: str) -> "Finding":
        """Return the finding that a step is refused, before any run shows why."""
        why, _, remedy = rule.partition("; ")
        return cls(
            kind="refused", step=step, effect="", crash=[], explanation=why, remedy=remedy,
            timeline=[], rule=rule,
        )  # fmt: skip

    @classmethod
    def unseen(cls, violation: Violation) -> "Finding":
        """Return the finding that something was wrong once, which no replay has shown again."""
        return cls(
            kind=BROKEN, step=violation.step, effect=violation.text, crash=[],
            explanation=str(violation), remedy=REPORT, timeline=[],
        )  # fmt: skip

    @property
    def headline(self) -> str:
        """What is wrong, in a sentence."""
        return HEADLINES[self.kind].format(step=self.step)

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "kind": self.kind,
            "step": self.step,
            "effect": self.effect,
            "crash": self.crash,
            "explanation": self.explanation,
            "remedy": self.remedy,
            "timeline": [entry.model_dump(mode="json") for entry in self.timeline],
        }


class Judge:
    """Explains the run that a trial has just ended."""

    def __init__(self, trial: Trial, script: Mapping[str, str]) -> None:
        self.trial = trial
        self.crash = told(script)

    def finding(self, violation: Violation) -> Finding:
        """Return what a violation means to the user."""
        saga = self.trial.shown(violation.saga_id)
        if not violation.step:
            violation = replace(violation, step=_unsettled(saga))
        standing = self._standing(violation)
        kind = kind_of(violation, standing)
        cause = self._cause(violation) or Cause(violation.text, REPORT)
        return Finding(
            kind=kind, step=violation.step, effect=_effect(kind, violation, standing, saga),
            crash=self.crash, explanation=cause.why, remedy=cause.remedy,
            timeline=self._timeline(saga), saga=saga,
        )  # fmt: skip

    def refused(self, finding: Finding, violation: Violation) -> Finding:
        """Return a finding about a rule, with a run that shows what it is good for."""
        try:
            saga = self.trial.shown(violation.saga_id)
        except NotFoundError:
            return finding
        standing = self._standing(violation)
        kind = kind_of(violation, standing)
        effect = _effect(kind, violation, standing, saga)
        if kind == BROKEN:
            effect = f"step {violation.step!r} waits for a person: {violation.text}"
        timeline = self._timeline(saga)
        return replace(finding, effect=effect, crash=self.crash, timeline=timeline, saga=saga)

    def _standing(self, violation: Violation) -> int:
        effects = self.trial.effects(violation.saga_id)
        return sum(e.step == violation.step and e.undone_at is None for e in effects)

    def _cause(self, violation: Violation) -> Cause | None:
        plan, own = self.trial.subject.plan, self.trial.subject.own
        if own is None:
            return None
        said = self.trial.said(violation.saga_id)
        effects = self.trial.effects(violation.saga_id)
        step = plan.workflow.by_name.get(violation.step)
        if step is not None:
            evidence = Evidence(
                step=step,
                contract=plan.contracts[step.agent],
                said=[one for one in said if one.step == step.name],
                effects=[one for one in effects if one.step == step.name],
                agents=own.agents,
            )
            if cause := cause_of(evidence):
                return cause
        return Cause(violation.text, "see the timeline for what the agent said and when")

    def _timeline(self, saga: SagaShown) -> list[TimelineEntryShown]:
        """Return the saga's own story, together with what befell it and what the partners did."""
        saga_id = str(saga.id)
        entries = list(saga.timeline)
        for effect in self.trial.effects(saga_id):
            text = f"acted under key {effect.key}"
            entries.append(_entry(effect.at, effect.step, "partner", text))
            if effect.undone_at is not None:
                text = f"undid what it did under key {effect.key}"
                entries.append(_entry(effect.undone_at, effect.step, "partner", text))
        entries += [
            _entry(strike.at, strike.step, "fault", strike_told(strike.what))
            for strike in self.trial.strikes(saga_id)
        ]
        for said in self.trial.said(saga_id):
            text = f"{said.operation} {said.text or 'was cut off'}"
            entries.append(_entry(said.at, said.step, "agent", text, said.attempt))
        return sorted(entries, key=lambda entry: entry.at)


def _entry(at: Any, step: str, verb: str, text: str, attempt: int = 0) -> TimelineEntryShown:
    return TimelineEntryShown(
        at=at, path=step, attempt=attempt, verb=verb, actor="", text=text, row=None
    )


def _unsettled(saga: SagaShown) -> str:
    """Return the step for which a saga waits."""
    waiting = [step.path for step in saga.steps if step.state not in STEP_SETTLED]
    return next(iter(waiting), "")


def _effect(kind: str, violation: Violation, standing: int, saga: SagaShown) -> str:
    """Return which effect stands in which state of the saga."""
    step, state = violation.step, saga.state
    match kind:
        case "doubled" if standing > 1:
            times = "twice" if standing == 2 else f"{standing} times"  # noqa: PLR2004 - a word
            return f"the saga is {state}, and the effect of step {step!r} stands {times}"
        case "orphaned":
            return f"the saga is {state}, and the effect of step {step!r} still stands"
        case "missing":
            return f"the saga is {state}, and step {step!r} has no effect that stands"
        case "stuck":
            return f"the saga is still {state}, and step {step!r} does not come to its end"
        case "fails":
            return f"the saga is {state}: {violation.text}"
    return violation.text
