"""What makes a campaign fail, and its last line."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from tasks.proof.campaign import Tally, run, tell
from tasks.proof.coverage import reachable
from tasks.proof.exhaustive import REFUSED, explore_all, scope


def whole() -> Tally:
    """Return what runs have shown that reached every cell once."""
    tally = Tally(sagas=8)
    tally.coverage.add(reachable())
    return tally


def status_of(tally: Tally, directory: Path) -> int:
    return tell(Console(file=io.StringIO()), tally, directory)


def test_runs_that_reach_every_cell_and_violate_nothing_succeed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(whole(), tmp_path) == 0
    cells = len(reachable())
    assert capsys.readouterr().out == (
        f"simulate: 8 sagas, 0 violations, {cells} of {cells} cells covered\n"
    )


def test_a_cell_that_was_never_reached_fails(tmp_path: Path) -> None:
    tally = whole()
    tally.coverage.counts["row 9: pending"] = 0
    assert status_of(tally, tmp_path) == 1


def test_a_cell_that_nobody_expected_fails(tmp_path: Path) -> None:
    tally = whole()
    tally.coverage.add(["row 99: pending"])
    assert status_of(tally, tmp_path) == 1


def test_a_violation_fails_and_its_run_is_kept(tmp_path: Path) -> None:
    tally = whole()
    tally.violations.append((1, "INV-1: step 'a' took effect 2 times"))
    assert status_of(tally, tmp_path) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["seed-1.json"]


def test_some_seeds_alone_do_not_reach_every_cell(tmp_path: Path) -> None:
    tally = run([0, 1])
    assert tally.violations == []
    assert status_of(tally, tmp_path) == 1


def test_the_small_scope_counts_its_schedules_by_their_crashes() -> None:
    scenarios = [next(one for one in scope() if one.forced == forced) for forced in ((), REFUSED)]
    total = explore_all(scenarios)
    line = re.fullmatch(
        r"exhaustive: 2 scenarios, (\d+) schedules "
        r"\(2 without, (\d+) with one, (\d+) with two crashes\), 0 violations",
        str(total),
    )
    assert line
    schedules, one, two = map(int, line.groups())
    assert schedules == 2 + one + two
    assert one > 10
    assert two > one
