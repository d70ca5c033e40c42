"""Beat as a thread of the supervisor's worker (``--with-beat``), in place of a process of its own.

It rings as beat does, and ends with its worker however that ends: Celery's own ``-B`` is a process
that would go on ringing. It keeps no file, so two can never be in each other's way; what is due is
due an interval after the start.
"""

from typing import Any

from celery.bootsteps import StartStopStep
from click import Option

from tasks.app import app


class Ringing(StartStopStep):
    """A step of a worker's start, for those that were told to ring."""

    conditional = True

    def __init__(self, parent: Any, *, with_beat: bool = False, **options: Any) -> None:
        super().__init__(parent, **options)
        self.enabled = with_beat

    def create(self, worker: Any) -> Any:
        """Return the thread."""
        from celery.beat import EmbeddedService, Scheduler  # noqa: PLC0415 - few workers ring

        return EmbeddedService(worker.app, thread=True, scheduler_cls=Scheduler)

    def stop(self, worker: Any) -> None:
        """Ring no more. A ring that a broker keeps waiting is not waited for."""
        del worker
        self.obj.service.stop()


app.user_options["worker"].add(
    Option(["--with-beat"], is_flag=True, help="Ring for the sweeps, too: beat, in a thread.")
)
app.steps["worker"].add(Ringing)
