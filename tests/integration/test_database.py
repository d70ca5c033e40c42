"""The database's own clock: what every deadline is set and compared by."""

import pytest
from sqlalchemy import Engine

from orchestration.store import Store
from tests.support.waiting import eventually


@pytest.mark.proves("T-1")
def test_time_goes_on_within_a_transaction(engine: Engine) -> None:
    store = Store(engine)
    with store.transaction() as connection:
        began_at = store.time(connection)
        eventually(
            lambda: store.time(connection) > began_at,
            within=5,
            describe="the clock stands still while a transaction is open",
        )
