"""Each directed run comes to the cell that it is there for."""

import pytest

from tasks.proof.coverage import of_rows, reachable
from tasks.proof.directed import directed
from tasks.proof.regression import Case
from tasks.proof.simulate import Simulation


@pytest.mark.parametrize("case", tuple(directed()), ids=lambda case: case.shows)
def test_a_directed_run_reaches_its_cell_and_shows_nothing_wrong(
    simulation: Simulation, case: Case
) -> None:
    assert case.shows in reachable()
    outcome = case.run(simulation)
    assert outcome.violations == []
    assert case.shows in {*outcome.faults.cells, *of_rows(outcome.record.rows)}
