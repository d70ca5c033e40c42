"""The console command as a user has it: a process of its own, a home of its own."""

import hashlib
import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from migrations.run import revisions
from orchestration.database import open_engine
from orchestration.ports import SilentDispatcher
from orchestration.registry import Registry
from orchestration.scheduler import Scheduler
from orchestration.store import Store
from tasks.embedded import EmbeddedBroker
from tests.support.commands import Forks, forks
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
ATALAIA = Path(sys.executable).with_name("atalaia")
SECONDS = 30
TRIP = {
    "traveller": "Ada",
    "origin": "LIS",
    "destination": "OPO",
    "departs_on": "2027-01-02",
    "nights": 2,
    "amount": 10_000,
}


@dataclass
class Shell:
    """A folder in which a user types commands."""

    folder: Path
    forks: Forks
    more: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        ours = {k: v for k, v in os.environ.items() if not k.startswith("ATALAIA_")}
        return ours | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | self.more

    @property
    def database(self) -> Path:
        return self.folder / ".atalaia" / "atalaia.db"

    @property
    def store(self) -> Store:
        return Store(
            open_engine(self.more.get("ATALAIA_DATABASE_URL", f"sqlite:///{self.database}"))
        )

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as spool:
            return self.forks.run(words, self.folder, self.env, stdin, Path(spool))

    def say(self, *words: str, stdin: str = "") -> str:
        """Run what must succeed; return what it prints."""
        done = self.run(*words, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.say(*words, "--json"))

    def refuse(self, *words: str, stdin: str = "") -> str:
        """Run what must be refused; return the one line that says why."""
        done = self.run(*words, stdin=stdin)
        assert (done.returncode, done.stdout) == (2, ""), done
        lines = done.stderr.splitlines()
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("atalaia: ")
        return lines[0].removeprefix("atalaia: ")

    def start_trip(self, *options: str) -> str:
        return self.say("start", "trip", "--input", json.dumps(TRIP), *options).strip()

    def open(self, *words: str) -> subprocess.Popen[str]:
        """Start a command that stays; what it says on stderr is in the folder, as `<it>.log`."""
        with (self.folder / f"{words[0]}.log").open("a") as log:
            return subprocess.Popen(
                [ATALAIA, *words],
                cwd=self.folder,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )


@pytest.fixture(scope="module")
def forking() -> Iterator[Forks]:
    with forks() as process:
        yield process


@pytest.fixture
def empty(tmp_path: Path, forking: Forks) -> Shell:
    return Shell(tmp_path, forking)


def migrated(folder: Path, forking: Forks, template: Path) -> Shell:
    shell = Shell(folder, forking)
    shell.database.parent.mkdir()
    shell.database.write_bytes(template.read_bytes())
    return shell


@pytest.fixture
def shell(tmp_path: Path, forking: Forks, sqlite_template: Path) -> Shell:
    """A shell in a folder whose home is migrated."""
    return migrated(tmp_path, forking, sqlite_template)


@pytest.fixture(scope="module")
def lasting(
    tmp_path_factory: pytest.TempPathFactory, forking: Forks, sqlite_template: Path
) -> Shell:
    """The same for commands that change nothing, with one saga, whose key is ``taken``."""
    shell = migrated(tmp_path_factory.mktemp("lasting"), forking, sqlite_template)
    shell.start_trip("--key", "taken")
    return shell


def rows(file: Path) -> str:
    with sqlite3.connect(file) as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()
    return hashlib.sha256(dump.encode()).hexdigest()


# --- without a home ------------------------------------------------------------------------------


