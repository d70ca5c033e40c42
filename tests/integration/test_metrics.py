"""What Prometheus is shown: the names, the kinds, and that the numbers are those of the rows."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, event, text

from orchestration import metrics, views
from orchestration.signals import Conflict
from tasks.metrics import Pipe, Totals
from tests.support import envelope_agents
from tests.support.bench import Bench
from tests.support.core import Core, line, postgres_engine
from tests.support.postgres import Postgres
from web.app import create_app
from web.metrics import KEPT_SECONDS, Metrics

HANDBOOK = Path(__file__).parents[2] / "docs" / "operations.md"
Samples = dict[tuple[str, ...], float]


def families(told: str) -> dict[str, Any]:
    """Return each metric by its name; when the library began with one says nothing of ours."""
    found = {family.name: family for family in text_string_to_metric_families(told)}
    return {name: family for name, family in found.items() if not name.endswith("_created")}


def samples(told: str, name: str) -> Samples:
    """Return the values of one metric by its labels' values, in the order of their names."""
    family = families(told)[name]
    return {tuple(v for _, v in sorted(s.labels.items())): s.value for s in family.samples}


@pytest.fixture
def core(engine: Engine) -> Core:
    return Core(engine, line("a", "b"), line("c", name="other"))


def shown(core: Core) -> str:
    with TestClient(create_app(core.scheduler)) as client:
        response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return str(response.text)


def test_every_gauge_has_its_name_its_kind_and_a_word_of_help(core: Core) -> None:
    core.start()
    core.roster.swept(core.node.id)
    found = families(shown(core))
    assert sorted(found) == [
        "atalaia_incidents_open",
        "atalaia_last_sweep_age_seconds",
        "atalaia_nodes",
        "atalaia_oldest_incident_age_seconds",
        "atalaia_oldest_step_age_seconds",
        "atalaia_queue_age_seconds",
        "atalaia_sagas",
        "atalaia_steps",
    ]
    assert {family.type for family in found.values()} == {"gauge"}
    assert all(family.documentation.endswith(".") for family in found.values())


def test_the_gauges_say_how_things_stand(core: Core) -> None:
    core.take(core.start(), "a")
    core.start()
    told = shown(core.later(seconds=30))
    assert samples(told, "atalaia_sagas") == {("running", "stay"): 2}
    assert samples(told, "atalaia_steps") == {("book", "dispatched"): 1, ("book", "leased"): 1}
    assert samples(told, "atalaia_queue_age_seconds") == {("book",): 30}
    ages = samples(told, "atalaia_oldest_step_age_seconds")
    assert ages == {("dispatched",): 30, ("leased",): 30, ("retrying",): 0, ("unknown",): 0}
    assert samples(told, "atalaia_nodes") == {(): 1}
    assert samples(told, "atalaia_last_sweep_age_seconds") == {}


def test_a_step_that_is_to_be_undone_waits_on_the_queue_of_recovery(core: Core) -> None:
    saga = core.start()
    core.done(saga, "a")
    core.later(seconds=30).scheduler.cancel(saga, by="ada")
    told = shown(core.later(seconds=5))
    assert samples(told, "atalaia_sagas") == {("compensating", "stay"): 1}
    assert samples(told, "atalaia_queue_age_seconds") == {("book.recovery",): 5}


