"""Whether what runs here gives signs of life: ``python -m tasks.alive worker``, or ``beat``.

For what restarts or reports a container that is there and does nothing. Exits with 0 or 1. The web
app and Flower answer such a question themselves, over HTTP.
"""

import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from orchestration import views
from orchestration.roster import Roster
from orchestration.settings import settings
from orchestration.store import Store
from tasks.lookup import existing_store

RINGS_MISSED = 5


def a_worker_lives(store: Store, host: str, timeout: timedelta) -> bool:
    """Tell whether some worker on ``host`` has given a sign of life within ``timeout``."""
    silent = {node_id for node_id, _ in Roster(store).silent(timeout)}
    with store.reading() as connection:
        nodes = views.list_nodes(connection)
    return any(node.id not in silent and node.name.endswith(f"@{host}") for node in nodes)


def beat_rings(home: Path, interval: timedelta) -> bool:
    """Tell whether beat, which writes down each ring, has done so within some intervals."""
    written = [path.stat().st_mtime for path in home.glob("beat-schedule*")]
    with tempfile.NamedTemporaryFile(dir=home) as fresh:
        now = Path(fresh.name).stat().st_mtime  # By the same clock, that of the file system.
    return bool(written) and now - max(written) < RINGS_MISSED * interval.total_seconds()


def main(role: str) -> int:
    """Return the exit status for a role."""
    given = settings()
    if role == "beat":
        return not beat_rings(given.home, given.sweep_interval)
    return not a_worker_lives(existing_store(given), socket.gethostname(), given.node_timeout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
