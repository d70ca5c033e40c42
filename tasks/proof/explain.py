"""From a run that shows what must never be to a sentence about it, and to what should be changed.

What is wrong is read off the books; which declaration is to blame, off what the user's own agents
said and what the books said at that moment. The first cause that fits is told.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from pydantic import ValidationError

from models.states import Operation
from orchestration.contract import MARGIN, AgentContract
from orchestration.definition import Step
from tasks.agent import Agent
from tasks.printing import duration
from tasks.proof.invariants import Violation
from tasks.proof.own import Said
from tasks.proof.record import Effect

NO_EFFECT = frozenset({"RetryLater", "PermanentFailure"})
REPORT = "this is a mistake in Atalaia itself: please report it, with the timeline"


@dataclass(frozen=True)
class Evidence:
    """What there is to go by: the step, what was declared, what was said, and the books."""

    step: Step
    contract: AgentContract
    said: list[Said]
    effects: list[Effect]
    agents: Mapping[str, Agent]

    @property
    def agent(self) -> str:
        """The agent, as it is named in a sentence."""
        return f"agent {self.contract.name!r}"

    def of(self, operation: Operation) -> list[Said]:
        """Return what one of its functions said."""
        return [said for said in self.said if said.operation is operation]

    def unfit(self, said: Said) -> bool:
        """Tell whether what was returned is not what the agent declares."""
        try:
            self.agents[self.contract.name].result_to_json(said.value)
        except ValidationError:
            return bool(said.word) and not said.text.startswith("raised ")
        return False


@dataclass(frozen=True)
class Cause:
    """Why, and what to change."""

    why: str
    remedy: str


def kind_of(violation: Violation, standing: int) -> str:
    """Return in one word what is wrong."""
    match violation.invariant:
        case "INV-1":
            return "doubled"
        case "INV-2":
            return "doubled" if standing > 1 else "missing"
        case "INV-3":
            return "orphaned"
        case "INV-11":
            return "stuck"
        case "plain":
            return "fails"
        case "undone twice" | "undeclared":
            return violation.invariant
    return "broken"


def cause_of(evidence: Evidence) -> Cause | None:
    """Return the first cause that fits what the user's own agents said."""
    for look in CAUSES:
        for cause in look(evidence):
            return cause
    return None


def _two_in_one(evidence: Evidence) -> Iterator[Cause]:
    for said in evidence.said:
        if len(said.made) > 1:
            yield Cause(
                f"one call of {evidence.agent} made {len(said.made)} effects",
                "let an agent have one effect: make a step of its own of the other, so that each "
                "has a key and a compensation",
            )


def _undeclared(evidence: Evidence) -> Iterator[Cause]:
    if not evidence.contract.effect and evidence.effects:
        yield Cause(
            f"{evidence.agent} is declared effect=False, and the partner acted",
            "leave effect=False out, and declare how a doubt is settled: idempotent=True, a probe, "
            "a close, a compensation",
        )


def _own_key(evidence: Evidence) -> Iterator[Cause]:
    for said in evidence.of(Operation.ACTION):
        for effect in said.made:
            if effect.key != said.key:
                yield Cause(
                    f"{evidence.agent} sends a key of its own making ({effect.key}) and not "
                    f"call.key ({said.key}), so nobody can recognise the request when it is "
                    "repeated, asked about or undone",
                    "send call.key, unchanged, in every attempt",
                )


def _denied(evidence: Evidence) -> Iterator[Cause]:
    for said in evidence.of(Operation.ACTION):
        certain = said.word in NO_EFFECT | set(evidence.step.retry.non_retryable_errors)
        if certain and said.made:
            yield Cause(
                f"{evidence.agent} raised {said.word}, which says that certainly nothing "
                "happened, and the partner had acted",
                "raise OutcomeUnknown, or let the error pass, whenever a request may have been "
                "sent: a time-out is not a refusal",
            )


def _repeated(evidence: Evidence) -> Iterator[Cause]:
    first: dict[str, Said] = {}
    for said in evidence.of(Operation.ACTION):
        for effect in said.made:
            earlier = first.setdefault(effect.key, said)
            if earlier is not said and evidence.contract.idempotent:
                yield _forgotten(evidence, said.at - earlier.at)


def _forgotten(evidence: Evidence, age: timedelta) -> Cause:
    after = duration(age)
    retention = evidence.contract.key_retention
    remedy = (
        f"declare for how long the partner really remembers a key: a key_retention below {after}; "
        "or have it remember keys for longer"
    )
    if retention is None:
        claim = "idempotent=True without a key_retention, so for ever"
        if age < MARGIN:
            remedy = (
                "let the partner act once for one key; if it does not look at keys, leave "
                "idempotent=True out and give the agent a close, or a compensation that closes the "
                "key"
            )
    else:
        claim = f"idempotent=True with key_retention={duration(retention)}"
    why = (
        f"the partner acted again for the same key, {after} after the first time, and "
        f"{evidence.agent} is declared {claim}"
    )
    return Cause(why, remedy)