def test_help_is_quick_and_version_is_told(empty: Shell) -> None:
    told = subprocess.run([ATALAIA, "--version"], env=empty.env, stdout=subprocess.PIPE, check=True)
    assert re.fullmatch(rb"atalaia \d+\.\d+\.\d+\n", told.stdout)
    heavy = {"sqlalchemy", "celery", "pydantic", "fastapi", "rich"}
    code = (
        "import sys; sys.argv = ['atalaia', '--help']; from tasks.cli import main; main();"
        f"print(sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=empty.env, check=True
    )
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["list"], "run `atalaia migrate`"),
        (["list", "--state", "jogging"], "'jogging' is not one of 'running'"),
        (["list", "--limit", "0"], "'--limit'"),
        (["show", "0123456789"], "run `atalaia migrate`"),
        (["watch", "0123456789"], "run `atalaia migrate`"),
        (["cancel", "0123456789"], "run `atalaia migrate`"),
        (["incidents"], "run `atalaia migrate`"),
        (["sweep"], "run `atalaia migrate`"),
        (["start"], "Missing argument"),
        (["start", "trip", "--input", "{}"], "run `atalaia migrate`"),
        (["start", "trip", "--input", "{"], "--input is not JSON: "),
        (["start", "trip", "--input-file", "no.json"], "no.json cannot be read: No such file"),
        (["resolve", "1", "retry"], "Missing option '--reason'"),
        (["resolve", "1", "pray", "--reason", "x"], "'pray' is not one of 'retry'"),
        (["resolve", "one", "retry", "--reason", "x"], "'incident'"),
        (["worker"], "run `atalaia migrate`"),
        (["worker", "--queue", "hotel"], "queue 'hotel' is not known; did you mean 'hotels'?"),
        (["worker", "--supervisor", "--queue", "hotels"], "leave --queue out"),
        (["worker", "--with-beat"], "it goes with --supervisor"),
        (["beat"], "there is no broker"),
        (["web"], "run `atalaia migrate`"),
        (["web", "--port", "70000"], "'--port'"),
        (["up", "--workers", "0"], "'--workers'"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line_and_leaves_no_trace(
    empty: Shell, words: Sequence[str], told: str
) -> None:
    assert told in empty.refuse(*words)
    assert list(empty.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("ATALAIA_CONCURRENCY", "many", "ATALAIA_CONCURRENCY: "),
        ("ATALAIA_NODE_TIMEOUT", "PT1S", "at least three times node_heartbeat"),
        ("ATALAIA_DATABASE_URL", "postgresql://u:geheim@h:port/d", "is not a database URL"),
        ("ATALAIA_DATABASE_URL", "oracle://u:geheim@h/d", "'oracle' is not supported"),
        ("ATALAIA_DATABASE_URL", "mysql+aiomysql://u:geheim@h/d", "use mysql+pymysql"),
        ("ATALAIA_DATABASE_URL", "mariadb://u:geheim@127.0.0.1:1/d", "see ATALAIA_DATABASE_URL"),
        ("ATALAIA_DATABASE_URL", "postgresql://u:geheim@127.0.0.1:1/d", "see ATALAIA_DATABASE_URL"),
        ("ATALAIA_AGENTS", "no.such.module", "ATALAIA_AGENTS: module 'no.such.module'"),
    ],
)
def test_a_wrong_setting_is_named_and_its_password_is_not(
    empty: Shell, setting: str, value: str, told: str
) -> None:
    empty.more[setting] = value
    line = empty.refuse("migrate")
    assert told in line
    assert "geheim" not in line
    done = empty.run("check")
    assert done.returncode == 1
    assert "geheim" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_fresh_folder_has_warnings_and_no_errors(empty: Shell) -> None:
    found = empty.json("check")
    assert found["errors"] == []
    assert {finding["about"] for finding in found["warnings"]} == {"broker", "database"}
    assert list(empty.folder.iterdir()) == []


def test_migrating_twice_is_migrating_once(empty: Shell) -> None:
    first, second = empty.say("migrate"), empty.say("migrate")
    newest = revisions()[-1]
    assert first == second == f"database at revision {newest}, 1 workflow(s) stored\n"
    assert "no sagas" in empty.say("list")
    checked = empty.json("check")
    assert {"about": "definitions", "text": "trip version 1 is stored"} in checked["ok"]


def test_a_database_without_tables_is_told_to_be_migrated(empty: Shell) -> None:
    empty.database.parent.mkdir()
    sqlite3.connect(empty.database).close()
    empty.database.touch()
    for words in (["list"], ["start", "trip", "--input", json.dumps(TRIP)], ["sweep"]):
        assert empty.refuse(*words) == "the database is not migrated; run `atalaia migrate`"
    done = empty.run("check")
    assert done.returncode == 1
    assert "is at revision none" in done.stdout


# --- sagas ---------------------------------------------------------------------------------------


def test_a_start_prints_the_id_and_its_key_starts_once(shell: Shell) -> None:
    saga_id = shell.start_trip("--key", "order-1")
    UUID(saga_id)
    again = shell.run("start", "trip", "--input", json.dumps(TRIP), "--key", "order-1")
    assert (again.returncode, again.stdout.strip()) == (0, saga_id)
    assert again.stderr == "its key had started it before\n"
    (listed,) = shell.json("list")
    assert (listed["id"], listed["key"], listed["state"]) == (saga_id, "order-1", "running")
    assert listed["created_at"].endswith("Z")


