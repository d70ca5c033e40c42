"""Named in ATALAIA_AGENTS, it has every process of a worker write its spans to a file."""

import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult


class ToFile(SpanExporter):
    """One JSON document a line; a line is written at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self.path.open("a") as file:
            for span in spans:
                file.write(span.to_json(indent=None) + "\n")
                file.flush()
        return SpanExportResult.SUCCESS


provider = TracerProvider()
exporter = ToFile(Path(os.environ["ATALAIA_HOME"]) / "spans")
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=100))
trace.set_tracer_provider(provider)
