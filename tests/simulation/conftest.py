"""One database in memory for all runs of a test process."""

import logging
from collections.abc import Iterator

import pytest

from tasks.proof.simulate import Simulation


@pytest.fixture(scope="session")
def simulation() -> Simulation:
    return Simulation()


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    """A run logs thousands of lines that say what the journal says."""
    ours = logging.getLogger("atalaia")
    before = ours.level
    ours.setLevel(logging.CRITICAL)
    yield
    ours.setLevel(before)
