"""A rig for every test that kills, stops or pauses real processes."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import databases
from tests.support.partners import PartnerProcess
from tests.support.releases import Fleet
from tests.support.workers import Rig, partners


@pytest.fixture(scope="session")
def travel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, PartnerProcess]]:
    """The partners of a trip; every test uses sagas of its own."""
    with partners(tmp_path_factory.mktemp("partners")) as running:
        yield running


@pytest.fixture(params=databases.USUAL)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """As for all tests, but on MariaDB only where a test asks for it."""
    with databases.fresh_database(request, tmp_path) as url:
        yield url


@pytest.fixture
def rig(
    database_url: str, valkey_url: str, tmp_path: Path, travel: Mapping[str, PartnerProcess]
) -> Iterator[Rig]:
    """Processes around a fresh database and the embedded broker; all are gone afterwards."""
    for partner in travel.values():
        partner.switch()
    rig = Rig(database_url, valkey_url, tmp_path, travel)
    yield rig
    rig.stop()


@pytest.fixture
def fleet(database_url: str, broker_url: str, tmp_path: Path) -> Iterator[Fleet]:
    rig = Rig(database_url, broker_url, tmp_path, {})
    yield Fleet(rig, tmp_path)
    rig.stop()
