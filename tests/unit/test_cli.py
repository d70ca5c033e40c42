import sys
from typing import Any, get_args

import pytest

from models.states import SagaState
from orchestration import events
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
