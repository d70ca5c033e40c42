"""Traces: whatever happens to a saga is a span in the trace of the request that started it.

The row keeps where its trace begins, so an attempt that is made hours later, by another process and
because of a sweep, still belongs to it. A message could not carry that: recovery sends anew.

OpenTelemetry is not imported here. Whoever sets up a provider in this process has imported it, and
without a provider nobody would be told anything.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar, cast
from uuid import UUID

Note = Callable[..., None]
"""Adds attributes to a span: ``note(outcome="failed", failed=True)``."""


def span(
    name: str, saga_id: UUID, trace: str | None, **attributes: Any
) -> AbstractContextManager[Note]:
    """Record what is done within as a span of the saga's trace; ``trace`` is what its row holds.

    Where something of the same trace is under way, the span is a part of that.
    """
    api = _api()
    if api is None:
        return _UNHEARD
    here = api.get_current_span().get_span_context()
    begun = _begun(api, saga_id, trace)
    known = here.is_valid and here.trace_id == begun.trace_id
    context = None if known else api.set_span_in_context(api.NonRecordingSpan(begun))
    links = [api.Link(here)] if here.is_valid and not known else []
    return _recorded(api, name, context, links, saga_id=str(saga_id), **attributes)


def deciding(
    event: object, saga_id: UUID, trace: str | None, actor: str
) -> AbstractContextManager[Note]:
    """Record the decision about an event."""
    name, step = type(event).__name__.lower(), getattr(event, "path", "")
    return span(f"decide {name}", saga_id, trace, step=step, actor=actor)


def traceparent() -> str | None:
    """Return the span that is under way as W3C's ``traceparent``, or ``None``."""
    api = _api()
    here = api.get_current_span().get_span_context() if api else None
    if not here or not here.is_valid:
        return None
    return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}"


def ids() -> dict[str, str]:
    """Return the ids of the span that is under way, for the logs."""
    parts = (traceparent() or "").split("-")
    return {"trace_id": parts[1], "span_id": parts[2]} if len(parts) > 1 else {}


Start = TypeVar("Start", bound=Callable[..., Any])


def starts(start: Start) -> Start:
    """Make each start a span, in the trace of whatever asks for it."""

    @wraps(start)
    def traced(self: Any, workflow: Any, *args: Any, **kwargs: Any) -> Any:
        api = _api()
        if api is None:
            return start(self, workflow, *args, **kwargs)
        name = getattr(workflow, "name", workflow)
        with _recorded(api, f"start {name}", None, [], workflow=name) as note:
            handle = start(self, workflow, *args, **kwargs)
            note(saga_id=str(handle.saga_id), created=handle.created)
            return handle

    return cast("Start", traced)


def _api() -> Any:
    """Return OpenTelemetry's API if a provider was set up in this process."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return api


def _begun(api: Any, saga_id: UUID, trace: str | None) -> Any:
    """Return the span with which the saga began; without one, its own id stands for the trace."""
    told = trace or f"00-{saga_id.hex}-{saga_id.hex[16:]}-01"
    _, trace_id, span_id, flags = told.split("-")
    return api.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True,
        trace_flags=api.TraceFlags(int(flags, 16)),
    )  # fmt: skip


@contextmanager
def _recorded(
    api: Any, name: str, context: Any, links: list[Any], **attributes: Any
) -> Iterator[Note]:
    tracer = api.get_tracer("atalaia")
    with tracer.start_as_current_span(name, context=context, links=links) as recorded:

        def note(*, failed: bool = False, **more: Any) -> None:
            for key, value in more.items():
                recorded.set_attribute(f"atalaia.{key}", value)
            if failed:
                recorded.set_status(api.Status(api.StatusCode.ERROR))

        note(**attributes)
        yield note


def _ignore(**_: Any) -> None:
    """Nobody listens."""


_UNHEARD: AbstractContextManager[Note] = nullcontext(_ignore)
