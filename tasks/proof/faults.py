"""The faults: which there are, where each can strike, and which strike in one run.

A fault is a word such as ``crash@p5``: what happens, and at which boundary. Which fault strikes is
asked at a site, whose name says where in the run one is (``call s0/b action 1``). Either the dice
answer, or a script does that names each site and its fault; a run that the dice made is repeated by
the script of the faults that struck in it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tasks.proof.dice import Dice

ATTEMPT_POINTS = ("p3", "p5", "send", "p6", "p7", "p2", "p8", "p9")
QUESTION_POINTS = ("p3", "send", "p6", "p7", "p2", "p9")
INSIDE_A_TRANSACTION = ("p4", "p1")
"""A process that stops there holds its locks until the database gives it up: as a lost commit."""


def _struck(kinds: tuple[str, ...], points: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{kind}@{point}" for point in points for kind in kinds)


def _process(points: tuple[str, ...], inside: tuple[str, ...]) -> tuple[str, ...]:
    stopping = ("crash", "die", "error", "pause")
    return (
        *_struck(stopping, points),
        *_struck(("crash", "die", "commit-kept", "commit-lost"), inside),
        *_struck(("outage",), ("p3", "p7")),
        *_struck(("freeze",), ("p3", "p6", "p7")),
    )


FAULTS: dict[str, tuple[str, ...]] = {
    "client": ("crash@p0", "commit-kept@p0", "commit-lost@p0"),
    "action": (*_process(ATTEMPT_POINTS, INSIDE_A_TRANSACTION), "clock@p5"),
    "compensation": (*_process(ATTEMPT_POINTS, INSIDE_A_TRANSACTION), "clock@p5"),
    "probe": _process(QUESTION_POINTS, ("p1",)),
    "close": _process(QUESTION_POINTS, ("p1",)),
    "sweep": (
        "crash@p1", "crash@p2", "pause@p2", "pause@between", "commit-kept@p1", "commit-lost@p1",
        "twice@beat", "none@beat",
    ),
    "publish action": ("lost", "twice", "late", "days"),
    "publish compensation": ("lost", "twice", "late", "days"),
    "publish probe": ("lost", "twice", "late", "days"),
    "publish close": ("lost", "twice", "late", "days"),
    "broker": ("flushed",),
    "partner action": (
        "busy", "refused", "lost", "late", "reply-lost", "error-after", "error-before", "pending",
        "invalid", "declined", "beyond",
    ),
    "partner compensation": ("busy", "refused", "lost", "late", "reply-lost", "error-before"),
    "partner probe": ("lost", "lagging", "unclear", "conflict", "rejected"),
    "partner close": ("lost", "reply-lost", "unclear", "late"),
    "person": ("cancel",),
    "database": ("restored",),
}  # fmt: skip
"""By role: every fault that can strike there."""

HOW_OFTEN: dict[str, float] = {
    "client": 0.1,
    "sweep": 0.15,
    "broker": 0.02,
    "person": 0.12,
    "database": 0.04,
    "partner action": 0.35,
    "partner compensation": 0.25,
    "partner probe": 0.3,
    "partner close": 0.3,
    "publish action": 0.12,
    "publish compensation": 0.12,
    "publish probe": 0.12,
    "publish close": 0.12,
    "action": 0.35,
    "compensation": 0.3,
    "probe": 0.3,
    "close": 0.3,
}
"""By role: how often a fault strikes in a storm of strength one."""


ALWAYS = ("partner action", "person")
"""What makes sagas ask, close and turn back; without it most other faults have no occasion."""
STRENGTHS = (0.0, 0.0, 0.3, 1.0, 1.5)
FAVOURED = 0.3
"""How often the fault that a run favours strikes where it can."""
EVERY = tuple((role, fault) for role, faults in FAULTS.items() for fault in faults)
CALM = MappingProxyType(dict.fromkeys(HOW_OFTEN, 0.0))


@dataclass(frozen=True)
class Weather:
    """What one run is like: how strong the storm is for each role, and which fault it favours.

    Each seed draws its own, so that some runs are calm, some are made of one kind of fault, and in
    some everything fails at once. The favourite goes round with the seed: as many seeds as there
    are faults favour each of them once.
    """

    strength: Mapping[str, float]
    favourite: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, dice: Dice) -> "Weather":
        """Return the weather of a seed."""
        if dice.roll("calm") < 0.3:  # noqa: PLR2004 - three runs in ten
            return cls(CALM)
        strength = {
            role: dice.pick(f"{role} strength", STRENGTHS[2:] if role in ALWAYS else STRENGTHS)
            for role in HOW_OFTEN
        }
        return cls(strength, EVERY[dice.seed % len(EVERY)])


@dataclass
class Faults:
    """The faults of one run. ``script`` names them; without one the dice do, by the weather."""

    dice: Dice
    script: Mapping[str, str] | None = None
    weather: Weather = field(init=False)
    struck: dict[str, str] = field(default_factory=dict)
    cells: Counter[str] = field(default_factory=Counter)
    over: bool = False
    """Nothing strikes any more."""
    asked: dict[str, str] = field(default_factory=dict)
    """Every site that was asked about, and its role."""

    def __post_init__(self) -> None:
        """Look at the weather."""
        self.weather = Weather.of(self.dice)

    def at(self, role: str, site: str) -> str:
        """Return the fault that strikes at ``site``, or an empty text."""
        self.asked[site] = role
        if self.script is not None:
            fault = self.script.get(site, "")
        else:
            fault = "" if self.over else self._drawn(role, site)
        if fault:
            self.struck[site] = fault
        return fault

    def _drawn(self, role: str, site: str) -> str:
        favourite, fault = self.weather.favourite
        if role == favourite and self.dice.roll(f"{site} favourite") < FAVOURED:
            return fault
        if self.dice.roll(site) < HOW_OFTEN[role] * self.weather.strength[role]:
            return self.dice.pick(f"{site} which", FAULTS[role])
        return ""

    def hit(self, role: str, what: str) -> None:
        """Count a cell of the coverage table as reached."""
        self.cells[f"{role} {what}"] += 1
