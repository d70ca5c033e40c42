"""What a worker and its children count, shown by the parent at a port of its own.

The children write each count as a line into a pipe of their parent's, which adds it up. A count
that finds the pipe full is left out: counting may never keep an agent waiting. Of a child that ends
nothing stays behind, and what it had counted is not lost.
"""

import json
import os
import threading
from typing import Any

from celery.signals import celeryd_after_setup, worker_ready

from orchestration import metrics
from orchestration.settings import settings
from orchestration.telemetry import log_of

CHUNK = 1 << 16


class Pipe:
    """The writing end; every process of the worker has it. One line is written at once or not."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        os.set_blocking(descriptor, False)

    def add(self, metric: metrics.Metric, amount: float, labels: tuple[str, ...]) -> None:
        """Send one count to the parent."""
        line = json.dumps([metric.name, amount, labels]) + "\n"
        try:
            os.write(self.descriptor, line.encode())
        except OSError:
            return


class Totals:
    """The reading end: adds up what the processes of one worker count."""

    def __init__(self) -> None:
        import prometheus_client as prometheus  # noqa: PLC0415 - most workers need none of it

        self.registry = prometheus.CollectorRegistry()
        self.kept: dict[str, Any] = {}
        for metric in metrics.METRICS:
            given: dict[str, Any] = {"labelnames": metric.labels, "registry": self.registry}
            self.kept[metric.name] = (
                prometheus.Histogram(metric.name, metric.help, buckets=metric.buckets, **given)
                if metric.buckets
                else prometheus.Counter(metric.name, metric.help, **given)
            )

    def read(self, descriptor: int) -> None:
        """Take lines until there is nobody left who could write one.

        From the pipe itself: a file object's lock would be inherited, held, by every child.
        """
        rest = b""
        while chunk := os.read(descriptor, CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self.add(*json.loads(line))

    def add(self, name: str, amount: float, labels: list[str]) -> None:
        """Add one count."""
        kept = self.kept[name]
        one = kept.labels(*labels) if labels else kept
        (one.inc if hasattr(one, "inc") else one.observe)(amount)

    def serve(self, host: str, port: int) -> int:
        """Show the totals from now on; return the port, or raise ``OSError``."""
        import prometheus_client as prometheus  # noqa: PLC0415

        server, _ = prometheus.start_http_server(port, addr=host, registry=self.registry)
        # A child that outlives its parent for a moment must not hold on to the port.
        os.register_at_fork(after_in_child=server.socket.close)
        return int(server.server_port)


@celeryd_after_setup.connect
def _listen(instance: Any, **_: Any) -> None:
    """Before the pool is forked: have all processes of this worker count into one pipe."""
    if settings().metrics_port is None:
        return
    reading, writing = os.pipe()
    instance.totals = totals = Totals()
    metrics.tell(Pipe(writing))
    reader = threading.Thread(
        target=totals.read, args=[reading], name="atalaia-metrics", daemon=True
    )
    reader.start()


@worker_ready.connect
def _show(sender: Any, **_: Any) -> None:
    """After the pool is up, so that its children have no part of the server."""
    totals: Totals | None = getattr(sender.controller, "totals", None)
    given = settings()
    if totals is None or given.metrics_port is None:
        return
    try:
        port = totals.serve(given.metrics_host, given.metrics_port)
    except OSError as error:
        log_of("metrics").error(
            "not shown", host=given.metrics_host, port=given.metrics_port, error=str(error)
        )
        return
    log_of("metrics").info("shown", url=f"http://{given.metrics_host}:{port}/metrics")
