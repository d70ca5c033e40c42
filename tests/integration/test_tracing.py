"""One saga, one trace: whatever is done for it, and by whom, hangs on the request that asked."""

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel
from sqlalchemy import Engine

from models.states import SagaState
from orchestration import views
from orchestration.definition import RetryPolicy, Step, Workflow, sequence
from orchestration.signals import Answer, Applied, OutcomeUnknown, PermanentFailure, RetryLater
from orchestration.telemetry import configure_logs, log_of
from tasks.agent import Call, agent
from tests.support.bench import Bench
from web.app import create_app

SECOND = timedelta(seconds=1)
FAST = RetryPolicy(max_attempts=3, initial_interval=SECOND)


class Order(BaseModel):
    """What is wanted."""

    amount: int = 1


@agent("traced.make", queue="traced", idempotent=True)
def make(call: Call[Order]) -> int:
    """Be busy, then lose the reply."""
    if call.attempt == 1:
        raise RetryLater("busy", delay=SECOND)
    raise OutcomeUnknown("the reply was lost")


@make.probe
def find(call: Call[Order]) -> Answer:
    """Find that it was made."""
    return Applied(call.input.amount)


@make.compensation(closes_key=True)
def unmake(call: Call[Order], made: int | None) -> None:
    """Undo it."""


@agent("traced.refuse", queue="traced", idempotent=True)
def refuse(call: Call[Order]) -> None:
    """Refuse for good."""
    raise PermanentFailure("sold out")


@refuse.compensation(closes_key=True)
def forget(call: Call[Order], made: None) -> None:
    """There is nothing to undo."""


traced = Workflow(
    "traced",
    version=1,
    input=Order,
    steps=sequence(
        Step("make", agent="traced.make", retry=FAST),
        Step("refuse", agent="traced.refuse", retry=FAST),
    ),
)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Whatever is recorded in this process while the test runs."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def bench(engine: Engine) -> Bench:
    return Bench(engine, traced, holds=True)


def finish(bench: Bench, saga_id: UUID) -> None:
    """Be the workers and the supervisor, none of which knows anything of the request."""
    for _ in range(20):
        messages, bench.sent = bench.sent, []
        for message in messages:
            bench.deliver(message)
        if state(bench, saga_id) is SagaState.COMPENSATED:
            return
        bench.pass_time(SECOND * 10)
    raise AssertionError(state(bench, saga_id))


def state(bench: Bench, saga_id: UUID) -> SagaState:
    with bench.store.reading() as connection:
        return views.saga_state(connection, saga_id)


def kept(bench: Bench, saga_id: UUID) -> str | None:
    with bench.store.reading() as connection:
        told: str | None = views.saga_row(connection, saga_id).trace
    return told


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def span_of(recorded: InMemorySpanExporter, name: str, number: int = 0) -> ReadableSpan:
    return [span for span in recorded.get_finished_spans() if span.name == name][number]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    number: int = span.context.span_id
    return number


def around(recorded: InMemorySpanExporter, span: ReadableSpan) -> Iterator[ReadableSpan]:
    """Yield the spans that ``span`` is a part of, the nearest first."""
    known = {id_of(one): one for one in recorded.get_finished_spans()}
    while span.parent is not None and span.parent.span_id in known:
        span = known[span.parent.span_id]
        yield span


def test_request_attempts_retry_probe_and_compensation_are_one_trace(
    bench: Bench, recorded: InMemorySpanExporter
) -> None:
    caller = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{caller}-b7ad6b7169203331-01"}
    with TestClient(create_app(bench.scheduler)) as client:
        body = {"workflow": "traced", "input": {"amount": 3}}
        saga_id = UUID(client.post("/sagas", json=body, headers=headers).json()["id"])
    finish(bench, saga_id)

    spans = recorded.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {caller}
    names = Counter(span.name for span in spans)
    assert names["POST /sagas"] == names["start traced"] == 1
    assert names["action traced.make"] == 2  # the attempt and its retry
    assert names["probe traced.make"] == names["action traced.refuse"] == 1
    assert names["compensation traced.make"] == 1
    assert names["decide woken"] > 0
    start = span_of(recorded, "start traced")
    assert "POST /sagas" in [span.name for span in around(recorded, start)]
    for name in ("action traced.make", "probe traced.make", "compensation traced.make"):
        assert parent_of(span_of(recorded, name)) == id_of(start)


