"""Handle: what the caller of ``start`` holds. It reads SQL; no Celery result backend is needed."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from models.states import SAGA_TERMINAL, SagaState
from orchestration import views
from orchestration.store import Store

FIRST_LOOK_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class SagaResult:
    """How a saga ended: its state, the results of its steps, and why it turned back, if it did."""

    state: SagaState
    results: dict[str, Any]
    abort: dict[str, Any] | None


class Handle:
    """One saga, seen from outside. ``created`` is false when its key had started it before."""

    def __init__(self, store: Store, saga_id: UUID, *, created: bool = True) -> None:
        self.store = store
        self.saga_id = saga_id
        self.created = created
        self.unsent: Callable[[], None] | None = None
        """Sends what nobody will send by himself after the caller's commit."""

    def publish(self) -> None:
        """Send the first messages, after the commit of the ``connection`` that was given to start.

        Needed only where a commit tells nobody of itself: with a connection of the DB-API or of
        SQLAlchemy Core. If it is forgotten, the supervisor sends them some seconds later. Too
        early, twice or after a rollback it does no harm: an agent that finds no step drops them.
        """
        unsent, self.unsent = self.unsent, None
        if unsent is not None:
            unsent()

    def state(self) -> SagaState:
        """Return the saga's present state; ``NotFoundError`` if its start was rolled back."""
        with self.store.reading() as connection:
            return views.saga_state(connection, self.saga_id)

    def result(self) -> SagaResult:
        """Return where the saga stands now."""
        with self.store.reading() as connection:
            state, abort = views.saga_end(connection, self.saga_id)
            results = self.store.results_of(connection, self.saga_id)
        return SagaResult(state=state, results=results, abort=abort)

    def wait(self, timeout: timedelta | float) -> SagaResult:
        """Wait until the saga has ended and return how; raise ``TimeoutError`` if it does not.

        ``timeout`` is a duration, or seconds. A halted saga has not ended.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        end = time.monotonic() + seconds
        pause = FIRST_LOOK_SECONDS
        while (state := self.state()) not in SAGA_TERMINAL:
            left = end - time.monotonic()
            if left <= 0:
                msg = f"saga {self.saga_id} is {state} after {seconds:g} s"
                raise TimeoutError(msg)
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
        return self.result()

    def __repr__(self) -> str:
        """Show the saga's id."""
        return f"Handle({self.saga_id})"
