"""The faults: which there are, where each can strike, and which strike in one run.

A fault is a word such as ``crash@p5``: what happens, and at which boundary. Which fault strikes is
asked at a site, whose name says where in the run one is (``call s0/b action 1``). Either the dice
answer, or a script does that names each site and its fault; a run that the dice made is repeated by
the script of the faults that struck in it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

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
        "invalid", "declined",
    ),
    "partner compensation": ("busy", "refused", "lost", "late", "reply-lost", "error-before"),
    "partner probe": ("lost", "lagging", "unclear", "conflict", "rejected"),
    "partner close": ("lost", "reply-lost", "unclear", "late"),
    "person": ("cancel",),
}  # fmt: skip
"""By role: every fault that can strike there."""

HOW_OFTEN: dict[str, float] = {
    "client": 0.1,
    "sweep": 0.15,
    "broker": 0.02,
    "person": 0.12,
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


@dataclass
class Faults:
    """The faults of one run. ``script`` names them; without one the dice do, at ``strength``."""

    dice: Dice
    strength: float = 1.0
    script: Mapping[str, str] | None = None
    struck: dict[str, str] = field(default_factory=dict)
    cells: Counter[str] = field(default_factory=Counter)
    over: bool = False
    """Nothing strikes any more."""
    asked: dict[str, str] = field(default_factory=dict)
    """Every site that was asked about, and its role."""

    def at(self, role: str, site: str) -> str:
        """Return the fault that strikes at ``site``, or an empty text."""
        self.asked[site] = role
        if self.over and self.script is None:
            return ""
        if self.script is not None:
            fault = self.script.get(site, "")
        elif self.dice.roll(site) < HOW_OFTEN[role] * self.strength:
            fault = self.dice.pick(f"{site} which", FAULTS[role])
        else:
            fault = ""
        if fault:
            self.struck[site] = fault
        return fault

    def hit(self, role: str, what: str) -> None:
        """Count a cell of the coverage table as reached."""
        self.cells[f"{role} {what}"] += 1
