"""Chance that can be repeated: every draw has a place of its own and depends on nothing else.

A draw is a hash of the seed and of the name of the place, so leaving out one fault, one saga or one
step shifts no other draw. That is what makes a failing run small.
"""

import hashlib
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

Option = TypeVar("Option")


class Dice:
    """Draws for one seed. ``site`` names the place; the same place gives the same draw."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _digest(self, site: str) -> bytes:
        return hashlib.blake2b(f"{self.seed}/{site}".encode(), digest_size=16).digest()

    def roll(self, site: str) -> float:
        """Return a number in [0, 1)."""
        return int.from_bytes(self._digest(site)[:7]) / 2**56

    def below(self, site: str, bound: int) -> int:
        """Return a whole number from 0 to ``bound - 1``."""
        return int.from_bytes(self._digest(site)[:7]) % bound

    def pick(self, site: str, options: Sequence[Option]) -> Option:
        """Return one of ``options``."""
        return options[self.below(site, len(options))]

    def between(self, site: str, low: timedelta, high: timedelta) -> timedelta:
        """Return a duration; short ones are as likely as long ones on a logarithmic scale."""
        seconds = low.total_seconds(), high.total_seconds()
        least, most = (math.log(value) for value in seconds)
        return timedelta(seconds=math.exp(least + (most - least) * self.roll(site)))

    def identity(self, site: str) -> UUID:
        """Return a UUID."""
        return UUID(bytes=self._digest(site), version=4)
