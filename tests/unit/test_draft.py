"""Whatever is repeated without a policy is repeated ever more rarely, down to a floor."""

from datetime import timedelta

import pytest

from orchestration.draft import spaced

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("count", "seconds"), [(0, 5), (1, 10), (2, 20), (6, 320), (7, 600), (10_000, 600)]
)
def test_an_interval_doubles_up_to_its_ceiling(count: int, seconds: int) -> None:
    assert spaced(5 * SECOND, count, 600 * SECOND) == seconds * SECOND