def test_an_input_comes_from_a_file_and_from_standard_input(shell: Shell) -> None:
    (shell.folder / "trip.json").write_text(json.dumps(TRIP))
    shell.say("start", "trip", "--input-file", "trip.json")
    shell.say("start", "trip", "--input", "-", stdin=json.dumps(TRIP))
    shell.say("start", "trip", "--input-file", "-", stdin=json.dumps(TRIP))
    assert len(shell.json("list")) == 3


def test_a_wait_that_takes_too_long_fails_and_says_where_the_saga_stands(shell: Shell) -> None:
    done = shell.run("start", "trip", "--input", json.dumps(TRIP), "--wait", "0.1")
    assert done.returncode == 1
    assert done.stderr == f"atalaia: saga {done.stdout.strip()} is running after 0.1 s\n"
    done = shell.run("start", "trip", "--input", json.dumps(TRIP), "--wait", "0.1", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["state"] == "running"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["start", "trp", "--input", "{}"], "workflow 'trp' is not known; did you mean 'trip'?"),
        (["start", "trip"], "input of workflow 'trip'"),
        (["start", "trip", "--input", json.dumps({**TRIP, "nights": 0})], "nights: "),
        (["start", "trip", "--input", json.dumps(TRIP), "--key", "k" * 201], "key: "),
        (["start", "trip", "--input", json.dumps(TRIP), "--wait", "-1"], "'--wait'"),
        (["start", "trip", "--input", "{}", "--input-file", "-"], "either --input or --input-file"),
        (
            ["start", "trip", "--input", json.dumps({**TRIP, "nights": 3}), "--key", "taken"],
            "taken",
        ),
        (["show", "abc"], "'abc' is not a saga's id"),
        (["show", "0123456789"], "there is no saga 0123456789"),
        (["watch", "00000000-0000-7000-8000-000000000000"], "there is no saga 0000"),
        (["cancel", "0123456789"], "there is no saga 0123456789"),
        (["cancel", "0123456789", "--reason", "a\nb"], "--reason must be one line"),
        (["resolve", "7", "retry", "--reason", "x"], "there is no incident 7"),
        (["resolve", "7", "retry", "--reason", " "], "there is no incident 7"),
        (["worker"], "there is no broker"),
    ],
)
def test_a_refused_command_writes_nothing(lasting: Shell, words: Sequence[str], told: str) -> None:
    before = rows(lasting.database)
    assert told in lasting.refuse(*words)
    assert rows(lasting.database) == before


def test_a_saga_is_shown_by_either_end_of_its_id(shell: Shell) -> None:
    saga_id = shell.start_trip()
    story = shell.say("show", saga_id)
    assert story.startswith(f"saga {saga_id}  trip v1  running\n")
    assert "waits for a worker on flights" in story
    for part in (saga_id[-8:], saga_id[:18], saga_id.upper(), saga_id.replace("-", "")):
        assert shell.json("show", part)["id"] == saga_id


def test_a_part_that_fits_several_sagas_is_refused(shell: Shell) -> None:
    shell.start_trip()
    with sqlite3.connect(shell.database) as connection:
        for digit in "12":
            connection.execute(
                "INSERT INTO sagas (id, definition_id, workflow, input, state, created_at,"
                " deadline_at) SELECT ?, definition_id, workflow, input, state, created_at,"
                " deadline_at FROM sagas LIMIT 1",
                ("0199aaaabbbb7ccc8ddd00000000000" + digit,),
            )
    connection.close()
    assert "fits more than one saga" in shell.refuse("show", "0199aaaa-bbbb")
    assert shell.refuse("show", "0199aaaa-bbbb-7ccc-8ddd-000000000003").startswith("there is no")


def test_sagas_are_listed_by_state_and_workflow(shell: Shell) -> None:
    older, newer = shell.start_trip(), shell.start_trip()
    shell.say("cancel", older, "--reason", "rain")
    assert [saga["id"] for saga in shell.json("list")] == [newer, older]
    assert [saga["id"] for saga in shell.json("list", "--state", "running")] == [newer]
    assert shell.json("list", "--workflow", "other") == []
    assert len(shell.json("list", "--limit", "1")) == 1
    table = shell.say("list")
    assert older in table
    assert "rain" in table


def test_a_cancelled_saga_says_by_whom_and_is_cancelled_once(shell: Shell) -> None:
    saga_id = shell.start_trip()
    told = shell.say("cancel", saga_id, "--reason", "rain", "--by", "ada")
    assert told == f"saga {saga_id} is cancelled\n"
    assert "cancelled by ada: rain" in shell.say("show", saga_id)
    before = rows(shell.database)
    assert "there is nothing to cancel" in shell.refuse("cancel", saga_id)
    assert rows(shell.database) == before


