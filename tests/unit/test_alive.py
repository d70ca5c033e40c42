"""A beat that no longer rings is told from one that does by the age of its file."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from tasks.alive import RINGS_MISSED, beat_rings

INTERVAL = timedelta(seconds=2)


@pytest.mark.parametrize(("late", "alive"), [(0, True), (-1, True), (1, False)])
def test_a_beat_that_has_missed_some_rings_is_not_alive(
    tmp_path: Path, late: int, alive: bool
) -> None:
    file = tmp_path / "beat-schedule.db"
    file.touch()
    age = RINGS_MISSED * INTERVAL.total_seconds() + late if late else 0
    written = file.stat().st_mtime - age
    os.utime(file, (written, written))
    assert beat_rings(tmp_path, INTERVAL) is alive


def test_a_beat_that_never_rang_is_not_alive(tmp_path: Path) -> None:
    assert not beat_rings(tmp_path, INTERVAL)
    assert list(tmp_path.iterdir()) == []
