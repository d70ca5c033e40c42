"""The one place where a test may sleep: between two looks at what another process does."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE = 0.02


def eventually(look: Callable[[], T], *, within: float, describe: str | Callable[[], str]) -> T:
    """Call ``look`` until it returns something true, and return that.

    Fails the test after ``within`` seconds, with ``describe`` (a sentence, or a function that
    writes one from what is there at the end) and what ``look`` returned last.
    """
    deadline = time.monotonic() + within
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            told = describe if isinstance(describe, str) else describe()
            raise AssertionError(f"not within {within} s: {told} (last seen: {seen!r})")
        time.sleep(_PAUSE)