def test_watching_ends_with_the_saga(shell: Shell) -> None:
    saga_id = shell.start_trip()
    shell.say("cancel", saga_id, "--reason", "rain")
    done = shell.run("watch", saga_id)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"following saga {saga_id}"
    assert lines[-1] == "cancelled"
    assert any("rain" in line for line in lines)


def test_watching_on_a_terminal_draws(shell: Shell) -> None:
    saga_id = shell.start_trip()
    shell.say("cancel", saga_id)
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [ATALAIA, "watch", saga_id], cwd=shell.folder, env=shell.env | {"TERM": "xterm"},
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    drawn = b""
    try:
        while chunk := os.read(ours, 4096):
            drawn += chunk
    except OSError:  # What a terminal says when nobody writes to it any more.
        pass
    os.close(ours)
    assert child.wait(SECONDS) == 1
    assert saga_id.encode() in drawn
    assert b"cancelled" in drawn


def test_ctrl_c_ends_the_watching_without_a_word(shell: Shell) -> None:
    saga_id = shell.start_trip()
    child = shell.open("watch", saga_id)
    assert child.stdout is not None
    assert child.stdout.readline() == f"following saga {saga_id}\n"
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=SECONDS)
    assert child.returncode == 130
    assert (shell.folder / "watch.log").read_text() == ""
    assert shell.json("show", saga_id)["state"] == "running"


# --- incidents and sweeps ------------------------------------------------------------------------


def poison(shell: Shell, saga_id: str) -> None:
    """Let three worker processes die with the message of the flight."""
    scheduler = Scheduler(shell.store, SilentDispatcher(), Registry())
    for _ in range(3):
        scheduler.crashed(UUID(saga_id), "flight", 1)
    scheduler.store.engine.dispose()


def test_an_incident_is_listed_answered_and_kept(shell: Shell) -> None:
    saga_id = shell.start_trip()
    assert shell.say("incidents") == "no incidents\n"
    poison(shell, saga_id)
    (incident,) = shell.json("incidents")
    assert (incident["saga_id"], incident["path"], incident["kind"]) == (
        saga_id,
        "flight",
        "poison",
    )
    number = str(incident["id"])
    assert "incident" in shell.say("show", saga_id)
    before = rows(shell.database)
    for words, told in (
        (["acknowledge"], "needs a decision"),
        (["compensated"], "goes forward"),
        (["retry", "--result", "{}"], "--result goes with the remedy succeeded only"),
        (["succeeded", "--result", "{"], "--result is not JSON"),
        (["retry", "--by", ""], "--by may not be empty"),
    ):
        assert told in shell.refuse("resolve", number, *words, "--reason", "x")
    assert "--reason may not be empty" in shell.refuse("resolve", number, "retry", "--reason", " ")
    assert rows(shell.database) == before
    words = ["resolve", number, "succeeded", "--reason", "they told me", "--by", "ada"]
    told = shell.say(*words, "--result", '{"reference": "F-1", "item": "LIS-OPO"}')
    assert told == f"saga {saga_id} is running\n"
    assert shell.json("show", saga_id)["results"]["flight"]["reference"] == "F-1"
    assert shell.json("incidents") == []
    (kept,) = shell.json("incidents", "--all")
    assert (kept["resolution"], kept["resolved_by"], kept["reason"]) == (
        "succeeded",
        "ada",
        "they told me",
    )
    assert "is resolved already" in shell.refuse(*words)


def test_a_sweep_says_what_it_did(shell: Shell) -> None:
    shell.start_trip()
    with sqlite3.connect(shell.database) as connection:
        connection.execute("UPDATE steps SET wake_at = '2020-01-01 00:00:00.000000' "
                           "WHERE wake_at IS NOT NULL")  # fmt: skip
    connection.close()
    assert shell.json("sweep")["undelivered"] == 2
    assert "undelivered" in shell.say("sweep")


# --- on each database ----------------------------------------------------------------------------


def test_the_commands_work_on_each_database(
    tmp_path: Path, forking: Forks, database_url: str
) -> None:
    shell = Shell(tmp_path, forking, {"ATALAIA_DATABASE_URL": database_url})
    shell.say("migrate")
    saga_id = shell.start_trip("--key", "order-1")
    assert shell.json("show", saga_id[-8:])["id"] == saga_id
    assert shell.json("show", saga_id[:20])["key"] == "order-1"
    assert shell.json("list")[0]["id"] == saga_id
    assert "there is no saga" in shell.refuse("show", "0123456789")
    poison(shell, saga_id)
    (incident,) = shell.json("incidents")
    shell.say("resolve", str(incident["id"]), "failed", "--reason", "sold out")
    assert shell.json("show", saga_id)["abort"]["step"] == "flight"
    shell.json("sweep")
    assert shell.json("check")["errors"] == []


