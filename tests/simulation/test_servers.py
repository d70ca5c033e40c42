"""The same simulation on servers: their locks, types and guarded updates, in virtual time."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestration.database import open_engine
from tasks.proof.regression import Case, dump
from tasks.proof.simulate import Simulation
from tests.support import databases

BLOCK = 6
"""How many seeds one test runs."""


@pytest.fixture(params=databases.CONCURRENT)
def on_a_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Simulation]:
    with databases.fresh_database(request, tmp_path) as url:
        engine = open_engine(url, pool_size=20)
        yield Simulation(engine)
        engine.dispose()


@pytest.mark.parametrize("on_a_server", ["postgres"], indirect=True)
def test_one_seed_replays_one_run_exactly_on_a_server(on_a_server: Simulation) -> None:
    """Not on MariaDB: of two steps that are due at one instant either may come first."""
    assert on_a_server.run(3).digest == on_a_server.run(3).digest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_a_server", "first"),
    [*(("postgres", first) for first in (0, 6, 12, None)), ("mariadb", None)],
    indirect=["on_a_server"],
)
def test_no_storm_shows_on_a_server_what_must_never_be(
    on_a_server: Simulation, first: int | None
) -> None:
    """Without a first seed they are fresh ones."""
    first = secrets.randbelow(1_000_000_000) if first is None else first
    for seed in range(first, first + BLOCK):
        outcome = on_a_server.run(seed)
        assert outcome.violations == [], f"seed {seed}:\n{dump(Case.of(outcome))}"
