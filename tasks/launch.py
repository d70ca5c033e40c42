"""What `atalaia worker` and `atalaia beat` turn into: Celery's own commands, with its options."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import NoReturn

import psutil

from orchestration import views
from orchestration.contract import RECOVERY_QUEUE_SUFFIX
from orchestration.errors import ConfigurationError, InputError, UnknownNameError
from orchestration.settings import Settings, settings
from orchestration.store import Store
from tasks.app import app
from tasks.lookup import existing_store
from tasks.pools import REPLACE_WAITING, require
from tasks.program import run
from tasks.queues import START_QUEUE, agent_queues
from tasks.sweeping import SUPERVISOR_POOL, SUPERVISOR_QUEUE

_NODE_NAME = "ATALAIA_NODE_NAME"
# -P: the folder that one happens to stand in must not shadow our own modules.
_PROGRAM = (sys.executable, "-P", "-m", "tasks.program")


def worker_command(
    *,
    queues: Sequence[str] = (),
    supervisor: bool = False,
    with_beat: bool = False,
    concurrency: int | None = None,
    name: str | None = None,
    pool: str | None = None,
) -> list[str]:
    """Return the command of a worker; raise what is wrong with it before anything is started.

    Without ``queues`` it takes whatever there is to do except for sweeps, which ``supervisor`` is
    for. A queue of agents comes with the one on which they are recovered.
    """
    given = settings()
    if supervisor and queues:
        raise InputError("--supervisor takes its own queue only; leave --queue out")
    if with_beat and not supervisor:
        raise InputError("--with-beat rings for the sweeps, so it goes with --supervisor")
    taken = [SUPERVISOR_QUEUE] if supervisor else _with_recovery(queues)
    store = existing_store(given)
    _require_broker()
    role = "supervisor" if supervisor else "worker"
    node = name or given.node_name or free_name(store, role)
    processes = concurrency or (1 if supervisor else given.concurrency)
    options = ["-n", node if "@" in node else f"{node}@%h", "-c", str(processes)]
    pool = pool or (SUPERVISOR_POOL if supervisor else None)
    if pool:
        require(pool)
        options += ["-P", pool]
    if with_beat:
        options.append("--with-beat")
    return [
        *_PROGRAM, "worker", *options, "-Q", ",".join(taken), "-l", "INFO", "--without-mingle",
        "--without-gossip",
    ]  # fmt: skip


def _with_recovery(queues: Sequence[str]) -> list[str]:
    known = [START_QUEUE, *agent_queues()]
    if not queues:
        return known
    for queue in queues:
        if queue not in [*known, SUPERVISOR_QUEUE]:
            raise UnknownNameError("queue", queue, [*known, SUPERVISOR_QUEUE])
    both = (name for queue in queues for name in (queue, queue + RECOVERY_QUEUE_SUFFIX))
    return list(dict.fromkeys(name for name in both if name in known or name in queues))


def _require_broker() -> None:
    if app.conf.broker_url.startswith("memory"):
        raise ConfigurationError(
            "there is no broker: set ATALAIA_BROKER_URL, or let `atalaia up` start everything"
        )


def free_name(store: Store, role: str) -> str:
    """Return the first of ``role1``, ``role2``, … that no living process of this host bears.

    A worker that is started again after a kill so gets its old name, and what it held is taken
    back at once.
    """
    host = socket.gethostname()
    with store.reading() as connection:
        pids = {node.name: node.pid for node in views.list_nodes(connection)}
    store.engine.dispose()
    for number in count(1):
        pid = pids.get(f"{role}{number}@{host}")
        if pid is None or pid == os.getpid() or not _is_a_worker(pid):
            return f"{role}{number}"
    raise AssertionError


def _is_a_worker(pid: int) -> bool:
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    names = {_PROGRAM[-1], "atalaia"}
    return any("celery" in word or Path(word).name in names for word in words)


def beat_command() -> list[str]:
    """Return the command of beat, which rings for the sweeps."""
    given: Settings = settings()
    _require_broker()
    given.home.mkdir(parents=True, exist_ok=True)
    return [*_PROGRAM, "beat", "--pidfile=", "-l", "INFO"]


def worker_environment(*, supervisor: bool, name: str | None) -> dict[str, str]:
    """Return the environment of a worker: two of one machine never share a node's name."""
    given = settings().node_name
    environment = {k: v for k, v in os.environ.items() if k.upper() != _NODE_NAME}
    if given and not name:
        environment[_NODE_NAME] = f"{given}-supervisor" if supervisor else given
    return environment


def become_worker(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Be a worker from now on, with what is imported already: that is most of a worker's start.

    Where Celery is to replace the functions that wait, it has to come before all else, in a process
    of its own.
    """
    if REPLACE_WAITING & set(command):
        become(command, environment)
    os.environ.clear()
    os.environ.update(environment)
    settings.cache_clear()
    run("worker", command[command.index("worker") + 1 :])


def become(command: list[str], environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Replace this process by ``command``, so that signals and the exit status are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    # There is no shell, and the program is this very Python.
    os.execve(command[0], command, environment)  # noqa: S606