# --- roles ---------------------------------------------------------------------------------------


@pytest.fixture
def stacked(shell: Shell) -> Iterator[Shell]:
    """A shell whose home has a broker, too."""
    broker = EmbeddedBroker(shell.folder / ".atalaia" / "broker")
    broker.start()
    yield shell
    broker.stop()


def ended(child: subprocess.Popen[str]) -> int:
    child.send_signal(signal.SIGTERM)
    try:
        child.communicate(timeout=SECONDS)
        return child.returncode
    finally:
        child.kill()


def test_workers_get_names_of_their_own_and_are_seen_by_check(stacked: Shell) -> None:
    def names() -> set[str]:
        for finding in stacked.json("check")["ok"]:
            if finding["about"] == "nodes":
                return set(re.findall(r"(\w+)@", finding["text"]))
        return set()

    def missing() -> list[str]:
        return [f["text"] for f in stacked.json("check")["warnings"] if f["about"] == "nodes"]

    first = stacked.open("worker", "--pool", "solo", "--queue", "hotels")
    log = stacked.folder / "worker.log"
    try:
        eventually(lambda: names() == {"worker1"}, within=SECONDS, describe=log.read_text)
        others = "cars.book, flights.book, mail.receipt, payments.charge"
        assert missing() == [f"no living worker runs {others} for trip version 1"]
        second = stacked.open("worker", "--supervisor", "--with-beat", "--pool", "solo")
        third = stacked.open("worker", "--pool", "solo", "--name", "mine")
        try:
            everybody = {"worker1", "supervisor1", "mine"}
            eventually(lambda: names() == everybody, within=SECONDS, describe=log.read_text)
            assert missing() == []
        finally:
            assert (ended(second), ended(third)) == (0, 0)
    finally:
        assert ended(first) == 0


def test_beat_rings(stacked: Shell) -> None:
    beat = stacked.open("beat")
    log = stacked.folder / "beat.log"
    try:
        eventually(
            lambda: "beat: Starting" in log.read_text(), within=SECONDS, describe=log.read_text
        )
    finally:
        ended(beat)
    assert "[info" in log.read_text()


def test_the_web_api_is_served(shell: Shell) -> None:
    web = shell.open("web", "--port", "0")
    log = shell.folder / "web.log"

    def address() -> str:
        found = re.search(r"serving at (http://127.0.0.1:\d+)", log.read_text())
        return found[1] if found else ""

    try:
        url = eventually(address, within=SECONDS, describe=log.read_text)
        with httpx.Client(base_url=url, trust_env=False) as client:
            assert client.get("/health").status_code == 503
            started = client.post("/sagas", json={"workflow": "trip", "input": TRIP})
            assert started.status_code == 201
        port = url.rpartition(":")[2]
        assert f"cannot listen on port {port} of 127.0.0.1" in shell.refuse("web", "--port", port)
    finally:
        ended(web)
    assert shell.json("list")[0]["id"] == started.json()["id"]


def test_logs_of_celery_and_ours_are_one_kind_of_line_on_stderr(empty: Shell) -> None:
    code = (
        "import logging\n"
        "from tasks.logs import set_up_logs\n"
        "from orchestration.telemetry import log_of\n"
        "set_up_logs('INFO')\n"
        "logging.getLogger('celery.worker').info('theirs %s', 1)\n"
        "logging.getLogger('kombu').info('noise')\n"
        "log_of('node').info('ours', pid=7)\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: logging.getLogger('celery').exception('broke')\n"
    )

    def lines(**more: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", code], env=empty.env | more, cwd=empty.folder,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == ""
        return done.stderr.splitlines()

    documents = [json.loads(line) for line in lines(ATALAIA_LOG_JSON="true")]
    assert [document["event"] for document in documents] == ["theirs 1", "ours", "broke"]
    assert {"level", "timestamp"} <= documents[0].keys() & documents[1].keys()
    assert "ZeroDivisionError" in documents[2]["exception"]
    theirs, ours, *_ = lines()
    shape = r"\S+Z \[info     \] (theirs 1|ours) .*"
    assert re.fullmatch(shape, theirs)
    assert re.fullmatch(shape, ours)
