"""What a step and a sweep cost does not grow with what has ended, nor with what is under way.

The tables hold enough rows that PostgreSQL would not choose an index for nothing, and what is
asserted are its plans and the pages that it looks at, which no other load changes.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import event, func, literal_column, select

from benchmarks.filling import NEW_ID, Bench, fill_ended, fill_live
from models import Step
from orchestration import due, views
from orchestration.statement import Prepared
from tests.support.postgres import Postgres

ROOT = Path(__file__).parents[2]
LARGE = "steps|sagas|attempts|journal|incidents"
WINDOW_PAGES = 2500
"""A window of two hundred sagas takes three or four pages of an index for each."""


@pytest.fixture(scope="module")
def bench(postgres: Postgres, postgres_template: str) -> Iterator[Bench]:
    with postgres.database(postgres_template) as url:
        bench = Bench(url)
        bench.sql(NEW_ID)
        fill_ended(bench, 0, 3000)
        fill_live(bench, 100_000_000, 8000)
        yield bench
        bench.store.engine.dispose()


def asked_by(bench: Bench, act: Callable[[], Any]) -> list[tuple[str, Any]]:
    """Return every statement on our tables, with its parameters."""
    found: list[tuple[str, Any]] = []

    def listen(connection: Any, cursor: Any, statement: str, given: Any, *rest: Any) -> None:
        if re.search(rf"\b({LARGE}|nodes)\b", statement):
            found.append((statement, given))

    event.listen(bench.store.engine, "before_cursor_execute", listen)
    act()
    event.remove(bench.store.engine, "before_cursor_execute", listen)
    assert found
    return found


def plan(bench: Bench, statement: str, given: Any, how: str = "") -> str:
    with bench.store.engine.begin() as connection:
        rows = connection.exec_driver_sql(f"EXPLAIN {how} {statement}", given)
        return statement + "\n" + "\n".join(row[0] for row in rows)


def pages(told: str) -> int:
    """Return how many pages a plan looked at, which its first line about them tells of all."""
    buffers = re.search(r"Buffers: ([^\n]*)", told)
    found = re.findall(r"(?:hit|read)=(\d+)", buffers[1]) if buffers else []
    return sum(map(int, found))


@pytest.mark.proves("D-23")
def test_a_sweep_that_finds_nothing_looks_at_few_rows(bench: Bench) -> None:
    statements = asked_by(bench, bench.supervisor.sweep)
    plans = [plan(bench, *one, how="(ANALYZE, BUFFERS)") for one in statements]
    scanned = re.compile(rf"Seq Scan on ({LARGE})|hashed SubPlan")
    assert [told for told in plans if scanned.search(told)] == []
    removed = re.compile(r"Rows Removed by (?:Filter|Join Filter): (\d+)")
    passed_by = [told for told in plans if any(int(n) > 300 for n in removed.findall(told))]
    assert passed_by == [], "an index led to rows that a filter had to throw away"
    assert sum(map(pages, plans)) < WINDOW_PAGES, plans


@pytest.mark.proves("D-23")
@pytest.mark.parametrize("state", ["dispatched", "leased", "retrying", "unknown"])
def test_the_few_that_are_due_are_found_without_a_look_at_the_others(
    bench: Bench, state: Any
) -> None:
    saga = bench.live(state)
    bench.sql("UPDATE steps SET wake_at = now() - interval '1 s' WHERE saga_id = %s AND state = %s",
              saga, state)  # fmt: skip

    def look() -> None:
        with bench.store.reading() as connection:
            assert [one.saga_id for one in due.steps(connection, bench.store, state, 200)] == [saga]

    ((statement, given),) = asked_by(bench, look)
    told = plan(bench, statement, given, how="(ANALYZE, BUFFERS)")
    bench.sql("UPDATE steps SET wake_at = now() + interval '1 d' WHERE saga_id = %s AND state = %s",
              saga, state)  # fmt: skip
    assert "ix_steps_wake" in told
    assert pages(told) < 100, told


def test_no_statement_of_a_step_looks_through_a_table(bench: Bench) -> None:
    ended: list[UUID] = []
    for how in ("completed", "after a doubt", "compensated"):
        statements = asked_by(bench, lambda how=how: ended.append(bench.ended(how)))  # type: ignore[misc]
        plans = [plan(bench, *one) for one in statements]
        assert [told for told in plans if re.search(r"Seq Scan on (?!incidents)", told)] == []
    with bench.store.reading() as connection:
        assert {views.saga_state(connection, saga) for saga in ended} == {
            "completed",
            "compensated",
        }


def test_a_clock_that_is_read_for_each_row_would_be_noticed(bench: Bench) -> None:
    """The test of a test: as the reads were until they were measured beside a million sagas."""
    steps: Any = Step.__table__
    state = steps.c.state == literal_column("'dispatched'")
    slow = Prepared(select(steps.c.path).where(state, steps.c.wake_at <= func.clock_timestamp()))

    def look() -> None:
        with bench.store.reading() as connection:
            assert slow.all(connection) == []

    ((statement, given),) = asked_by(bench, look)
    told = plan(bench, statement, given, how="(ANALYZE, BUFFERS)")
    assert int(re.findall(r"Rows Removed by Filter: (\d+)", told)[0]) >= 2000


def test_the_benchmark_fills_measures_and_tells(tmp_path: Path) -> None:
    words = ["--finished", "0", "100", "--live", "0", "40", "--stuck", "20", "--json"]
    file = tmp_path / "growth.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.growth", *words, file],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("|")[1:3] for line in lines[2:5]] == [
        [" 0 ", " 0 "], [" 100 ", " 0 "], [" 100 ", " 40 "],
    ]  # fmt: skip
    assert '"stuck": 20, "sweeps": 1' in done.stdout
    assert file.exists()
