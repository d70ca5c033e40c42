"""Failpoints: the places between two durable effects where a process may die, by name.

In production ``reach`` does nothing. Where ``ATALAIA_FAILPOINTS`` is set, or a simulation installs
a handler, the process crashes, stops, fails or waits there, so that every crash can be tried.

========  ==========================================================================
point     reached when
========  ==========================================================================
``p0``    a start is committed and nothing is published
``p1``    what an event makes of a saga is written and not yet committed
          (where nothing is locked: it is decided and not yet written)
``p2``    it is committed and nothing is published
``p3``    a message is delivered and no lease is taken
``p4``    a lease is written, and not yet committed (on PostgreSQL: just committed)
``p5``    the lease, the send marker, is committed and nothing is sent
``p6``    the remote service has answered and its client has not returned
``p7``    the agent has returned and nothing is reported
``p8``    the report is committed, with what follows, and published
``p9``    everything is done and the message is not acknowledged
========  ==========================================================================

To arm one, put a file with the point's name into the directory that ``ATALAIA_FAILPOINTS`` names.
It holds ``crash`` (SIGKILL), ``stop`` (SIGSTOP), ``error`` or ``delay SECONDS``. Of all processes
that share the directory the first to arrive takes the file away and acts on it: each fires once.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

POINTS = tuple(f"p{number}" for number in range(10))
VARIABLE = "ATALAIA_FAILPOINTS"

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


def armed_in(directory: Path) -> Handler:
    """Return the handler that acts on the files in ``directory``."""

    def handle(point: str) -> None:
        armed = directory / point
        try:
            action, _, seconds = armed.read_text().strip().partition(" ")
            armed.unlink()
        except FileNotFoundError:
            return
        _act(point, action, float(seconds or 0))

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
            msg = f"failpoint {point}: {action}"
            raise FailpointError(msg)


_handler: Handler | None = (
    armed_in(Path(os.environ[VARIABLE])) if os.environ.get(VARIABLE) else None
)
