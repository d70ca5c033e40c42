"""Two short storms, one for each kind of broker. ``make chaos`` runs longer ones."""

import secrets

import pytest

from tests.chaos.storm import report, storm

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(420)]


@pytest.mark.proves("D-04", "D-06", "D-07", "D-12", "D-27")
@pytest.mark.proves("INV-1", "INV-2", "INV-3", "INV-9", "INV-11")
@pytest.mark.parametrize("broker", ["valkey", "rabbitmq"])
def test_a_storm_loses_nothing_and_doubles_nothing(broker: str) -> None:
    seed = secrets.randbelow(2**31)
    with storm(seed, 75, broker) as found:
        found.run(lambda run, left, name: None)
        line, good = report(found)
    assert good, f"seed {seed}: {line}"
    assert found.kills > 0
