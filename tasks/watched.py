"""Events of tasks, which a worker sends only while somebody watches.

Flower asks for them every five seconds as long as it runs, and says nothing when it goes; Celery
alone would go on sending to nobody. Whoever asks once, by hand, sees them for as long.
"""

import time
from typing import Any

from celery.worker.control import Panel, control_command

from orchestration.telemetry import log_of

PATIENCE_SECONDS = 20.0
"""Several times as long as Flower takes to ask again."""

_ENABLE: Any = Panel.data["enable_events"]


@control_command()
def enable_events(state: Any) -> Any:
    """Tell worker(s) to send task-related events for some seconds."""
    state.consumer.events_asked_for_at = time.monotonic()
    return _ENABLE(state)


def hush(consumer: Any) -> None:
    """Send no more of them if nobody has asked for a while; what was set at its start stays."""
    asked_at: float | None = getattr(consumer, "events_asked_for_at", None)
    if asked_at is None or time.monotonic() < asked_at + PATIENCE_SECONDS:
        return
    consumer.events_asked_for_at = None
    if consumer.event_dispatcher is not None:
        consumer.event_dispatcher.groups.discard("task")
        log_of("node").info("sends no more events of tasks, since nobody watches")
