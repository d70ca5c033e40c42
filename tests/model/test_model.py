"""The model of one step holds, and breaks as it should when a rule is taken away."""

import pytest

from tests.model import run
from tests.support import services

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("model")]


@pytest.fixture(scope="module", autouse=True)
def _checker() -> None:
    try:
        run.toolbox()
    except LookupError as error:
        services.missing(str(error))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", run.cases(), ids=lambda case: f"{case.title} {case.breaks or ''}")
def test_the_model_holds_and_breaks_where_a_rule_is_taken_away(case: run.Case) -> None:
    found = run.check(case, run.toolbox())
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
