"""Failpoints: the places between two durable effects where a process may die, by name.

In production ``reach`` does nothing. Where ``ATALAIA_FAILPOINTS`` is set, or a simulation installs
a handler, the process crashes, stops, fails or waits there, so that every crash can be tried.

========  ==========================================================================
point     reached when
========  ==========================================================================
``p0``    a start is committed and nothing is published
``p1``    what an event makes of a saga is written and not yet committed
``p2``    it is committed and nothing is published
``p3``    a message is delivered and no lease is taken
``p4``    a lease is written and not yet committed
``p5``    the lease, the send marker, is committed and nothing is sent
``p6``    the remote service has answered and its client has not returned
``p7``    the agent has returned and nothing is reported
``p8``    the report is committed, with what follows, and published
``p9``    everything is done and the message is not acknowledged
========  ==========================================================================

Format: ``p5=crash,p7=delay:0.5@2``: at the first hit of p5 crash (SIGKILL), at the second of p7
wait half a second. Actions: ``crash``, ``stop`` (SIGSTOP), ``error``, ``delay:SECONDS``. Each fires
once.
"""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable

from orchestration.errors import ConfigurationError

POINTS = tuple(f"p{number}" for number in range(10))
VARIABLE = "ATALAIA_FAILPOINTS"
_FORM = re.compile(r"(p\d)=(crash|stop|error|delay:([0-9.]+))(?:@(\d+))?")

Handler = Callable[[str], None]


class FailpointError(RuntimeError):
    """An error that was asked for."""


def install(handler: Handler | None) -> None:
    """Call ``handler`` with the name of every point that is reached; ``None``: nobody."""
    global _handler  # noqa: PLW0603 - one hook for a whole process, like a signal handler
    _handler = handler


def reach(point: str) -> None:
    """Say that execution has come to ``point``."""
    if _handler is not None:
        _handler(point)


def from_environment(text: str) -> Handler | None:
    """Return the handler that ``text`` describes; raise ``ConfigurationError`` if it does not."""
    if not text:
        return None
    wanted: dict[tuple[str, int], tuple[str, float]] = {}
    for part in text.split(","):
        match = _FORM.fullmatch(part.strip())
        if match is None:
            msg = f"{VARIABLE}: {part!r} is not like p5=crash or p7=delay:0.5@2"
            raise ConfigurationError(msg)
        point, action, seconds, hit = match.groups()
        wanted[point, int(hit or 1)] = action.partition(":")[0], float(seconds or 0)
    hits: Counter[str] = Counter()

    def handle(point: str) -> None:
        hits[point] += 1
        if found := wanted.get((point, hits[point])):
            _act(point, *found)

    return handle


def _act(point: str, action: str, seconds: float) -> None:
    match action:
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "delay":
            time.sleep(seconds)
        case _:
            msg = f"failpoint {point}"
            raise FailpointError(msg)


_handler: Handler | None = from_environment(os.environ.get(VARIABLE, ""))
