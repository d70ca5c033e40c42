"""A worker that cannot enter the roster ends; one that stayed would take messages in vain."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.commands import ROOT


def test_a_worker_that_cannot_reach_its_database_ends(valkey_url: str, tmp_path: Path) -> None:
    env = os.environ | {
        "ATALAIA_DATABASE_URL": "postgresql+psycopg://nobody@127.0.0.1:1/nothing",
        "ATALAIA_BROKER_URL": valkey_url,
        "PYTHONPATH": str(ROOT),
    }
    words = [sys.executable, "-P", "-m", "tasks.program", "worker", "-P", "solo"]
    done = subprocess.run(
        words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "cannot enter the roster" in done.stdout + done.stderr
    assert " ready." not in done.stdout + done.stderr
