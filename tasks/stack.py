"""All roles on one machine: what `atalaia up` starts, keeps running and stops.

A home belongs to one stack at a time. The processes are started together, each is looked at until
it does its work, one that dies later is started again, and all of them end with this process. None
of it keeps a saga alive: killing any of them, or all, is what the rows are made for.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from migrations.run import upgrade
from orchestration.database import open_engine
from orchestration.errors import AtalaiaError, ConfigurationError
from orchestration.events import Dispatch
from orchestration.registry import load_module, load_workflows, registry
from orchestration.scheduler import Scheduler
from orchestration.settings import Settings
from orchestration.store import Store
from tasks.embedded import EmbeddedBroker
from tasks.processes import (
    Child,
    StartError,
    ended_by_signals,
    free_ports,
    port_is_free,
    stop,
    wait_until_ready,
)
from tasks.roles import FLOWER_LOGIN, FLOWER_USER, Roles

READY_WITHIN_SECONDS = 60.0
STOP_WITHIN_SECONDS = 8.0
TEND_SECONDS = 0.2


class HomeTakenError(AtalaiaError):
    """Another stack runs in the same home."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where a person finds what runs; ``None``: it was not asked for."""

    home: Path
    web: str | None
    flower: str | None

    def lines(self) -> Iterator[str]:
        """Yield them as lines to read."""
        if self.web:
            yield f"web      {self.web}/docs"
        if self.flower:
            secret = self.home / FLOWER_LOGIN
            yield f"flower   {self.flower} (user {FLOWER_USER}, its password is in {secret})"
        yield f"logs     {self.home / 'logs'}"


class Stack:
    """The processes of one home, as a context manager. Use it from a main thread, and from one.

    Raises ``HomeTakenError``, ``ConfigurationError`` and ``StartError``; whatever was started until
    then is stopped. Port 0 in the settings means any free one; ``environment`` is added to what the
    processes inherit.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        workers: int = 1,
        flower: bool = True,
        web: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        home = settings.home.resolve()
        self.settings = settings.model_copy(update={"home": home, **_ports(settings)})
        self.home = home
        self.broker = None if settings.broker_url else EmbeddedBroker(home / "broker")
        self.store = Store(open_engine(self.settings.database))
        self.roles = roles = Roles(self.settings, self.store, environment or {})
        self.workers = list(roles.workers(workers))
        self.supervisor = roles.supervisor()
        self.flower = roles.flower() if flower else None
        self.web = roles.web() if web else None
        self._rest = ExitStack()

    @property
    def addresses(self) -> Addresses:
        """Where a person finds what runs."""
        here = "http://127.0.0.1:{}".format
        return Addresses(
            home=self.home,
            web=here(self.settings.web_port) if self.web else None,
            flower=here(self.settings.flower_port) if self.flower else None,
        )

    def in_stop_order(self) -> list[list[Child]]:
        """Return the children in the order of their end: no new work, no work, no view of it."""
        groups: Sequence[Sequence[Child | None]] = (
            [self.web],
            [*self.workers, self.supervisor],
            [self.flower],
        )
        return [[child for child in group if child] for group in groups]

    @property
    def children(self) -> list[Child]:
        """All children, those that are stopped last first."""
        return [child for group in reversed(self.in_stop_order()) for child in group]

    def __enter__(self) -> Self:
        """Start everything and return once all of it works."""
        with ExitStack() as started:
            started.enter_context(locked(self.home))
            started.callback(self.store.engine.dispose)
            self._check_ports()
            if self.broker:
                started.callback(self.broker.stop)
                self.broker.start()
            prepare(self.settings, self.store)
            self.roles.write_flower_file()
            started.callback(self._stop_children)
            for child in self.children:
                child.start()
            wait_until_ready(self.children, READY_WITHIN_SECONDS, self._check_broker)
            self._rest = started.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything: tidily, or at once if a signal comes meanwhile."""
        self._rest.close()

    def tend(self) -> list[str]:
        """Look at everything once and start again what has died; return a line for each."""
        lines = [child.tend() for child in self.children]
        if self.broker and not self.broker.runs():
            lines.append(_restarted(self.broker))
        return [line for line in lines if line]

    def run(self, say: Callable[[str], None]) -> None:
        """Tend for as long as nobody ends this process."""
        while True:
            for line in self.tend():
                say(line)
            time.sleep(TEND_SECONDS)

    def _check_broker(self) -> None:
        if self.broker and not self.broker.runs():
            raise StartError(f"the broker has ended; see {self.home / 'broker' / 'broker.log'}")

    def _check_ports(self) -> None:
        for name in ("web", "flower"):
            port = getattr(self.settings, f"{name}_port")
            if getattr(self, name) and not port_is_free(port):
                raise ConfigurationError(
                    f"port {port} of 127.0.0.1 is taken; set ATALAIA_{name.upper()}_PORT to "
                    "another one, or to 0 for any that is free"
                )

    def _stop_children(self) -> None:
        deadline = time.monotonic() + STOP_WITHIN_SECONDS
        try:
            for group in self.in_stop_order():
                stop(group, deadline)
        finally:
            for child in self.children:
                child.bury()


def _say(line: str) -> None:
    """Print a line at once, also into a file."""
    print(line, flush=True)  # noqa: T201 - the program's own words


def up(
    settings: Settings,
    *,
    workers: int = 1,
    flower: bool = True,
    web: bool = True,
    say: Callable[[str], None] = _say,
) -> None:
    """Run the whole stack until Ctrl-C, or until another signal ends the program."""
    stack = Stack(settings, workers=workers, flower=flower, web=web)
    with ended_by_signals(), contextlib.suppress(KeyboardInterrupt), stack:
        for line in stack.addresses.lines():
            say(line)
        say("ready; stop with Ctrl-C")
        stack.run(say)


def prepare(settings: Settings, store: Store) -> None:
    """Bring the database up to date and store the definitions, or raise what is wrong with them."""
    for name in settings.agents:
        load_module(name, "ATALAIA_AGENTS")
    load_workflows(settings.workflows)
    upgrade(store.engine)
    Scheduler(store, _NoBroker(), registry).register_definitions()
    store.engine.dispose()


def _restarted(broker: EmbeddedBroker) -> str:
    try:
        broker.start()
    except AtalaiaError as error:
        return str(error)
    return "the broker has ended and was started again"


class _NoBroker:
    """For what sends nothing."""

    def publish(self, dispatches: Sequence[Dispatch]) -> None:
        del dispatches

    def depth(self, queue: str) -> int | None:
        del queue
        return None


@contextlib.contextmanager
def locked(home: Path) -> Iterator[None]:
    """Hold the home; raise ``HomeTakenError`` if another process does."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "up.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise HomeTakenError(
                f"another `atalaia up` (pid {file.read().strip() or 'unknown'}) runs in {home}; "
                "stop it, or set ATALAIA_HOME to another folder"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _ports(settings: Settings) -> dict[str, int]:
    """Return a free port for each that is left open."""
    names = [name for name in ("web_port", "flower_port") if getattr(settings, name) == 0]
    return dict(zip(names, free_ports(len(names)), strict=True))
