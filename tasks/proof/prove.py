"""Proving one workflow: every crash in many scenes, then storms, and a finding where it went wrong.

Schedules are tried in the order of their size, so the first that shows something is the smallest.
"""

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context

from tasks.proof.asked import Asked
from tasks.proof.findings import BROKEN, Finding, Judge
from tasks.proof.invariants import Violation
from tasks.proof.portion import Portion, Sighting, Tried, try_elsewhere, try_portion
from tasks.proof.regression import shrink
from tasks.proof.scenes import scenes
from tasks.proof.trial import ASKED, STORM, Subject, Trial, halted, unfinished

Progress = Callable[[str, int, int], None]
"""(what is tried, how many of them, out of how many)"""
ALONE = ("s0",)
REPLAYS = 8
"""So many sightings of one kind are looked into, if the first do not show it again."""
MANY = 12
"""So many scenes are worth further processes."""


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


class Prover:
    """Tries one subject."""

    def __init__(
        self,
        subject: Subject,
        progress: Progress = lambda *_: None,
        *,
        asked: Asked | None = None,
        processes: int = 1,
    ) -> None:
        """``asked``: what other processes are to make the same subject of."""
        self.subject = subject
        self.asked = asked
        self.processes = processes
        self.trial = Trial(subject)
        self.progress = progress
        self.proof = Proof(subject)
        self.scenes = list(scenes(subject.plan))

    def prove(self, seeds: Sequence[int], *, quick: bool = False) -> Proof:
        """Try everything, until something is found."""
        proof = self.proof
        for sightings in self._stages(seeds, quick=quick):
            proof.wire = self.trial.tells or self.subject.own is None
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
        yield self._level(0, 1, crashes=1)
        yield self._level(1, None, crashes=0)
        if not quick:
            yield self._level(1, None, crashes=1)
            yield self._level(0, 1, crashes=2)
        yield list(self._storms(seeds))

    def _plain(self) -> Iterator[Sighting]:
        """Yield why a saga does not even complete when all is well."""
        seen = Sighting(Violation("plain", "", "", ""), ALONE)
        outcome = seen.replay(self.trial)
        self.proof.by_crashes[0] += 1
        for row in unfinished(outcome):
            abort = row.abort or {}
            asked = [(i.path, i.message) for i in outcome.record.rows.incidents]
            step, why = next(iter(asked), (abort.get("step") or "", abort.get("message", "")))
            yield replace(seen, violation=Violation("plain", str(row.id), step, why))

    def _level(self, first: int, last: int | None, crashes: int) -> list[Sighting]:
        """Try the scenes from ``first`` to before ``last``, each with so many crashes."""
        found: list[Sighting] = []
        words = {0: "no crash", 1: "one crash"}.get(crashes, f"{crashes} crashes")
        numbers = range(len(self.scenes))[first:last]
        for done, part in enumerate(self._tried(numbers, crashes)):
            self.progress(words, done, len(numbers))
            self.proof.by_crashes[crashes] += part.schedules
            self.proof.halted += part.halted
            found += part.sightings
        return found

    def _tried(self, numbers: Sequence[int], crashes: int) -> Iterator[Tried]:
        """Try scenes, in this process or, if they are many, in as many as there are processors."""
        one = Portion(tells=self.trial.tells, crashes=crashes, number=0)
        portions = [replace(one, number=number) for number in numbers]
        if self.asked is None or self.processes == 1 or not crashes or len(portions) < MANY:
            yield from (try_portion(self.trial, portion) for portion in portions)
            return
        with ProcessPoolExecutor(
            self.processes,
            mp_context=get_context("spawn"),
            initializer=signal.signal,
            initargs=(signal.SIGINT, signal.SIG_IGN),  # Ctrl-C is for the first process only.
        ) as pool:
            yield from pool.map(partial(try_elsewhere, self.asked), portions)

    def _storms(self, seeds: Sequence[int]) -> Iterator[Sighting]:
        for number, seed in enumerate(seeds):
            self.progress("storms", number, len(seeds))
            outcome = self.trial.run(seed)
            self.proof.storms += len(STORM)
            self.proof.halted += halted(outcome)
            if outcome.violations:
                case = shrink(self.trial, outcome)
                yield Sighting(
                    outcome.violations[0], case.sagas, dict(case.script), seed=seed, calm_at=None
                )
                return

    # --- from what was seen to what is told ------------------------------------------------------

    def _findings(self, sightings: Sequence[Sighting]) -> list[Finding]:
        """Return one finding for each thing that is wrong with a step."""
        found: dict[tuple[str, str], Finding] = {}
        tried: Counter[tuple[str, str]] = Counter()
        for sighting in sorted(sightings, key=_size):
            seen = sighting.violation.invariant, sighting.violation.step
            tried[seen] += 1
            if tried[seen] > REPLAYS:
                continue
            finding = self._look(sighting)
            if finding is not None:
                tried[seen] += REPLAYS
                found.setdefault((finding.kind, finding.step), finding)
        named = {step for kind, step in found if kind != BROKEN}
        telling = [f for f in found.values() if f.kind != BROKEN or f.step not in named]
        return telling or [Finding.unseen(sightings[0].violation)]

    def _look(self, sighting: Sighting) -> Finding | None:
        """Return what a replay shows, of the saga alone or among others, if any does."""
        for again in filter(None, (sighting, sighting.crowd)):
            violations = again.replay(self.trial).violations
            if sighting.violation.invariant == "plain":
                violations = [sighting.violation]
            shown = [v for v in violations if v.saga_id]
            if shown:
                nearest = max(shown, key=partial(_likeness, sighting.violation))
                return Judge(self.trial, sighting.script).finding(nearest)
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
                judge = Judge(self.trial, there.script)
                finding = judge.refused(finding, there.violation)
            found.append(finding)
        return found


def _size(sighting: Sighting) -> tuple[bool, int, bool]:
    """Return how hard a sighting is to follow: a crash right after the effect is the easiest."""
    asked = sighting.violation.invariant == ASKED
    return asked, len(sighting.script), "crash@p6" not in sighting.script.values()


def _likeness(one: Violation, other: Violation) -> tuple[bool, bool]:
    """Return how much two violations have in common; what is first among equals stays first."""
    return one.saga_id == other.saga_id, one.invariant == other.invariant