def test_a_span_says_what_it_was_for_and_how_it_ended(
    bench: Bench, recorded: InMemorySpanExporter
) -> None:
    saga_id = bench.scheduler.start("traced", {}).saga_id
    finish(bench, saga_id)

    retry = span_of(recorded, "action traced.make", 1)
    about = {
        "atalaia.saga_id": str(saga_id), "atalaia.step": "make", "atalaia.attempt": 2,
        "atalaia.direction": "forward", "atalaia.operation": "action",
        "atalaia.agent": "traced.make", "atalaia.outcome": "failed: unknown",
    }  # fmt: skip
    assert attributes(retry) == about
    assert not retry.status.is_ok
    answer = span_of(recorded, "probe traced.make")
    assert attributes(answer)["atalaia.answer"] == "applied"
    undone = span_of(recorded, "compensation traced.make")
    assert attributes(undone)["atalaia.outcome"] == "succeeded"
    assert undone.status.is_ok is not False
    # What an attempt's report brings about is a part of the attempt.
    assert parent_of(span_of(recorded, "decide reported")) == id_of(
        span_of(recorded, "action traced.make")
    )


def test_a_saga_that_nobody_traced_has_a_trace_of_its_own(
    bench: Bench, recorded: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(trace, "_TRACER_PROVIDER", None)
        saga_id = bench.scheduler.start("traced", {}).saga_id
    assert recorded.get_finished_spans() == ()
    assert kept(bench, saga_id) is None
    finish(bench, saga_id)
    spans = recorded.get_finished_spans()
    assert {span.context.trace_id for span in spans if span.context} == {saga_id.int}


def test_without_opentelemetry_everything_goes_on(
    bench: Bench, recorded: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    saga_id = bench.scheduler.start("traced", {}).saga_id
    finish(bench, saga_id)
    assert recorded.get_finished_spans() == ()


def test_the_trace_of_whoever_delivered_the_message_is_linked_and_not_joined(
    bench: Bench, recorded: InMemorySpanExporter
) -> None:
    bench.scheduler.start("traced", {})
    with trace.get_tracer("a broker").start_as_current_span("run a task") as other:
        bench.deliver(bench.sent.pop(0))
    action = span_of(recorded, "action traced.make")
    assert parent_of(action) == id_of(span_of(recorded, "start traced"))
    assert [link.context.span_id for link in action.links] == [other.get_span_context().span_id]


def test_what_is_not_sampled_at_the_start_is_sampled_nowhere(
    bench: Bench, recorded: InMemorySpanExporter
) -> None:
    caller = trace.SpanContext(7 << 64, 9, is_remote=True, trace_flags=trace.TraceFlags(0))
    context = trace.set_span_in_context(trace.NonRecordingSpan(caller))
    with trace.get_tracer("caller").start_as_current_span("unsampled", context=context):
        saga_id = bench.scheduler.start("traced", {}).saga_id
    assert (kept(bench, saga_id) or "").endswith("-00")
    finish(bench, saga_id)
    assert recorded.get_finished_spans() == ()


def test_a_line_of_the_log_tells_the_span_that_it_was_written_in(
    recorded: InMemorySpanExporter, capfd: pytest.CaptureFixture[str]
) -> None:
    configure_logs(json=True)
    with trace.get_tracer("any").start_as_current_span("at work") as span:
        log_of("node").info("here")
    log_of("node").info("there")
    here, there = capfd.readouterr().err.splitlines()
    assert f'"trace_id": "{span.get_span_context().trace_id:032x}"' in here
    assert "trace_id" not in there
