"""What an agent can say: the answers of a probe or a close, and the signals it may raise.

Two questions are kept apart: did the effect take place, and is it worth trying again. An ordinary
exception answers neither, so it is treated as an outcome that is not known.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True)
class Applied:
    """The remote service has the effect under this key."""

    result: Any = None


@dataclass(frozen=True)
class Absent:
    """The remote service knows no such key (yet)."""


@dataclass(frozen=True)
class Pending:
    """The remote service accepted the request and still works on it."""


@dataclass(frozen=True)
class Rejected:
    """The remote service documents, for this very answer, that no effect happened or ever will."""

    reason: str = ""


@dataclass(frozen=True)
class Conflict:
    """The key exists with other parameters: it no longer identifies our operation."""

    reason: str = ""


@dataclass(frozen=True)
class Unclear:
    """The remote service could not be asked, or its answer says nothing."""

    reason: str = ""


@dataclass(frozen=True)
class Closed:
    """The key is closed: from now on it can never take effect, and it has not until now."""


Answer = Applied | Absent | Pending | Rejected | Conflict | Unclear | Closed


class RetryLater(Exception):  # noqa: N818 - a deliberate signal, not an error
    """This attempt certainly had no effect; try again, after ``delay`` if one is given.

    It does not count as a failed attempt: a remote that is busy is not a remote that is broken.
    """

    def __init__(self, reason: str, delay: timedelta | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class PermanentFailure(Exception):  # noqa: N818 - a deliberate signal, not an error
    """This attempt certainly had no effect, and trying again cannot change that."""


class OutcomeUnknown(Exception):  # noqa: N818 - a deliberate signal, not an error
    """The request may have been sent and may have taken effect."""
