"""Pool children that are forked while the worker's parent is busy with the database."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.workers import ROOT

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

FORK_MANY = """
import os, sys
from migrations.run import upgrade
from tasks.app import join_as, runtime
from tasks.node import Keeper

parts = runtime()
upgrade(parts.store.engine)
node, _ = parts.roster.register("parent", os.getpid(), [], [])
join_as(node)
keeper = Keeper(node, set)
keeper.heartbeat = 0.0
keeper.look = keeper.beat  # beats as often as it looks
os.register_at_fork(
    before=keeper.before_fork,
    after_in_parent=keeper.after_fork,
    after_in_child=keeper.after_fork,
)
import tasks.node
tasks.node.LOOK_SECONDS = 0.0
keeper.start()
failed = 0
for _ in range(60):
    pid = os.fork()
    if pid == 0:
        try:
            runtime().roster.register("child", os.getpid(), [], [])
        except Exception as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    failed += os.waitpid(pid, 0)[1] != 0
keeper.ended.set()
keeper.join()
print(failed)
"""


def test_a_child_never_finds_the_database_locked_by_what_it_inherited(
    rig_env: dict[str, str],
) -> None:
    """Without the keeper's fork hooks the first unlucky child waits for ever."""
    done = subprocess.run(
        [sys.executable, "-c", FORK_MANY],
        cwd=ROOT, env=rig_env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "0", done.stderr[-2000:]


@pytest.fixture
def rig_env(tmp_path: Path) -> dict[str, str]:
    return os.environ | {
        "ATALAIA_HOME": str(tmp_path),
        "ATALAIA_DATABASE_URL": f"sqlite:///{tmp_path}/fork.db?timeout=5",
        "ATALAIA_BROKER_URL": "memory://localhost/",
        "PYTHONPATH": str(ROOT),
    }
