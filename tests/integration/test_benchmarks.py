"""The benchmarks measure what they say, and leave nobody out in silence.

They run on a broker of their own, because a bout empties its broker.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks import costs, report, rush
from benchmarks.bout import Size, bout, writes_of
from benchmarks.contestants import ALL, PEERS, QUICK, SHAPES, base
from benchmarks.contestants.atalaia import INLINE, PREFORK, TOGETHER
from benchmarks.contestants.base import running
from benchmarks.contestants.celery_chain import CONTESTANT as CHAIN
from benchmarks.measure import processor_seconds, with_children
from benchmarks.places import Places, open_places
from benchmarks.recovery import recovery
from benchmarks.run import Plan, Run
from tests.support.postgres import UnavailableError
from tests.support.services import missing

SMALL = Size(sagas=10, singles=2)


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    try:
        with open_places(redis_url=None) as found:
            yield found
    except UnavailableError as error:
        missing(str(error))


def test_the_peers_are_those_that_are_promised() -> None:
    names = ["celery_chain", "celery_sql", "dbos_queue", "absurd", "temporal_dev"]
    assert [peer.name for peer in PEERS] == names


def test_a_quick_run_needs_no_package_of_a_peer() -> None:
    assert {one.name for one in QUICK if one.peer} == set()
    assert CHAIN in QUICK


def test_whoever_runs_celery_runs_beat_too() -> None:
    """Otherwise the memory of Atalaia's would be held against that of none."""
    for one in [one for one in ALL if not one.peer and one.name != "temporal_dev"]:
        words = {word for command in one.servers for word in command}
        assert words & {"beat", "--with-beat"}, one.name


def test_figures_are_medians() -> None:
    bouts = [{"steps_per_second": rate} for rate in (5.0, 900.0, 7.0)]
    assert report.medians(bouts) == {"steps_per_second": 7.0}


def test_the_ratio_is_that_of_the_best_shape_over_each_peer_that_was_measured() -> None:
    rates = {"celery_chain": 200.0, "absurd": 50.0, PREFORK.name: 50.0, INLINE.name: 100.0}
    results: dict[str, report.Result] = {
        name: {"steps_per_second": rate} for name, rate in rates.items()
    }
    results["dbos_queue"] = {"not_measured": "it is not there"}

    found = report.summary(results)

    assert found["ratio"] == {"celery_chain": 0.5, "absurd": 2.0}
    assert found["atalaia"] == INLINE.name
    assert found["ratio_by_shape"][PREFORK.name] == {"celery_chain": 0.25, "absurd": 1.0}
    assert found["not_measured"] == {"dbos_queue": "it is not there"}


def test_starts_that_share_a_transaction_are_not_held_against_starts_that_do_not() -> None:
    rates = {"celery_chain": 100.0, PREFORK.name: 50.0, TOGETHER.name: 90.0}
    found = report.summary({name: {"steps_per_second": rate} for name, rate in rates.items()})
    assert found["atalaia"] == PREFORK.name
    assert found["ratio_by_shape"][TOGETHER.name] == {"celery_chain": 0.9}


def test_every_contestant_has_its_line_in_the_table() -> None:
    abouts = {one.name: one.about for one in ALL}
    results: dict[str, report.Result] = {one.name: {"steps_per_second": 1.0} for one in ALL}
    results["absurd"] = {"not_measured": "no wheel"}
    results["dbos_queue"]["kill_to_done_s"] = None

    lines = report.markdown(abouts, results).splitlines()

    assert len(lines) == 2 + len(PEERS) + len(SHAPES)
    assert f"| {abouts['absurd']} | not measured: no wheel |" in lines
    (dbos,) = (line for line in lines if line.startswith(f"| {abouts['dbos_queue']} |"))
    assert "not in time" in dbos


def test_the_table_replaces_the_one_that_a_document_had() -> None:
    text = f"Before.\n\n{report.OPENING}\n\nold\n\n{report.CLOSING}\n\nAfter.\n"
    once = report.document(text, "new")
    assert "old" not in once
    assert [line for line in once.splitlines() if line and "<" not in line] == [
        "Before.", "new", "After.",
    ]  # fmt: skip
    assert report.document(once, "new") == once


def test_a_document_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="has to have"):
        report.document(f"Before {report.OPENING} after.", "new")


def test_why_a_peer_is_not_there_is_what_its_installation_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "PEERS", tmp_path / "bin")
    peer = replace(CHAIN, peer=True)
    assert "`make bench` installs them" in (peer.why_not() or "")
    (tmp_path / "install.log").write_text("Collecting\nERROR: no wheel for this platform\n")
    assert "ERROR: no wheel for this platform" in (peer.why_not() or "")
    assert CHAIN.why_not() is None