def _closed_in_vain(evidence: Evidence) -> Iterator[Cause]:
    closed: dict[str, Said] = {}
    for said in evidence.said:
        if said.operation is Operation.CLOSE and said.word == "Closed":
            closed[said.key] = said
        for effect in said.made if said.operation is Operation.ACTION else []:
            if effect.key in closed:
                yield Cause(
                    f"the close of {evidence.agent} answered Closed, and {_later(said, closed)} a "
                    "request under that key took effect all the same",
                    "return Closed only if the partner refuses the key from then on, also a "
                    "request that is still on its way; without that, leave the close out",
                )


def _later(said: Said, closed: dict[str, Said]) -> str:
    return f"{duration(said.at - closed[said.key].at)} later"


def _undone_in_vain(evidence: Evidence) -> Iterator[Cause]:
    done = [s for s in evidence.of(Operation.COMPENSATION) if s.word == "NoneType"]
    for said in done:
        if said.standing:
            yield Cause(
                f"the compensation of {evidence.agent} returned, and the effect still stands",
                "undo by call.action_key whatever stands under it, also where the result is None, "
                "and return only when it is undone",
            )
    closes = evidence.contract.compensation_closes_key
    for said in evidence.of(Operation.ACTION):
        if closes and said.made and done and said.at > done[0].at:
            yield Cause(
                f"a request that was on its way took effect {duration(said.at - done[0].at)} "
                f"after the compensation of {evidence.agent}, which is declared closes_key=True",
                "let the compensation also close the key at the partner, whether or not there is "
                "anything to undo; or leave closes_key=True out",
            )


def _undone_twice(evidence: Evidence) -> Iterator[Cause]:
    times = Counter(id(effect) for said in evidence.said for effect in said.undone)
    if times and max(times.values()) > 1:
        yield Cause(
            f"the compensation of {evidence.agent} undid one effect {max(times.values())} times",
            "send the compensation's own call.key along and let the partner undo once for it, or "
            "look first whether anything stands: a compensation is called again after a crash",
        )


def _cannot_undo(evidence: Evidence) -> Iterator[Cause]:
    said = evidence.of(Operation.COMPENSATION)
    failed = [one for one in said if one.text.startswith("raised ") and not one.undone]
    if len(failed) > evidence.step.retry.max_attempts:
        last = failed[-1]
        what = "with nothing left to undo" if not last.standing else "with the effect standing"
        yield Cause(
            f"the compensation of {evidence.agent} {last.text}, {what}, {len(failed)} times",
            "return without an error when there is nothing to undo: it may have been undone "
            "already, or never have happened"
            if not last.standing
            else "a compensation has no way to refuse: undo, or repeat until it is undone",
        )


def _asked_in_vain(evidence: Evidence) -> Iterator[Cause]:
    first: dict[str, Said] = {}
    denied: list[tuple[timedelta, Said]] = []
    for said in evidence.said:
        for effect in said.made:
            first.setdefault(effect.key, said)
        made = first.get(said.key)
        denies = said.word in {"Absent", "Rejected", "Closed"}
        if said.operation in {Operation.PROBE, Operation.CLOSE} and made and denies:
            denied.append((said.at - made.at, said))
        if said.operation is Operation.PROBE and said.word == "Applied" and not first:
            yield Cause(
                f"the probe of {evidence.agent} answered Applied, and nothing had happened",
                "return Applied only for what the partner has done under call.key",
            )
    if denied:
        age, said = denied[-1]
        yield _lagging(evidence, said, age)


def _lagging(evidence: Evidence, said: Said, age: timedelta) -> Cause:
    declared = evidence.contract.probe_staleness
    return Cause(
        f"the {said.operation} of {evidence.agent} answered {said.word} {duration(age)} after the "
        f"effect, and its probe_staleness is declared as {duration(declared)}",
        f"declare how far behind a probe's answer may be: @….probe(staleness=…), more than "
        f"{duration(age)}; or ask where the effects are written",
    )


def _does_not_fit(evidence: Evidence) -> Iterator[Cause]:
    for said in evidence.of(Operation.ACTION):
        if evidence.unfit(said):
            yield Cause(
                f"{evidence.agent} {said.text}, which does not fit the result that it declares",
                "let the function return what its annotation says: a result that does not fit is "
                "an effect of which nobody knows anything",
            )


def _not_in_the_books(evidence: Evidence) -> Iterator[Cause]:
    done = [said for said in evidence.of(Operation.ACTION) if not said.text.startswith("raised ")]
    if done and evidence.contract.effect and not evidence.effects:
        yield Cause(
            f"{evidence.agent} {done[0].text or 'was called'}, and the books hold nothing of it",
            "see that the agent reaches this very partner, and that effects() gives call.saga_id "
            "and call.step as they were received",
        )


CAUSES: tuple[Callable[[Evidence], Iterator[Cause]], ...] = (
    _two_in_one, _undeclared, _own_key, _denied, _closed_in_vain, _undone_twice, _undone_in_vain,
    _repeated, _asked_in_vain, _cannot_undo, _does_not_fit,
    _not_in_the_books,
)  # fmt: skip
