"""``atalaia purge``: what it deletes, refuses, asks, says, and writes down before."""

import fcntl
import json
import os
import pty
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine

from models import Attempt, Incident, JournalEntry, Saga, Step
from orchestration import retention
from orchestration.definition import Workflow
from orchestration.errors import InputError
from orchestration.events import Done, Failed, FailureKind, Remedy
from orchestration.settings import settings
from tasks import cli
from tasks.export import ExportFile
from tests.support.core import Core, line
from tests.support.killed import KILLED
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
ATALAIA = Path(sys.executable).with_name("atalaia")
WALK = line("a", name="walk")


def long_ago(engine: Engine, *workflows: Workflow) -> Core:
    core = Core(engine, *(workflows or (line("a", "b"),)))
    core.now = datetime(2020, 1, 1, tzinfo=UTC)
    core.node = core.join("then")
    return core


@pytest.fixture
def core(engine: Engine) -> Core:
    """Sagas that are started in it began in 2020."""
    return long_ago(engine)


def ended(core: Core, count: int = 1) -> list[UUID]:
    sagas = [core.start({"order": 17}) for _ in range(count)]
    for saga in sagas:
        core.done(saga, *core.workflows[0].by_name, result="room 7")
    return sagas


def there(core: Core) -> set[UUID]:
    return {row.id for row in core.rows(Saga)}


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run ``atalaia purge`` in this process; return status, standard output and error."""
    monkeypatch.setenv("ATALAIA_DATABASE_URL", database_url)

    def purge(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["atalaia", "purge", *words])
        settings.cache_clear()
        status = cli.main()
        settings.cache_clear()
        return (status, *capsys.readouterr())

    return purge


# --- what is deleted -----------------------------------------------------------------------------


def test_it_deletes_what_is_older_than_the_retention_and_says_how_many(
    core: Core, run: Run
) -> None:
    ended(core, 3)
    live = core.start()
    status, out, err = run("--yes")
    assert (status, err) == (0, "")
    assert out.startswith("3 saga(s) that ended before ")
    assert there(core) == {live}


def test_what_it_did_is_told_as_json(core: Core, run: Run) -> None:
    ended(core, 2)
    held = late(core)
    status, out, _ = run("--yes", "--json", "--older-than", "P365D")
    told = json.loads(out)
    before = datetime.fromisoformat(told.pop("before"))
    year_ago = datetime.now(UTC) - timedelta(days=365)
    assert abs(before - year_ago) < timedelta(minutes=5)
    kept = {"open_incident": 1, "unsettled_step": 0, "open_attempt": 0, "horizon": 0}
    assert told == {"dry_run": False, "sagas": 2, "kept": kept, "nodes": 0, "to": None}
    assert (status, there(core)) == (0, {held})


def late(core: Core) -> UUID:
    """Return a saga that ended and has an open incident."""
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    core.report(work, Failed(kind=FailureKind.LATER, type="Busy", message="no"))
    core.report(work, Done(result="room 7"))
    core.done(saga, "a~late")
    return saga


def test_a_dry_run_tells_the_same_and_deletes_nothing(core: Core, run: Run) -> None:
    ended(core, 2)
    late(core)
    before = there(core)
    status, out, err = run("--dry-run")
    assert (status, err) == (0, "")
    assert out.startswith("2 saga(s) that ended before ")
    assert out.endswith(" UTC would be deleted; kept: 1 open incident\n")
    assert there(core) == before
    dry = json.loads(run("--dry-run", "--json")[1])
    done = json.loads(run("--yes", "--json")[1])
    assert dry["dry_run"]
    assert {key: dry[key] for key in ("sagas", "kept")} == {
        key: done[key] for key in ("sagas", "kept")
    }


def test_it_can_be_told_which_workflow_and_which_ends(engine: Engine, run: Run) -> None:
    core = long_ago(engine, line("a"), WALK)
    (stay,) = ended(core)
    walk = core.scheduler.start("walk").saga_id
    core.done(walk, "a")
    turned = core.scheduler.start("walk").saga_id
    core.scheduler.cancel(turned, by="ada")
    assert run("--yes", "--workflow", "walk", "--state", "completed")[0] == 0
    assert there(core) == {stay, turned}
    assert run("--yes", "--state", "cancelled", "--state", "compensated")[0] == 0
    assert there(core) == {stay}


def test_ended_workers_are_forgotten_unless_only_some_sagas_are_meant(core: Core, run: Run) -> None:
    core.roster.end(core.node.id)
    assert json.loads(run("--yes", "--json", "--state", "completed")[1])["nodes"] == 0
    status, out, _ = run("--yes")
    assert (status, out.endswith("; 1 ended worker(s) forgotten\n")) == (0, True)
    assert set(core.nodes()) == {"worker"}


def test_a_saga_that_ended_just_now_is_kept_for_a_while_even_if_asked_for(
    engine: Engine, run: Run
) -> None:
    core = long_ago(engine)
    core.now = datetime.now(UTC)
    (saga,) = ended(core)
    told = json.loads(run("--yes", "--json", "--older-than", "0")[1])
    assert (told["sagas"], told["kept"]["horizon"]) == (0, 1)
    assert there(core) == {saga}


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--older-than", "soon"], "--older-than: 'soon' is no duration up to a hundred years"),
        (["--older-than", "30"], "--older-than: '30' has no unit; write P30D for days"),
        (["--older-than", "-P1D"], "--older-than: '-P1D' is no duration"),
        (["--older-than", "P200000D"], "--older-than: 'P200000D' is no duration"),
        (["--workflow", "stya"], "there is no workflow 'stya'"),
        (["--state", "running"], "'running' is not one of 'completed'"),
        (["--dry-run", "--to", "x"], "nothing is written in a dry run"),
        ([], "nobody is there to say yes; give --yes, or --dry-run to look first"),
    ],
    ids=str,
)
def test_what_is_refused_is_told_in_one_line_and_deletes_nothing(
    core: Core, run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    before = set(ended(core))
    sure = ["--yes"] if words and "--dry-run" not in words else []
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        status, out, err = run(*words, *sure)
    assert (status, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1
    assert there(core) == before


def test_without_a_retention_it_has_to_be_said_how_old(
    core: Core, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATALAIA_RETENTION", "off")
    status, _, err = run("--yes")
    assert (status, "--older-than has to say how old" in err) == (2, True)


def test_afterwards_the_other_commands_say_that_the_saga_is_not_there(
    core: Core, run: Run, database_url: str
) -> None:
    (saga,) = ended(core)
    assert run("--yes")[0] == 0
    env = os.environ | {"ATALAIA_DATABASE_URL": database_url}
    for command in ("show", "watch", "cancel"):
        words = [ATALAIA, command, str(saga)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"atalaia: there is no saga {saga}\n"


@pytest.mark.parametrize(("answer", "status", "left"), [("y", 0, 0), ("n", 1, 1)])
def test_on_a_terminal_it_asks_first(
    core: Core, database_url: str, answer: str, status: int, left: int
) -> None:
    ended(core)
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [ATALAIA, "purge"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=os.environ | {"ATALAIA_DATABASE_URL": database_url},
    )  # fmt: skip
    os.write(ours, f"{answer}\n".encode())
    _, err = done.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert "Delete up to 1 saga(s) that ended before" in err
    assert (done.returncode, len(there(core))) == (status, left), err


# --- what is written down before -----------------------------------------------------------------


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_each_saga_is_written_down_with_every_row_that_it_had(
    core: Core, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "sagas.jsonl"
    sagas = ended(core, 2)
    tables = {"steps": Step, "attempts": Attempt, "journal": JournalEntry, "incidents": Incident}
    counts = {
        saga: {name: len(core.rows(table, saga_id=saga)) for name, table in tables.items()}
        for saga in sagas
    }
    status, out, err = run("--yes", "--to", str(file))
    assert (status, err) == (0, "")
    assert f"written to {file}" in out
    written = {UUID(story["saga"]["id"]): story for story in lines(file)}
    assert {
        saga: {name: len(story[name]) for name in tables} for saga, story in written.items()
    } == counts
    story = written[sagas[0]]
    assert next(iter(story)) == "saga"
    assert story["definition"] == {"workflow": "stay", "version": 1}
    assert story["saga"]["input"] == {"order": 17}
    assert story["saga"]["ended_at"] == "2020-01-01T00:00:00Z"
    assert {step["path"]: step["result"] for step in story["steps"]} == {
        "a": "room 7",
        "b": "room 7",
    }
    assert [entry["verb"] for entry in story["journal"]][-1] == "finish"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_incident_and_its_answer_are_written_down(core: Core, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "sagas.jsonl"
    saga = late(core)
    core.scheduler.resolve(saga, "a~late", Remedy.ACKNOWLEDGE, by="ada", reason="seen")
    assert run("--yes", "--to", str(file))[0] == 0
    (story,) = lines(file)
    (incident,) = story["incidents"]
    assert (incident["kind"], incident["reason"]) == ("late_effect", "seen")


def test_a_file_is_gone_on_with(core: Core, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "sagas.jsonl"
    first = ended(core)
    run("--yes", "--to", str(file))
    second = ended(core)
    run("--yes", "--to", str(file))
    assert [UUID(story["saga"]["id"]) for story in lines(file)] == [*first, *second]


def test_a_line_that_a_crash_cut_short_is_cut_off(core: Core, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "sagas.jsonl"
    first = ended(core)
    run("--yes", "--to", str(file))
    for torn in ('{"sa', '{"saga": {"id": "' + "x" * 200_000):
        with file.open("a") as tail:
            tail.write(torn)
        (saga,) = ended(core)
        run("--yes", "--to", str(file))
        first.append(saga)
    assert [UUID(story["saga"]["id"]) for story in lines(file)] == first


@pytest.mark.parametrize("held", ["another file", "by another purge", "no such folder"])
def test_a_file_that_cannot_be_written_to_is_refused_and_nothing_goes(
    core: Core, run: Run, tmp_path: Path, held: str
) -> None:
    sagas = set(ended(core))
    file = tmp_path / "sagas.jsonl"
    told = "another purge is writing"
    if held == "another file":
        file.write_text("dear diary\n")
        told = "was not written by a purge"
    elif held == "no such folder":
        file = tmp_path / "nowhere" / "sagas.jsonl"
        told = "No such file or directory"
    else:
        file.touch()
    with (file if file.exists() else tmp_path / "other").open("a") as other:
        if held == "by another purge":
            fcntl.flock(other, fcntl.LOCK_EX)
        status, out, err = run("--yes", "--to", str(file))
    assert (status, out, told in err) == (2, "", True)
    assert there(core) == sagas
    if held == "another file":
        assert file.read_text() == "dear diary\n"


def test_a_disk_that_is_full_keeps_what_was_not_written_down(
    core: Core, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 2)
    ended(core, 5)
    file = tmp_path / "sagas.jsonl"
    flush, left = os.fsync, [3]

    def full(number: int) -> None:
        left[0] -= 1  # The name of the file is the first.
        if left[0] <= 0:
            raise OSError(28, "No space left on device")
        flush(number)

    monkeypatch.setattr(os, "fsync", full)
    status, out, err = run("--yes", "--json", "--to", str(file))
    assert (status, json.loads(out)["sagas"]) == (1, 2)
    assert err == f"atalaia: broke off: {file}: No space left on device\n"
    assert len(there(core)) == 3
    assert len(lines(file)) == 2


def test_a_purge_that_is_killed_has_written_down_whatever_is_gone(
    core: Core, run: Run, database_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "sagas.jsonl"
    sagas = set(ended(core, retention.AT_ONCE + 10))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, "2", "purge", "--yes", "--to", str(file)],
        env=os.environ | {"ATALAIA_DATABASE_URL": database_url}, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    written = {UUID(story["saga"]["id"]) for story in lines(file)}
    assert len(there(core)) == 10
    assert sagas - there(core) < written, "what is gone was written down"
    assert written == sagas, "the rest was written down, and its deletion not committed"

    def purged() -> bool:
        run("--yes", "--to", str(file))
        return not there(core)

    eventually(purged, within=20, describe="the server has noticed that the killed one is gone")
    again = lines(file)
    assert {UUID(story["saga"]["id"]) for story in again} == sagas
    assert len(again) == len(sagas) + 10
    assert len({json.dumps(story) for story in again}) == len(sagas), "twice, but alike"


def test_two_purges_cannot_write_to_one_file(tmp_path: Path) -> None:
    file = tmp_path / "sagas.jsonl"
    with (
        ExportFile(file),
        pytest.raises(InputError, match="another purge is writing to"),
        ExportFile(file),
    ):
        pass
    with ExportFile(file):
        pass
