"""The same simulation on PostgreSQL: its locks, its types, its guarded updates, in virtual time."""

import secrets
from collections.abc import Iterator

import pytest

from orchestration.database import open_engine
from tasks.proof.regression import Case, dump
from tasks.proof.simulate import Simulation
from tests.support.postgres import Postgres

BLOCK = 6
"""How many seeds one test runs."""


@pytest.fixture
def on_postgres(postgres: Postgres, postgres_template: str) -> Iterator[Simulation]:
    with postgres.database(postgres_template) as url:
        engine = open_engine(url, pool_size=20)
        yield Simulation(engine)
        engine.dispose()


def test_one_seed_replays_one_run_exactly_on_postgresql(on_postgres: Simulation) -> None:
    assert on_postgres.run(3).digest == on_postgres.run(3).digest


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 6, 12, None])
def test_no_storm_shows_on_postgresql_what_must_never_be(
    on_postgres: Simulation, first: int | None
) -> None:
    """Without a first seed they are fresh ones."""
    first = secrets.randbelow(1_000_000_000) if first is None else first
    for seed in range(first, first + BLOCK):
        outcome = on_postgres.run(seed)
        assert outcome.violations == [], f"seed {seed}:\n{dump(Case.of(outcome))}"