def test_what_an_ended_child_has_used_still_counts() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint()\n"
    with subprocess.Popen(
        [sys.executable, "-c", parent + "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # The child has ended.
        used = processor_seconds(with_children([process.pid]))
        process.communicate(b"\n")
    assert used > 0.4


def test_whoever_cannot_be_started_is_named_with_the_reason(places: Places) -> None:
    broken = replace(
        CHAIN, preparations=[[sys.executable, "-c", "raise SystemExit('no such peer')"]]
    )
    absent = replace(CHAIN, name="absent", client=["/nowhere/client"])
    plan = Plan(contestants=[broken, absent], rounds=2, size=SMALL, recovery_within=None)

    results = Run(plan, places).measure()

    assert "no such peer" in results[CHAIN.name]["not_measured"]
    assert "/nowhere/client" in results["absent"]["not_measured"]


def test_no_round_is_begun_for_which_there_is_no_time(places: Places) -> None:
    plan = Plan(contestants=[CHAIN], rounds=3, size=SMALL, seconds=0, recovery_within=None)
    run = Run(plan, places)
    assert "steps_per_second" in run.measure()[CHAIN.name]
    assert run.rounds == 1


@pytest.mark.slow
@pytest.mark.parametrize("one", [CHAIN, PREFORK, INLINE, TOGETHER], ids=lambda one: one.name)
def test_a_bout_measures_everything(places: Places, one: object) -> None:
    assert isinstance(one, type(CHAIN))
    figures = bout(one, places, SMALL)
    once = {
        "commits_per_saga",
        "writing_transactions_per_saga",
        "fsyncs_per_saga",
        "kill_to_done_s",
        "step_ran",
    }
    every_bout = {name for name in report.COLUMNS if name not in once}
    used = {name: figures.pop(name) for name in list(figures) if name.startswith("cpu_of_")}
    assert set(figures) == every_bout
    assert min(figures.values()) > 0
    parts = {"workers", "client", "redis", *(["postgresql"] if one.database else [])}
    assert set(used) == {f"cpu_of_{part}" for part in parts}
    assert sum(used.values()) == pytest.approx(figures["cpu_seconds_per_1000_steps"], abs=0.01)


@pytest.mark.slow
def test_what_a_saga_writes_is_counted_for_contestants_with_a_database(places: Places) -> None:
    assert writes_of(CHAIN, places, SMALL.sagas) == {}
    # Its start, and a grant and a report for each step; others may write on the same server.
    assert writes_of(PREFORK, places, SMALL.sagas)["commits_per_saga"] >= 7
    assert 3 <= writes_of(INLINE, places, SMALL.sagas)["commits_per_saga"] < 12


@pytest.mark.slow
def test_a_killed_step_is_seen_to_run_again(places: Places) -> None:
    found = recovery(PREFORK, places, within=60)
    assert found["step_ran"] == 2
    assert found["kill_to_done_s"] is not None
    assert found["kill_to_done_s"] >= 1


@pytest.mark.slow
def test_fresh_sagas_are_timed_until_all_that_was_stuck_has_ended(places: Places) -> None:
    found = rush.measure(places, rush.Size(live=40, stuck=8, steady=1.5))
    for run in found["runs"]:
        assert list(run["windows"]) == list(rush.WINDOWS)
        assert 0 < run["decided_s"] <= run["ended_s"]
        assert 0 < run["settled_s"] <= run["ended_s"]
        assert run["windows"]["before"]["sagas_per_second"] > 0
        assert run["windows"]["before"]["p50_ms"] > 0
    kept, spread = (line for line in rush.table(found).splitlines() if "| before |" in line)
    assert kept.startswith("| under_way 8 |")
    assert spread.startswith("| rate ")


def test_nothing_is_left_running(places: Places) -> None:
    with running(CHAIN, places) as found:
        found.start()
        processes = found.processes()
        assert len(processes) == 4  # The worker and its two children, and beat.
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
def test_a_saga_costs_as_many_commands_of_redis_as_the_document_says(places: Places) -> None:
    kept = json.loads(costs.KEPT.read_text())["messages"]["for_each_saga"]
    found = costs.costs_of(PREFORK, places, sagas=costs.TOGETHER, idle=2)["for_each_saga"]
    assert found["commands"] == pytest.approx(kept["commands"], rel=0.15)


def test_of_two_runs_the_lesser_processor_times_are_kept() -> None:
    before = {"for_each_saga": {"workers": 1.0, "commands": 29.0}, "sweep": {"row_process_ms": 2.0}}
    now = {"for_each_saga": {"workers": 2.0, "commands": 30.0}, "sweep": {"row_process_ms": 1.0}}
    assert costs.least(before, now) == {
        "for_each_saga": {"workers": 1.0, "commands": 30.0},
        "sweep": {"row_process_ms": 1.0},
    }
