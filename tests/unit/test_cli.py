import os
import sys
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from models.states import SagaState
from orchestration import events
from orchestration.settings import settings
from tasks import cli, launch


def test_the_words_of_the_command_line_are_those_of_the_models() -> None:
    assert list(get_args(cli.State)) == [str(state) for state in SagaState]
    assert list(get_args(cli.Remedy)) == [str(remedy) for remedy in events.Remedy]


@pytest.mark.parametrize(
    ("given", "flags"), [([], []), (["--json", "--stay"], ["--json", "--stay"])]
)
def test_the_demo_becomes_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, given: list[str], flags: list[str]
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(launch, "become", became.append)
    monkeypatch.setattr(sys, "argv", ["atalaia", "demo", *given])
    assert cli.main() == 0
    assert became == [[sys.executable, "-P", "-m", "examples.travel.demo", *flags]]


@pytest.mark.parametrize("given", [[], ["--help"], ["show", "--help"]])
def test_help_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["atalaia", *given])
    assert cli.main() == 0
    assert "Usage: atalaia" in capsys.readouterr().out


WORKER = [sys.executable, "-P", "-m", "tasks.program", "worker", "-P"]


def test_a_worker_goes_on_in_the_process_that_has_imported_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def run(role: str, words: list[str]) -> None:
        seen.append((role, words, dict(os.environ)))
        assert settings.cache_info().currsize == 0, "it would read its old settings"
        raise SystemExit(3)

    monkeypatch.setattr(launch, "run", run)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "argv", ["atalaia", "worker"])
    settings()
    with pytest.raises(SystemExit) as end:
        launch.become_worker([*WORKER, "solo"], {"ATALAIA_NODE_NAME": "mine"})
    assert end.value.code == 3
    assert seen == [("worker", ["-P", "solo"], {"ATALAIA_NODE_NAME": "mine"})]


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_worker_whose_pool_replaces_what_waits_is_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    class Replaced(BaseException):
        pass

    def become(command: list[str], environment: dict[str, str]) -> None:
        assert (command, environment) == ([*WORKER, pool], {"A": "b"})
        raise Replaced

    monkeypatch.setattr(launch, "become", become)
    with pytest.raises(Replaced):
        launch.become_worker([*WORKER, pool], {"A": "b"})


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        (["python", "/opt/bin/atalaia", "worker"], True),
        (["python", "-m", "celery", "worker"], True),
        (["python", "-P", "-m", "tasks.program", "worker"], True),
        (["vim", "atalaia.md"], False),
        ([], False),
    ],
)
def test_a_worker_is_known_by_its_command_line(
    monkeypatch: pytest.MonkeyPatch, words: list[str], is_one: bool
) -> None:
    process = SimpleNamespace(cmdline=lambda: words)
    monkeypatch.setattr("psutil.Process", lambda pid: process)
    assert launch._is_a_worker(1) == is_one
