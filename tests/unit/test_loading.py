"""Loading a process leaves it as it was, but for what was loaded."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.loading import without_collecting

LOADS = """
import gc
try:
    import tasks.app
except Exception as error:
    print(type(error).__name__, gc.isenabled())
"""


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_looked_for_afterwards_if_it_was_before(
    collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched: list[bool] = []
    monkeypatch.setattr(gc, "isenabled", lambda: collects)
    monkeypatch.setattr(gc, "disable", lambda: switched.append(False))
    monkeypatch.setattr(gc, "enable", lambda: switched.append(True))
    with pytest.raises(ZeroDivisionError), without_collecting():
        _ = 1 / 0
    assert switched == [False, True][: 1 + collects]


def test_what_fails_to_load_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    environment = {"ATALAIA_HOME": str(tmp_path), "ATALAIA_AGENTS": "no.such.module"}
    done = subprocess.run(
        [sys.executable, "-c", LOADS], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "ConfigurationError True\n"
