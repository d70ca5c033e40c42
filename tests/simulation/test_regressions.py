"""Runs that once showed what must never be, made small. Each says what it showed."""

import json
from pathlib import Path

import pytest

from tasks.proof.regression import Case
from tasks.proof.simulate import Simulation

FILES = sorted((Path(__file__).parent / "regressions").glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_once_went_wrong_stays_right(simulation: Simulation, file: Path) -> None:
    case = Case.from_document(json.loads(file.read_text(encoding="utf-8")))
    outcome = case.run(simulation)
    assert outcome.violations == [], f"as it once was: {case.shows}"
    assert outcome.faults.struck, "nothing strikes in it any more"
