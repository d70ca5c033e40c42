"""What the database says of how things stand, as Prometheus reads it at ``/metrics``.

However many ask, the rows are read once in some seconds. What happens in workers and leaves no row
is shown by the workers themselves.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from orchestration import views
from orchestration.store import Store

KEPT_SECONDS = 5.0


class Metrics:
    """The text that is shown, kept for some seconds."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Rows(store))
        self.clock = clock
        self._reading = threading.Lock()
        self._text = b""
        self._read_at = float("-inf")

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format; whoever comes meanwhile waits for it."""
        with self._reading:
            if self.clock() >= self._read_at + KEPT_SECONDS:
                self._text = generate_latest(self.registry)
                self._read_at = self.clock()
            return self._text


class _Rows(Collector):
    """Reads the rows whenever it is asked."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def describe(self) -> Iterator[Metric]:
        """Name nothing beforehand: a registry would ask the database when it is made."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield every gauge."""
        with self.store.reading() as connection:
            found = views.gauges(connection, self.store)
        yield _gauge(
            "atalaia_sagas",
            "Sagas that have not ended.",
            ("workflow", "state"),
            found.sagas,
        )
        yield _gauge(
            "atalaia_steps",
            "Steps that are under way.",
            ("queue", "state"),
            found.steps,
        )
        yield _gauge(
            "atalaia_oldest_step_age_seconds",
            "Age of the oldest unresolved step in a state, since it was first to be done.",
            ("state",),
            {(state,): age for state, age in found.oldest_step.items()},
        )
        yield _gauge(
            "atalaia_queue_age_seconds",
            "How long the oldest step of a queue has waited for a worker.",
            ("queue",),
            {(queue,): age for queue, age in found.queue_age.items()},
        )
        yield _gauge(
            "atalaia_incidents_open",
            "Incidents that wait for somebody.",
            ("kind",),
            {(kind,): number for kind, number in found.incidents.items()},
        )
        yield _gauge(
            "atalaia_oldest_incident_age_seconds",
            "Age of the oldest open incident of a kind.",
            ("kind",),
            {(kind,): age for kind, age in found.oldest_incident.items()},
        )
        yield _gauge("atalaia_nodes", "Workers that are alive.", (), {(): found.nodes})
        swept = {} if found.last_sweep is None else {(): found.last_sweep}
        yield _gauge(
            "atalaia_last_sweep_age_seconds", "How long ago a sweep was finished.", (), swept
        )


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family