def test_a_halted_saga_is_counted_and_so_is_its_incident(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.leases.answer(saga, "a", 1, Conflict("other amount"))
    told = shown(core.later(minutes=1))
    assert samples(told, "atalaia_sagas") == {("halted", "stay"): 1}
    assert samples(told, "atalaia_incidents_open") == {("conflict",): 1}
    assert samples(told, "atalaia_oldest_incident_age_seconds") == {("conflict",): 60}


def test_the_last_sweep_has_an_age(core: Core) -> None:
    core.roster.swept(core.node.id)
    told = shown(core.later(seconds=7))
    assert samples(told, "atalaia_last_sweep_age_seconds") == {(): 7}


def test_what_has_ended_is_in_no_gauge(core: Core) -> None:
    saga = core.start()
    core.done(saga, "a", "b")
    told = shown(core.later(seconds=30))
    assert samples(told, "atalaia_sagas") == {}
    assert samples(told, "atalaia_steps") == {}
    assert set(samples(told, "atalaia_oldest_step_age_seconds").values()) == {0}


def test_however_many_ask_the_rows_are_read_once_in_some_seconds(core: Core) -> None:
    at = [0.0]
    kept = Metrics(core.store, clock=lambda: at[0])
    first = kept.text()
    core.start()
    at[0] += KEPT_SECONDS - 0.1
    assert kept.text() == first
    at[0] += 0.1
    assert samples(kept.text().decode(), "atalaia_sagas") == {("running", "stay"): 1}


def test_a_database_that_is_away_is_not_an_empty_one(core: Core) -> None:
    with core.engine.begin() as connection:
        connection.execute(text("DROP TABLE incidents"))
    with TestClient(create_app(core.scheduler), raise_server_exceptions=False) as client:
        assert client.get("/metrics").status_code == 503


def test_no_gauge_looks_at_what_has_ended(postgres: Postgres, postgres_template: str) -> None:
    asked: list[tuple[str, Any]] = []

    def listen(connection: Any, cursor: Any, statement: str, given: Any, *rest: Any) -> None:
        if "FROM" in statement:
            asked.append((statement, given))

    with postgres_engine(postgres, postgres_template) as engine:
        core = Core(engine, line("a"))
        event.listen(engine, "before_cursor_execute", listen)
        with core.store.reading() as connection:
            views.gauges(connection, core.store)
        event.remove(engine, "before_cursor_execute", listen)
        told = ""
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL enable_seqscan = off"))
            for statement, given in asked:
                plan = connection.exec_driver_sql(f"EXPLAIN {statement}", given)
                told += "\n".join(row[0] for row in plan)
    for index in ("ix_steps_wake", "ix_sagas_live", "ix_incidents_open", "ix_nodes_alive"):
        assert index in told, told
    assert "Seq Scan" not in told, told


def test_what_was_refused_is_counted_in_a_window_of_the_journal(
    postgres: Postgres, postgres_template: str
) -> None:
    asked: list[tuple[str, Any]] = []

    def listen(connection: Any, cursor: Any, statement: str, given: Any, *rest: Any) -> None:
        asked.append((statement, given))

    with postgres_engine(postgres, postgres_template) as engine:
        core = Core(engine, line("a"))
        saga_id = core.start()
        with engine.begin() as connection:
            connection.execute(
                text(
                    "INSERT INTO journal (saga_id, at, actor, verb, path, attempt, from_state,"
                    " to_state, reason) SELECT :saga, now(), 'x', 'refuse', 'a', 1, '', '',"
                    " CASE WHEN n > 4990 THEN 'new' ELSE 'old' END FROM generate_series(1, 5000) n"
                ),
                {"saga": saga_id},
            )
            connection.execute(text("ANALYZE journal"))
        event.listen(engine, "before_cursor_execute", listen)
        with core.store.reading() as connection:
            assert views.count_refusals(connection, window=30) == {"new": 10, "old": 20}
        event.remove(engine, "before_cursor_execute", listen)
        ((statement, given),) = asked
        with engine.begin() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, TIMING off) {statement}", given)
            told = "\n".join(row[0] for row in plan)
    assert re.search(r"Index Scan Backward using pk_journal .*\(actual rows=30", told), told
    assert "Seq Scan" not in told, told


def test_the_handbook_names_every_metric_with_its_labels(core: Core) -> None:
    core.take(core.start(), "a")
    core.start()
    told = re.findall(r"(?m)^\| `(atalaia_\w+)` \| (.*?) \|", HANDBOOK.read_text())
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in told}
    counted = {metric.name: set(metric.labels) for metric in metrics.METRICS}
    gauges = families(shown(core))
    assert set(documented) == set(counted) | set(gauges)
    assert {name: documented[name] for name in counted} == counted
    for name, family in gauges.items():
        assert all(set(sample.labels) == documented[name] for sample in family.samples)


