"""The command lines of `atalaia up`: which processes there are, and how to see that each works."""

import http.client
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestration import views
from orchestration.settings import Settings
from orchestration.store import Store
from tasks.processes import Child, write_private
from tasks.sweeping import SUPERVISOR_POOL, SUPERVISOR_QUEUE

FLOWER_USER = "atalaia"
FLOWER_LOGIN = "flower.json"
FLOWER_FILE = "flower.conf"
# -P: the folder that one happens to stand in must not shadow our own modules.
_PYTHON = (sys.executable, "-P", "-m")
_PROGRAM = (*_PYTHON, "tasks.program")
_FLOWER_PROGRAM = (*_PYTHON, "celery", "-A", "tasks.app", "flower")
_ANSWER_SECONDS = 1.0
_FLOWER = """\
address = "127.0.0.1"
port = {port}
basic_auth = ["{user}:{password}"]
read_only = True
tasks_columns = "name,args,result,state,worker,received,runtime"
"""


class Roles:
    """Makes the children; ``settings`` hold the ports that they really get."""

    def __init__(self, settings: Settings, store: Store, more: Mapping[str, str]) -> None:
        self.settings = settings
        self.store = store
        self.home = settings.home
        self.environment = environment(settings) | dict(more)

    def workers(self, count: int) -> Iterator[Child]:
        """Yield workers that take everything but the supervisor's queue."""
        for number in range(1, count + 1):
            options = ("-c", str(self.settings.concurrency), "-X", SUPERVISOR_QUEUE)
            yield self._worker(number, f"worker{number}", *options)

    def supervisor(self) -> Child:
        """Return the worker that rings for the sweeps and sweeps, so that no backlog starves it."""
        options = ("-P", SUPERVISOR_POOL, "-c", "1", "-Q", SUPERVISOR_QUEUE, "--with-beat")
        return self._worker(0, "supervisor", *options)

    def _worker(self, number: int, name: str, *arguments: str) -> Child:
        options = ("-n", f"{name}@%h", "--without-mingle", "--without-gossip", "-l", "INFO")
        own, port = self.settings.node_name, self.settings.metrics_port
        more = {"ATALAIA_NODE_NAME": f"{own}-{name}"} if own else {}
        if port:  # One machine, one port for each.
            more["ATALAIA_METRICS_PORT"] = str(port + number)
        return self._child(
            name, _PROGRAM, "worker", *options, *arguments, ready=self._beats, **more
        )

    def flower(self) -> Child:
        """Return Flower: to look only, on 127.0.0.1, behind a password."""
        ready = _answers(self.settings.flower_port, "/healthcheck", {200})
        file = self.home / FLOWER_FILE
        return self._child("flower", _FLOWER_PROGRAM, f"--conf={file}", ready=ready)

    def write_flower_file(self) -> None:
        """Write Flower's settings, with the password of the last time if there was one."""
        password = flower_password(self.home) or secrets.token_urlsafe(16)
        text = _FLOWER.format(port=self.settings.flower_port, user=FLOWER_USER, password=password)
        write_private(self.home / FLOWER_LOGIN, json.dumps({FLOWER_USER: password}))
        write_private(self.home / FLOWER_FILE, text)

    def web(self) -> Child:
        """Return the web app; it may say that nobody sweeps yet."""
        ready = _answers(self.settings.web_port, "/health", {200, 503})
        return self._child("web", (*_PYTHON, "tasks.serve"), ready=ready)

    def _child(
        self,
        name: str,
        program: tuple[str, ...],
        *arguments: str,
        ready: Callable[[Child], bool],
        **more: str,
    ) -> Child:
        return Child(
            name,
            [*program, *arguments],
            log=self.home / "logs" / f"{name}.log",
            ready=ready,
            environment=self.environment | more,
        )

    def _beats(self, child: Child) -> bool:
        """Tell whether a worker has entered the roster and has given a sign of life since."""
        with self.store.reading() as connection:
            nodes = views.list_nodes(connection)
        return any(node.pid == child.pid and node.heartbeat_at > node.started_at for node in nodes)


def environment(settings: Settings) -> dict[str, str]:
    """Return this process's environment with exactly these settings in it."""
    names = {f"ATALAIA_{name.upper()}" for name in Settings.model_fields}
    rest = {name: value for name, value in os.environ.items() if name.upper() not in names}
    given = settings.model_dump(mode="json", exclude_none=True)
    texts = {f"ATALAIA_{name.upper()}": _text(value) for name, value in given.items()}
    return {**rest, **texts, "PYTHONUNBUFFERED": "1"}


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def flower_password(home: Path) -> str | None:
    """Return the password that protects Flower, or ``None`` before its first start."""
    try:
        return str(json.loads((home / FLOWER_LOGIN).read_text())[FLOWER_USER])
    except (OSError, ValueError, KeyError):
        return None


def _answers(port: int, path: str, good: set[int]) -> Callable[[Child], bool]:
    def ready(child: Child) -> bool:
        del child
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().status in good
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return ready
