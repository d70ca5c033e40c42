"""What Atalaia leaves in a broker: its queues, empty, and the bindings that lead to them."""

import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis
from amqp.exceptions import NotFound
from kombu.utils.url import url_to_parts

from models.states import SagaState
from tasks.watched import PATIENCE_SECONDS
from tests.support import services
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.workers import Process, Rig

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]
SAGAS = 200
QUEUES = {"atalaia", "supervisor", "default", "default.recovery"}
FOR_ALL = {"_kombu.binding.atalaia-tasks", "_kombu.binding_permanent.atalaia-tasks"}
"""Where Redis keeps which queues there are, besides the queues themselves."""
OF_EXCHANGES = "_kombu.binding_deadlines"
"""Where Redis keeps which exchanges with queues that expire there are: those of remote control."""


def run_sagas(rig: Rig) -> list[Process]:
    """Run everything until all sagas have ended; return the processes, which still run."""
    names = "agents", "others"
    workers = [rig.worker(name, services=["default"], wait=name == "others") for name in names]
    processes = [*workers, rig.supervisor(), rig.beat()]
    handles = [rig.scheduler.start("first", {"guest": "Ada"}) for _ in range(SAGAS)]
    assert rig.celery.control.inspect(timeout=2).ping()
    for handle in handles:
        assert handle.wait(120).state is SagaState.COMPLETED
    return processes


def stop(processes: list[Process]) -> None:
    """Stop as an operator does, and wait for the end."""
    for process in processes:
        assert process.started is not None
        process.started.send_signal(signal.SIGTERM)
    for process in processes:
        assert process.started is not None
        assert process.started.wait(60) == 0


