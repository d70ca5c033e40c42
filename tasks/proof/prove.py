"""Proving one workflow: every crash in many scenes, then storms, and a finding where it went wrong.

Schedules are tried in the order of their size, so the first that shows something is the smallest.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from tasks.proof.dice import Dice
from tasks.proof.exhaustive import CALM, Scenario, explore
from tasks.proof.faults import Faults
from tasks.proof.findings import Finding, Judge
from tasks.proof.invariants import Violation
from tasks.proof.regression import Case, shrink
from tasks.proof.scenes import scenes
from tasks.proof.simulate import SAGAS, Outcome
from tasks.proof.trial import ASKED, Subject, Trial, unfinished

Progress = Callable[[str, int, int], None]
"""(what is tried, how many of them, out of how many)"""
ALONE = ("s0",)


@dataclass
class Proof:
    """What was tried, and what was found."""

    subject: Subject
    by_crashes: Counter[int] = field(default_factory=Counter)
    storms: int = 0
    findings: list[Finding] = field(default_factory=list)
    halted: int = 0
    """How many sagas were left to a person."""
    wire: bool = True
    """Whether requests and replies were lost, too."""

    @property
    def runs(self) -> int:
        """How many sagas were run."""
        return self.by_crashes.total() + self.storms


@dataclass(frozen=True)
class Sighting:
    """A violation, and how to see it again."""

    violation: Violation
    case: Case
    calm_at: timedelta | None = CALM
    crowd: Case | None = None
    """The same saga among the others with which it was seen."""

    def replay(self, trial: Trial, case: Case | None = None) -> Outcome:
        """Run it again."""
        case = case or self.case
        faults = Faults(Dice(case.seed), script=case.script)
        return trial.run(case.seed, faults=faults, sagas=case.sagas, calm_at=self.calm_at)


class Prover:
    """Tries one subject."""

    def __init__(self, subject: Subject, progress: Progress = lambda *_: None) -> None:
        self.subject = subject
        self.trial = Trial(subject)
        self.progress = progress
        self.proof = Proof(subject)
        self.scenes = list(scenes(subject.plan))

    def prove(self, seeds: Sequence[int], *, quick: bool = False) -> Proof:
        """Try everything, until something is found."""
        proof = self.proof
        for sightings in self._stages(seeds, quick=quick):
            proof.wire = self.trial.tells or self.subject.own is None
            proof.halted = self.trial.halted
            if self.subject.unsafe:
                proof.findings = self._refused(sightings)
                if all(finding.timeline for finding in proof.findings):
                    break
            elif sightings:
                proof.findings = self._findings(sightings)
                break
        return proof

    def _stages(self, seeds: Sequence[int], *, quick: bool) -> Iterator[list[Sighting]]:
        """Yield what each kind of schedule has shown, the smallest schedules first."""
        yield list(self._plain())
        yield self._level(self.scenes[:1], 1)
        yield self._level(self.scenes[1:], 0)
        if not quick:
            yield self._level(self.scenes[1:], 1)
            yield self._level(self.scenes[:1], 2)
        yield list(self._storms(seeds))

    def _plain(self) -> Iterator[Sighting]:
        """Yield why a saga does not even complete when all is well."""
        case = Case(seed=0, plan=self.subject.plan, sagas=ALONE)
        outcome = Sighting(Violation("", "", "", ""), case).replay(self.trial)
        self.proof.by_crashes[0] += 1
        for row in unfinished(outcome):
            abort = row.abort or {}
            asked = [(i.path, i.message) for i in outcome.record.rows.incidents]
            step, why = next(iter(asked), (abort.get("step") or "", abort.get("message", "")))
            yield Sighting(Violation("plain", str(row.id), step, why), case)

    def _level(self, tried: Sequence[Scenario], crashes: int) -> list[Sighting]:
        """Try each scene with so many crashes."""
        found: list[Sighting] = []
        self.trial.take()
        words = {0: "no crash", 1: "one crash"}.get(crashes, f"{crashes} crashes")
        for number, scene in enumerate(tried):
            self.progress(words, number, len(tried))
            count = explore(self.trial, replace(scene, crashes=crashes))
            self.proof.by_crashes[crashes] += count.by_crashes[crashes]
            for outcome in self.trial.take():
                for violation in outcome.violations:
                    found += self._alone(outcome, violation)
        return found

    def _alone(self, outcome: Outcome, violation: Violation) -> Iterator[Sighting]:
        """Yield a violation in a crowd as one of a single saga, whichever it is."""
        script = outcome.faults.script or {}
        crowd = Case(seed=0, plan=outcome.plan, sagas=outcome.sagas, script=script)
        known = outcome.labels.get(violation.saga_id)
        for name in (known,) if known else outcome.sagas:
            own = {site: fault for site, fault in script.items() if _is_of(name, site)}
            case = Case(seed=0, plan=outcome.plan, sagas=(name,), script=own)
            yield Sighting(violation, case, crowd=crowd if known else None)

    def _storms(self, seeds: Sequence[int]) -> Iterator[Sighting]:
        for number, seed in enumerate(seeds):
            self.progress("storms", number, len(seeds))
            outcome = self.trial.run(seed)
            self.proof.storms += len(SAGAS)
            if outcome.violations:
                first = outcome.violations[0]
                yield Sighting(first, shrink(self.trial, outcome), calm_at=None)
                return

    # --- from what was seen to what is told ------------------------------------------------------

    def _findings(self, sightings: Sequence[Sighting]) -> list[Finding]:
        """Return one finding for each thing that is wrong with a step."""
        found: dict[tuple[str, str], Finding] = {}
        tried: Counter[tuple[str, str]] = Counter()
        for sighting in sorted(sightings, key=_size):
            seen = sighting.violation.invariant, sighting.violation.step
            tried[seen] += 1
            if tried[seen] > len(SAGAS):
                continue
            finding = self._look(sighting)
            if finding is not None:
                tried[seen] += len(SAGAS)
                found.setdefault((finding.kind, finding.step), finding)
        return list(found.values()) or [Finding.unseen(sightings[0].violation)]

    def _look(self, sighting: Sighting) -> Finding | None:
        """Return what a replay shows, of the saga alone or among others, if any does."""
        for case in filter(None, (sighting.case, sighting.crowd)):
            violations = sighting.replay(self.trial, case).violations
            if sighting.violation.invariant == "plain":
                violations = [sighting.violation]
            shown = [v for v in violations if v.saga_id]
            same = [v for v in shown if v.invariant == sighting.violation.invariant]
            if shown:
                return Judge(self.trial, sighting.case.script).finding((same or shown)[0])
        return None

    def _refused(self, sightings: Sequence[Sighting]) -> list[Finding]:
        """Return a finding for each step that the rules refuse, with what would come of it."""
        known = {(finding.step, finding.rule): finding for finding in self.proof.findings}
        found = []
        for step, problem in self.subject.unsafe:
            finding = known.get((step, problem)) or Finding.of_rule(step, problem)
            seen = [s for s in sightings if s.violation.step == step]
            there = min(seen, key=_size, default=None)
            if there is not None and not finding.timeline:
                there.replay(self.trial)
                judge = Judge(self.trial, there.case.script)
                finding = judge.refused(finding, there.violation)
            found.append(finding)
        return found


def _size(sighting: Sighting) -> tuple[bool, int, bool]:
    """Return how hard a sighting is to follow: a crash right after the effect is the easiest."""
    script = sighting.case.script
    asked = sighting.violation.invariant == ASKED
    return asked, len(script), "crash@p6" not in script.values()


def _is_of(name: str, site: str) -> bool:
    return f" {name}/" in site or site.endswith(f" {name}")
