"""One database in memory for all runs of a test process."""

from collections.abc import Iterator

import pytest
import structlog

from tasks.proof.simulate import Simulation


@pytest.fixture(scope="session")
def simulation() -> Simulation:
    return Simulation()


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    """A run logs thousands of lines that say what the journal says."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)
