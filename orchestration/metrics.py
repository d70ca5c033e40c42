"""Metrics: the closed list of what processes count, and the one place that they tell it to.

What can be read from the rows at any time is not counted but read (``views.gauges``). Here is what
happens and leaves no row, or none that is cheap to find. Nobody listens by default, and it costs
next to nothing then.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric, by the name and the words that Prometheus shows."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """The limits of a histogram, in seconds; a metric without them is a counter."""


SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

ATTEMPTS = Metric(
    name="atalaia_attempts_total",
    help="Attempts that ended in a worker, by what they ended with.",
    labels=("agent", "operation", "outcome"),
)
QUESTIONS = Metric(
    name="atalaia_questions_total",
    help="Probes and closes that were answered, by the answer.",
    labels=("agent", "operation", "answer"),
)
CALLS = Metric(
    name="atalaia_agent_call_duration_seconds",
    help="How long agents take for one call.",
    labels=("agent", "operation"),
    buckets=LONG,
)
REFUSALS = Metric(
    name="atalaia_refused_writes_total",
    help="Writes that came too late and changed nothing, by the name of the refusal.",
    labels=("name",),
)
RESCUES = Metric(
    name="atalaia_rescues_total",
    help="Steps and sagas that were brought on by the supervisor or a keeper, by the cause.",
    labels=("cause",),
)
SWEEPS = Metric(name="atalaia_sweep_duration_seconds", help="How long sweeps take.", buckets=SHORT)
METRICS = (ATTEMPTS, QUESTIONS, CALLS, REFUSALS, RESCUES, SWEEPS)


class Meter(Protocol):
    """Takes what is counted. It may not raise, and it may not wait."""

    def add(self, metric: Metric, amount: float, labels: tuple[str, ...]) -> None:
        """Raise a counter by ``amount``, or put it into a histogram."""


def tell(meter: Meter | None) -> None:
    """Tell ``meter`` from now on, in this process and in those that it forks; ``None``: nobody."""
    global _meter  # noqa: PLW0603 - one for a whole process, like its logs
    _meter = meter


def count(metric: Metric, *labels: str, amount: float = 1) -> None:
    """Count what has happened ``amount`` times."""
    if _meter is not None and amount:
        _meter.add(metric, amount, labels)


@contextmanager
def measured(metric: Metric, *labels: str) -> Iterator[None]:
    """Measure how long it takes what is within, however it ends."""
    began = time.monotonic()
    try:
        yield
    finally:
        if _meter is not None:
            _meter.add(metric, time.monotonic() - began, labels)


_meter: Meter | None = None
