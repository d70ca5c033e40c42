"""The model of one step holds, and breaks as it should when a rule is taken away."""

import re
from pathlib import Path

import pytest

from tests.model import run
from tests.support import services


@pytest.fixture(scope="module")
def checker() -> Path:
    """TLC; without it the model is not checked."""
    try:
        return run.toolbox()
    except LookupError as error:
        services.missing(str(error))


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", run.cases(), ids=lambda case: f"{case.title} {case.breaks or ''}")
def test_the_model_holds_and_breaks_where_a_rule_is_taken_away(
    case: run.Case, checker: Path
) -> None:
    found = run.check(case, checker)
    assert found.as_expected, f"{found.line()}\n{found.text}"


def test_every_property_of_the_model_is_broken_by_some_missing_rule() -> None:
    broken = {case.breaks for case in run.REMOVED}
    listed = set()
    for path in run.MODEL.glob("*.cfg"):
        text = path.read_text(encoding="utf-8").partition("INVARIANTS")[2]
        listed |= set(text.split()) - {"PROPERTIES", "InBounds"}
    assert listed == broken


def test_every_rule_of_the_model_is_taken_away_once() -> None:
    text = (run.MODEL / f"{run.MODULE}.tla").read_text(encoding="utf-8")
    assert run.rules_in(text) == {case.name for case in run.REMOVED if "Removed" in case.constants}


def test_a_run_that_says_nothing_is_not_taken_for_one_that_holds() -> None:
    assert not run.read(run.Case("barrier"), "Error: Java heap space", 1.0).as_expected


def test_the_readme_names_each_configuration_and_each_rule() -> None:
    text = (run.MODEL / "README.md").read_text(encoding="utf-8")
    text = text.partition("## Configurations that hold")[2]
    named = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert {case.base for case in run.cases()} | {
        case.name for case in run.REMOVED if "Removed" in case.constants
    } == named


def test_without_a_jdk_it_is_said_that_nothing_was_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert run.main([]) == 1
    assert "model: NOT CHECKED: the model needs a JDK" in capsys.readouterr().err
