"""Strand: a call that can be held in its middle and let go on later, or never.

The call is real code that knows nothing of it, several frames deep in an agent or in a sweep, so it
needs a stack of its own. A thread is one, and costs nothing outside the standard library. Only one
of all threads ever runs: whoever resumes a strand waits until it is held again or has ended. So the
order of all that happens is the order in which the owner resumes, and a run can be repeated.
"""

import threading
from collections.abc import Callable


class SimulatedCrash(BaseException):
    """The process is dead. Nobody may catch this but who simulates it."""


class Strand:
    """One call. Not to be resumed after it has ended."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._error: BaseException | None = None
        self._killed = False
        self.ended = False
        self._thread = threading.Thread(target=self._body, name="strand", daemon=True)
        self._thread.start()

    def _body(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self._call()
        except SimulatedCrash:
            pass
        except BaseException as error:  # noqa: BLE001 - handed over to the owner
            self._error = error
        self.ended = True
        self._back.release()

    def resume(self) -> bool:
        """Run until the call is held or has ended; tell which, and raise what it raised."""
        self._go.release()
        self._back.acquire()
        if self.ended:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self.ended

    def hold(self) -> None:
        """Stop here, inside the call, until somebody resumes it; raise if it was killed."""
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise SimulatedCrash

    def kill(self) -> None:
        """End a call that is held, at the place where it is."""
        if not self.ended:
            self._killed = True
            self.resume()
