"""A portion of what is tried: one scene with so many crashes, in this process or in another one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache

from tasks.proof.asked import Asked
from tasks.proof.dice import Dice
from tasks.proof.exhaustive import CALM, explore
from tasks.proof.faults import Faults
from tasks.proof.invariants import Violation
from tasks.proof.progress import be_quiet
from tasks.proof.scenes import scenes
from tasks.proof.simulate import Outcome
from tasks.proof.trial import Trial


@dataclass(frozen=True)
class Sighting:
    """A violation, and how to see it again."""

    violation: Violation
    sagas: tuple[str, ...]
    script: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    calm_at: timedelta | None = CALM
    crowd: "Sighting | None" = None
    """The same saga among the others with which it was seen."""

    def replay(self, trial: Trial) -> Outcome:
        """Run it again."""
        faults = Faults(Dice(self.seed), script=self.script)
        return trial.run(self.seed, faults=faults, sagas=self.sagas, calm_at=self.calm_at)


@dataclass(frozen=True, kw_only=True)
class Portion:
    """One scene, by its number, and how often something crashes in it."""

    number: int
    crashes: int
    tells: bool
    """Whether the user's partner is known to say when a request comes in."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What came of it."""

    schedules: int
    halted: int
    sightings: list[Sighting]


def try_portion(trial: Trial, portion: Portion) -> Tried:
    """Try a portion."""
    scene = list(scenes(trial.subject.plan))[portion.number]
    trial.take()
    trial.tells = trial.tells or portion.tells
    before = trial.halted
    count = explore(trial, replace(scene, crashes=portion.crashes))
    return Tried(
        schedules=count.by_crashes[portion.crashes],
        halted=trial.halted - before,
        sightings=[
            sighting
            for outcome in trial.take()
            for violation in outcome.violations
            for sighting in _alone(outcome, violation)
        ],
    )


def try_elsewhere(asked: Asked, portion: Portion) -> Tried:
    """Try a portion in a process that was started for it."""
    return try_portion(_trial(asked), portion)


@cache
def _trial(asked: Asked) -> Trial:
    be_quiet()
    return Trial(asked.subject())


def _alone(outcome: Outcome, violation: Violation) -> Iterator[Sighting]:
    """Yield a violation in a crowd as one of a single saga, whichever it is."""
    script = dict(outcome.faults.script or {})
    known = outcome.labels.get(violation.saga_id)
    crowd = Sighting(violation, outcome.sagas, script) if known else None
    for name in (known,) if known else outcome.sagas:
        own = {site: fault for site, fault in script.items() if _is_of(name, site)}
        yield Sighting(violation, (name,), own, crowd=crowd)


def _is_of(name: str, site: str) -> bool:
    return f" {name}/" in site or site.endswith(f" {name}")