def in_redis(url: str) -> dict[str, set[str]]:
    """Return every key, with the members of those that are sets."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        found: Any = client.keys("*")
        return {
            key: set(client.smembers(key)) if client.type(key) == "set" else set() for key in found
        }


def queue_of(member: str) -> str:
    return member.rsplit("\x06\x16", maxsplit=1)[-1]


@pytest.mark.parametrize(
    "kind", ["valkey", pytest.param("redis", marks=pytest.mark.xdist_group("redis"))]
)
def test_after_two_hundred_sagas_redis_holds_the_names_of_queues_and_nothing_else(
    kind: str,
    request: pytest.FixtureRequest,
    postgres: Any,
    postgres_template: str,
    tmp_path: Path,
) -> None:
    given = kind == "redis"
    url = services.given(services.REDIS) if given else request.getfixturevalue("valkey_url")
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    with rig_on(postgres, postgres_template, url, tmp_path) as rig:
        processes = run_sagas(rig)
        stop(processes)
        left = in_redis(url)
    assert set(left) <= {*FOR_ALL, OF_EXCHANGES}, left
    assert {queue_of(member) for key in FOR_ALL for member in left[key]} == QUEUES


@contextmanager
def rig_on(postgres: Any, template: str, url: str, home: Path) -> Iterator[Rig]:
    first = {"ATALAIA_AGENTS": "examples.first", "ATALAIA_WORKFLOWS": "examples.first"}
    with postgres.database(template) as database:
        rig = Rig(database, url, home, {}, first)
        try:
            yield rig
        finally:
            rig.stop()


# --- RabbitMQ ------------------------------------------------------------------------------------

METHOD = 1
DECLARE, DECLARED = (50, 10), (50, 11)


class Declarations(Proxy):
    """A proxy before RabbitMQ that notes the name of every queue that anybody declares.

    A client cannot ask the server which queues there are.
    """

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.names: set[str] = set()
        self.noting = threading.Lock()

    def _pump(
        self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]
    ) -> None:
        super()._pump(_Read(source, self.note), sink, pair)  # type: ignore[arg-type]

    def note(self, name: str) -> None:
        with self.noting:
            self.names.add(name)


class _Read:
    """A socket whose frames are read along."""

    def __init__(self, source: socket.socket, note: Callable[[str], None]) -> None:
        self.source, self.note, self.rest = source, note, b""

    def recv(self, size: int) -> bytes:
        chunk = self.source.recv(size)
        self.rest += chunk
        if self.rest.startswith(b"AMQP"):
            self.rest = self.rest[8:]
        while len(self.rest) >= 7:
            kind, _, length = struct.unpack(">BHI", self.rest[:7])
            if len(self.rest) < length + 8:
                break
            frame, self.rest = self.rest[7 : 7 + length], self.rest[length + 8 :]
            if kind == METHOD:
                self._look(frame)
        return chunk

    def _look(self, frame: bytes) -> None:
        method = struct.unpack(">HH", frame[:4])
        at = {DECLARE: 6, DECLARED: 4}.get(method)
        if at is not None and (length := frame[at]):
            self.note(frame[at + 1 : at + 1 + length].decode())


@pytest.mark.xdist_group("rabbitmq")
def test_after_two_hundred_sagas_rabbitmq_holds_the_queues_empty_and_no_others(
    postgres: Any,
    postgres_template: str,
    tmp_path: Path,
) -> None:
    url = services.rabbitmq()
    parts = url_to_parts(url)
    with (
        Declarations(parts.port or 5672) as proxy,
        rig_on(
            postgres, postgres_template, url.replace(f":{parts.port}", f":{proxy.port}"), tmp_path
        ) as rig,
    ):  # fmt: skip
        processes = run_sagas(rig)
        while_running = messages_in(url, proxy.names)
        stop(processes)
        left = messages_in(url, proxy.names)
    assert "agents@test.celery.pidbox" in while_running, "the proxy has seen what is declared"
    others = {name for name in left if not name.startswith("release-")}
    assert others == QUEUES
    assert len(left.keys() - others) <= 2, "one pair for the release that ran, which expires"
    assert set(left.values()) == {0}


def messages_in(url: str, names: set[str]) -> dict[str, int]:
    """Return how many messages are in those of the queues that are there."""
    found = {}
    with kombu.Connection(url) as connection:
        for name in sorted(names):
            channel: Any
            with connection.channel() as channel:
                try:
                    found[name] = channel.queue_declare(queue=name, passive=True).message_count
                except NotFound:
                    continue
                except connection.channel_errors:
                    found[name] = 0  # It is there, and belongs to another connection.
    return found


# --- events --------------------------------------------------------------------------------------


def test_events_of_tasks_are_sent_while_somebody_watches(rig: Rig) -> None:
    rig.worker("agents", options=["-l", "INFO"])
    with watching(rig) as seen:
        assert rig.start_trip().wait(30).state is SagaState.COMPLETED
        assert seen == set(), "nobody has asked for them"
        rig.celery.control.enable_events()
        trip = rig.start_trip()
        assert trip.wait(30).state is SagaState.COMPLETED
        eventually(lambda: "task-succeeded" in seen, within=10, describe="events are sent")
        log = rig.home / "agents.log"
        eventually(
            lambda: "since nobody watches" in log.read_text(),
            within=PATIENCE_SECONDS + 10,
            describe="nobody has asked again",
        )
        seen.clear()
        assert rig.start_trip().wait(30).state is SagaState.COMPLETED
        assert seen == set()


@contextmanager
def watching(rig: Rig) -> Iterator[set[str]]:
    """Collect the kinds of events about tasks, without asking for any."""
    seen: set[str] = set()
    hears = threading.Event()

    def take(event: dict[str, Any]) -> None:
        hears.set()
        if event["type"].startswith("task-"):
            seen.add(event["type"])

    with rig.celery.connection_for_read() as connection:
        receiver: Any = rig.celery.events.Receiver(connection, handlers={"*": take})
        thread = threading.Thread(target=receiver.capture, kwargs={"wakeup": False})
        thread.start()
        try:
            assert hears.wait(20), "workers say that they live"
            yield seen
        finally:
            receiver.should_stop = True
            thread.join()