# --- what is counted -----------------------------------------------------------------------------


@contextmanager
def counted() -> Iterator[Totals]:
    """Count in this process, through a pipe as in a worker; the totals are complete afterwards."""
    reading, writing = os.pipe()
    totals = Totals()
    reader = threading.Thread(target=totals.read, args=[reading])
    reader.start()
    metrics.tell(Pipe(writing))
    try:
        yield totals
    finally:
        metrics.tell(None)
        os.close(writing)
        reader.join()
        os.close(reading)


def text_of(totals: Totals) -> str:
    return generate_latest(totals.registry).decode()


@pytest.fixture
def bench(engine: Engine) -> Bench:
    envelope_agents.EFFECTS.clear()
    return Bench(engine, envelope_agents.plain, holds=True)


def test_every_counter_has_its_name_its_kind_and_a_word_of_help() -> None:
    found = families(text_of(Totals()))
    assert {name: family.type for name, family in found.items()} == {
        "atalaia_agent_call_duration_seconds": "histogram",
        "atalaia_attempts": "counter",
        "atalaia_questions": "counter",
        "atalaia_refused_writes": "counter",
        "atalaia_rescues": "counter",
        "atalaia_sweep_duration_seconds": "histogram",
    }
    assert all(family.documentation.endswith(".") for family in found.values())


def test_attempts_and_questions_are_counted_by_how_they_ended(bench: Bench) -> None:
    with counted() as totals:
        bench.scheduler.start("plain", {"does": "unknown"})
        bench.deliver(bench.sent.pop())
        bench.deliver(bench.sent.pop())
    told = text_of(totals)
    assert samples(told, "atalaia_attempts") == {("plain.make", "action", "unknown"): 1}
    assert samples(told, "atalaia_questions") == {("plain.make", "applied", "probe"): 1}
    calls = "atalaia_agent_call_duration_seconds_count"
    assert f'{calls}{{agent="plain.make",operation="action"}} 1.0' in told
    assert f'{calls}{{agent="plain.make",operation="probe"}} 1.0' in told


def test_a_refused_write_is_counted_by_its_name(bench: Bench) -> None:
    with counted() as totals:
        bench.scheduler.start("plain", {})
        (message,) = bench.sent
        bench.deliver(message)
        bench.deliver(message)
    assert samples(text_of(totals), "atalaia_refused_writes") == {("duplicate_delivery",): 1}


def test_a_rescue_is_counted_by_its_cause_and_a_sweep_is_measured(bench: Bench) -> None:
    with counted() as totals:
        bench.scheduler.start("plain", {})
        bench.sent.clear()
        bench.pass_time(timedelta(minutes=1))
    told = text_of(totals)
    assert samples(told, "atalaia_rescues") == {("undelivered",): 1}
    assert "atalaia_sweep_duration_seconds_count 1.0" in told


def test_a_retry_that_is_due_is_no_rescue(bench: Bench) -> None:
    with counted() as totals:
        bench.scheduler.start("plain", {"does": "later"})
        bench.deliver(bench.sent.pop())
        bench.pass_time(timedelta(minutes=1))
    assert bench.sent
    assert samples(text_of(totals), "atalaia_rescues") == {}


def test_a_count_that_finds_the_pipe_full_is_left_out_and_nobody_waits() -> None:
    reading, writing = os.pipe()
    pipe = Pipe(writing)
    for _ in range(10_000):
        pipe.add(metrics.REFUSALS, 1, ("lease_lost",))
    os.close(writing)
    totals = Totals()
    totals.read(reading)
    os.close(reading)
    ((_, kept),) = samples(text_of(totals), "atalaia_refused_writes").items()
    assert 100 < kept < 10_000
