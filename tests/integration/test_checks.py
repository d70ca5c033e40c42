"""`atalaia check` against real servers that are set up to lose work, and against good ones."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis
from sqlalchemy.engine import make_url

from orchestration.database import open_engine
from tasks.embedded import _program
from tests.support import services
from tests.support.commands import ROOT, Forks, forks
from tests.support.postgres import Postgres
from tests.support.waiting import eventually

ATALAIA = Path(sys.executable).with_name("atalaia")
SECONDS = 20
Start = Callable[..., str]
TAKES = """
from tasks.app import app
with app.connection_for_read() as connection:
    taken = []
    channel = connection.channel()
    queue = app.amqp.queues["supervisor"]
    with app.amqp.TaskConsumer(channel, [queue], on_message=lambda m: (taken.append(m), m.ack())):
        connection.drain_events(timeout=10)
    assert len(taken) == 1 and type(channel).__module__ == "tasks.channel"
    assert connection.as_uri().partition("://")[0] in ("redis", "sentinel")
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server with the given settings, and returns its URL; all of them end afterwards."""
    with ExitStack() as stack:

        def started(*settings: str, sentinel: bool = False) -> str:
            port = free_port()
            file = tmp_path / f"{port}.conf"
            lines = [f"port {port}", "bind 127.0.0.1", f'dir "{tmp_path}"', *settings]
            file.write_text("\n".join(lines))
            words = [_program(), str(file), *(["--sentinel"] if sentinel else [])]
            server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            stack.callback(ended, server)
            eventually(lambda: answers(port), within=SECONDS, describe=f"it answers: {settings}")
            return f"redis://127.0.0.1:{port}/0"

        yield started


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(port: int) -> bool:
    with redis.Redis(port=port) as client:
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False


def ended(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()
    server.wait(SECONDS)


class Checked:
    """What one run of the command says."""

    def __init__(self, forking: Forks, folder: Path, **settings: str) -> None:
        self.forking = forking
        self.folder = folder
        self.settings = settings

    @property
    def env(self) -> dict[str, str]:
        ours = {k: v for k, v in os.environ.items() if not k.startswith("ATALAIA_")}
        return ours | {"COLUMNS": "400"} | self.settings

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        words = ("check", *words)
        if not (self.folder / "celeryconfig.py").exists():
            with tempfile.TemporaryDirectory() as spool:
                return self.forking.run(words, self.folder, self.env, "", Path(spool))
        return subprocess.run(
            [ATALAIA, *words],
            cwd=self.folder,
            # Its settings hide those of Atalaia.
            env=self.env | {"PYTHONPATH": f"{self.folder}:{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )

    def found(self, level: str) -> dict[str, dict[str, str]]:
        """Return the findings of a level by their settings, or by their texts if they name none."""
        return {one.get("setting") or one["text"]: one for one in self.document[level]}

    @cached_property
    def document(self) -> dict[str, Any]:
        done = self.run("--json")
        told: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == bool(told["errors"]), done
        return told


Look = Callable[..., Checked]


@pytest.fixture(scope="module")
def forking() -> Iterator[Forks]:
    with forks() as process:
        yield process


@pytest.fixture
def look(forking: Forks, tmp_path: Path) -> Look:
    """Makes the command for a folder of its own and the given environment."""
    return partial(Checked, forking, tmp_path)


def settings_named(found: dict[str, dict[str, str]]) -> set[str]:
    return {name for name, one in found.items() if "setting" in one}


# --- Redis and Valkey ----------------------------------------------------------------------------


def test_a_broker_that_keeps_its_messages_is_praised(start: Start, look: Look) -> None:
    checked = look(ATALAIA_BROKER_URL=start("appendonly yes"))
    assert "ATALAIA_BROKER_URL answers" in checked.found("ok")
    assert settings_named(checked.found("warnings")) == set()
    assert checked.found("notes") == {}


def test_eviction_and_no_file_are_told_with_what_is_lost_and_what_to_do(
    start: Start, look: Look
) -> None:
    url = start("appendonly no", "save ''", "maxmemory 10mb", "maxmemory-policy allkeys-lru")
    checked = look(ATALAIA_BROKER_URL=url)
    found = checked.found("warnings")
    assert settings_named(found) == {"maxmemory-policy", "appendonly"}
    assert "allkeys-lru" in found["maxmemory-policy"]["text"]
    assert "every message" in found["appendonly"]["text"]
    for one in (found["maxmemory-policy"], found["appendonly"]):
        assert "only time is lost" in one["why"]
        assert one["remedy"].startswith("CONFIG SET")
    done = checked.run()
    assert done.returncode == 0
    assert "to do: CONFIG SET maxmemory-policy noeviction" in done.stdout


def test_a_file_that_is_never_flushed_and_snapshots_are_not_enough(
    start: Start, look: Look
) -> None:
    snapshots = look(ATALAIA_BROKER_URL=start("appendonly no", "save 60 1"))
    assert "after its last snapshot" in snapshots.found("warnings")["appendonly"]["text"]
    lazy = look(ATALAIA_BROKER_URL=start("appendonly yes", "appendfsync no"))
    assert settings_named(lazy.found("warnings")) == {"appendfsync"}


def test_settings_that_may_not_be_read_are_a_note(start: Start, look: Look) -> None:
    user = "user managed on >geheim ~* &* +@all -config"
    url = start("appendonly no", user).replace("redis://", "redis://managed:geheim@")
    checked = look(ATALAIA_BROKER_URL=url)
    (text,) = checked.found("notes")
    assert text.startswith("its settings could not be read (")
    assert checked.found("errors") == {}
    assert settings_named(checked.found("warnings")) == set()
    assert "geheim" not in checked.run().stdout


def test_a_cluster_is_an_error(start: Start, look: Look) -> None:
    checked = look(ATALAIA_BROKER_URL=start("cluster-enabled yes", f"cluster-port {free_port()}"))
    assert "Sentinel" in checked.found("errors")["cluster-enabled"]["remedy"]


def test_sentinel_leads_to_the_primary_for_check_and_for_messages(
    start: Start, look: Look, tmp_path: Path
) -> None:
    primary = make_url(start("appendonly no", "requirepass geheim"))
    port = primary.port
    guards = [
        start(
            f"sentinel monitor ours 127.0.0.1 {port} 1",
            "sentinel auth-pass ours geheim",
            sentinel=True,
        )
        for _ in range(2)
    ]
    url = ";".join(f"sentinel://:geheim@127.0.0.1:{make_url(one).port}/0" for one in guards)
    nameless = look(ATALAIA_BROKER_URL=url)
    (text,) = nameless.found("errors")
    assert "broker_master must name" in text

    checked = look(ATALAIA_BROKER_URL=url, ATALAIA_BROKER_MASTER="ours")
    assert "ATALAIA_BROKER_URL answers" in checked.found("ok")
    assert settings_named(checked.found("warnings")) == {"appendonly"}

    program = "from tasks.app import app; app.send_task('atalaia.sweep', queue='supervisor')"
    python = ATALAIA.with_name("python")
    env = os.environ | checked.settings
    subprocess.run([python, "-c", program], cwd=tmp_path, env=env, check=True)
    with redis.Redis(port=port or 0, password="geheim") as client:
        assert client.llen("supervisor") == 1
        subprocess.run([python, "-c", TAKES], cwd=tmp_path, env=env, check=True)
        assert client.exists("supervisor", "unacked", "unacked_index") == 0

    unknown = look(ATALAIA_BROKER_URL=url, ATALAIA_BROKER_MASTER="another")
    (text,) = unknown.found("errors")
    assert "does not answer" in text


# --- Celery's own settings -----------------------------------------------------------------------


def test_settings_of_celery_that_cost_work_are_told(look: Look, tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text(
        'result_backend = "rpc://"\n'
        "task_acks_late = False\n"
        "worker_prefetch_multiplier = 4\n"
        "task_reject_on_worker_lost = True\n"
        'accept_content = ["json", "pickle"]\n'
        'broker_transport_options = {"visibility_timeout": 5}\n'
    )
    found = look().found("warnings")
    assert settings_named(found) == {
        "result_backend",
        "task_acks_late",
        "worker_prefetch_multiplier",
        "task_reject_on_worker_lost",
        "accept_content",
        "broker_transport_options.visibility_timeout",
    }


# --- RabbitMQ ------------------------------------------------------------------------------------


@pytest.mark.xdist_group("rabbitmq")
def test_a_queue_of_another_type_is_an_error_and_no_queue_is_made(look: Look) -> None:
    url = services.rabbitmq()
    with kombu.Connection(url) as connection:
        for name in ("hotels", "mail"):
            kombu.Queue(name)(connection.channel()).delete()
        assert look(ATALAIA_BROKER_URL=url).found("errors") == {}
        with pytest.raises(connection.channel_errors):
            kombu.Queue("mail")(connection.channel()).queue_declare(passive=True)
        kombu.Queue("hotels")(connection.channel()).queue_declare()
        found = look(ATALAIA_BROKER_URL=url).found("errors")
        kombu.Queue("hotels")(connection.channel()).delete()
    assert found["x-queue-type"]["text"] == "not quorum queues: hotels"
    assert "rabbitmqctl delete_queue" in found["x-queue-type"]["remedy"]


@pytest.mark.xdist_group("rabbitmq")
def test_unconfirmed_messages_are_told(look: Look, tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text('task_default_queue_type = "quorum"\n')
    here = {"ATALAIA_BROKER_URL": services.rabbitmq()}
    found = look(**here).found("warnings")
    assert "start by message" in found["broker_transport_options.confirm_publish"]["why"]


# --- the database --------------------------------------------------------------------------------


@pytest.fixture
def altered(postgres: Postgres, postgres_template: str) -> Iterator[Callable[..., str]]:
    """Makes a database with settings of its own, and returns its URL."""
    with ExitStack() as stack:

        def made(**settings: str) -> str:
            url = stack.enter_context(postgres.database(postgres_template))
            engine = open_engine(url)
            with engine.connect() as connection:
                name = make_url(url).database
                for setting, value in settings.items():
                    connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET {setting} = {value}')
                connection.commit()
            engine.dispose()
            return url

        yield made


def test_a_database_that_forgets_commits_is_told(altered: Callable[..., str], look: Look) -> None:
    url = altered(synchronous_commit="off")
    found = look(ATALAIA_DATABASE_URL=url).found("warnings")
    assert "may be done twice" in found["synchronous_commit"]["why"]
    assert "distrust" in found["synchronous_commit"]["remedy"]

    url = altered(synchronous_commit="on")
    found = look(ATALAIA_DATABASE_URL=url).found("warnings")
    assert "synchronous_commit" not in found


def test_time_outs_that_would_cut_transactions_are_told(
    altered: Callable[..., str], look: Look
) -> None:
    url = altered(statement_timeout="2000", idle_in_transaction_session_timeout="60000")
    found = look(ATALAIA_DATABASE_URL=url).found("warnings")
    assert "statement_timeout" in found
    assert "idle_in_transaction_session_timeout" not in found


def test_more_threads_than_connections_are_told(
    altered: Callable[..., str], look: Look, tmp_path: Path
) -> None:
    here = {"ATALAIA_DATABASE_URL": altered(), "ATALAIA_CONCURRENCY": "50"}
    (text,) = look(**here).found("notes")
    assert "opens 10 connections at most" in text
    assert "--pool threads" in text
    (tmp_path / "celeryconfig.py").write_text('worker_pool = "threads"\n')
    threads = look(**here).found("warnings")
    assert "wait for a connection" in threads["ATALAIA_CONCURRENCY"]["why"]
    assert "no processes" in threads["pool"]["text"]


def test_sqlite_as_atalaia_opens_it_is_praised(
    look: Look, tmp_path: Path, sqlite_template: Path
) -> None:
    shutil.copyfile(sqlite_template, tmp_path / f"{secrets.token_hex(4)}.db")
    (file,) = tmp_path.glob("*.db")
    found = look(ATALAIA_DATABASE_URL=f"sqlite:///{file}").found("warnings")
    assert settings_named(found) == set()
