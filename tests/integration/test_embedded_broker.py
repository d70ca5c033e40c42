"""The embedded broker against real processes: adopted, killed, robbed of its port, raced for."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from orchestration.errors import ConfigurationError
from tasks.embedded import BrokerStartError, EmbeddedBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos

START_AND_STAY = """
import sys
from tasks.embedded import EmbeddedBroker
print(EmbeddedBroker(sys.argv[1]).start(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "broker"


@pytest.fixture
def broker(directory: Path) -> Iterator[EmbeddedBroker]:
    broker = EmbeddedBroker(directory)
    yield broker
    broker.stop()


@pytest.fixture
def owner(directory: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start processes that start the broker and stay until their input closes."""
    owners: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        owners.append(
            subprocess.Popen(
                [sys.executable, "-c", START_AND_STAY, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return owners[-1]

    yield start
    for process in owners:
        with process:
            process.kill()
    EmbeddedBroker(directory).stop()


def pid_of(directory: Path) -> int:
    return int(json.loads((directory / "broker.json").read_text())["pid"])


def servers_of(directory: Path) -> list[int]:
    """Return the pids of all live servers of ``directory``, which each has as its working one."""
    return [
        process.pid
        for process in psutil.process_iter(["name", "status", "cwd"])
        if "server" in process.info["name"]
        and process.info["cwd"] == str(directory)
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


def test_a_second_start_adopts_the_live_server(broker: EmbeddedBroker, directory: Path) -> None:
    url = broker.start()
    pid = pid_of(directory)

    assert broker.start() == url
    assert EmbeddedBroker(directory).start() == url
    assert servers_of(directory) == [pid]


def test_a_killed_server_is_replaced_under_the_same_url_with_its_data(
    broker: EmbeddedBroker, directory: Path
) -> None:
    url = broker.start()
    with connect(url) as client:
        client.rpush("kept", *range(100))
    eventually(
        lambda: b"kept" in b"".join(f.read_bytes() for f in directory.glob("appendonlydir/*.aof")),
        within=5,
        describe="the list is in the append-only file",
    )
    os.kill(pid_of(directory), signal.SIGKILL)

    assert broker.start() == url
    with connect(url) as client:
        assert client.llen("kept") == 100


def test_a_stopped_server_keeps_its_data_and_its_url(broker: EmbeddedBroker) -> None:
    url = broker.start()
    with connect(url) as client:
        client.set("kept", "yes")
    broker.stop()

    assert broker.start() == url
    with connect(url) as client:
        assert client.get("kept") == "yes"


def test_a_stolen_port_gives_a_new_url_and_keeps_the_data(
    broker: EmbeddedBroker, directory: Path
) -> None:
    url = broker.start()
    with connect(url) as client:
        client.set("kept", "yes")
    broker.stop()
    port = json.loads((directory / "broker.json").read_text())["port"]

    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        thief.settimeout(0)
        moved = broker.start()

    assert moved != url
    assert moved == broker.url()
    with connect(moved) as client:
        assert client.get("kept") == "yes"


def test_a_pid_that_now_belongs_to_another_process_is_left_alone(
    broker: EmbeddedBroker, directory: Path
) -> None:
    url = broker.start()
    broker.stop()
    state = directory / "broker.json"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        state.write_text(json.dumps(json.loads(state.read_text()) | {"pid": stranger.pid}))

        assert broker.start() == url
        assert stranger.poll() is None

        running = state.read_text()
        state.write_text(json.dumps(json.loads(running) | {"pid": stranger.pid}))
        broker.stop()
        assert stranger.poll() is None
        state.write_text(running)
        stranger.kill()


def test_racing_starters_give_one_server(
    owner: Callable[[], subprocess.Popen[str]], directory: Path
) -> None:
    owners = [owner() for _ in range(5)]
    urls = {process.stdout.readline() for process in owners if process.stdout}

    assert len(urls) == 1
    assert servers_of(directory) == [pid_of(directory)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_the_server_ends_when_its_owner_is_killed(
    owner: Callable[[], subprocess.Popen[str]], directory: Path
) -> None:
    process = owner()
    assert process.stdout
    url = process.stdout.readline().strip()
    with connect(url) as client:
        client.set("kept", "yes")
    process.kill()

    eventually(lambda: not servers_of(directory), within=10, describe="the server has ended")
    heir = EmbeddedBroker(directory)
    assert heir.start() == url
    with connect(url) as client:
        assert client.get("kept") == "yes"
    heir.stop()


def test_the_password_is_readable_by_the_owner_only(
    broker: EmbeddedBroker, directory: Path
) -> None:
    url = broker.start()
    password = url.removeprefix("redis://:").partition("@")[0]

    assert directory.stat().st_mode & 0o077 == 0
    holders = [f for f in directory.iterdir() if f.is_file() and password in f.read_text()]
    assert {f.name for f in holders} == {"broker.conf", "broker.json"}
    assert all(f.stat().st_mode & 0o077 == 0 for f in holders)
    assert password not in " ".join(psutil.Process(pid_of(directory)).cmdline())
    with pytest.raises(redis.AuthenticationError), connect(url.replace(password, "no")) as client:
        client.ping()


def test_it_listens_on_the_loopback_interface_only(broker: EmbeddedBroker, directory: Path) -> None:
    broker.start()
    listening = psutil.Process(pid_of(directory)).net_connections("inet")
    assert {c.laddr.ip for c in listening if c.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def test_a_full_server_refuses_instead_of_dropping_messages(broker: EmbeddedBroker) -> None:
    with connect(broker.start()) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}


def test_a_server_that_cannot_start_says_what_its_log_says(
    broker: EmbeddedBroker, directory: Path
) -> None:
    broker.start()
    broker.stop()
    (directory / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(BrokerStartError, match=r"does not start(.|\n)*AOF"):
        broker.start()


def test_without_any_server_program_the_error_names_the_setting(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.embedded.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match="ATALAIA_BROKER_URL"):
        broker.start()


def test_a_configured_program_that_is_not_there_is_named(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATALAIA_VALKEY_BIN", "/nowhere/valkey-server")
    with pytest.raises(ConfigurationError, match="ATALAIA_VALKEY_BIN=/nowhere"):
        broker.start()


def test_the_url_of_a_broker_that_never_ran_is_refused(broker: EmbeddedBroker) -> None:
    with pytest.raises(BrokerStartError, match="no embedded broker was ever started"):
        broker.url()


def test_it_can_be_stopped_while_whoever_started_it_lives_on(
    directory: Path, owner: Callable[[], subprocess.Popen[str]]
) -> None:
    starter = owner()
    assert starter.stdout is not None
    starter.stdout.readline()
    server = psutil.Process(pid_of(directory))
    before = time.monotonic()
    EmbeddedBroker(directory).stop()
    assert time.monotonic() - before < 5
    assert starter.poll() is None
    assert server.status() == psutil.STATUS_ZOMBIE  # ended, though its parent has not looked
