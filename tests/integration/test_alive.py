"""A worker is alive for as long as its node speaks."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine

from tasks.alive import a_worker_lives
from tests.support.core import Core, line

SILENCE = timedelta(seconds=6)


@pytest.fixture
def core(engine: Engine) -> Core:
    return Core(engine, line("a"))


def test_a_worker_of_this_machine_is_alive_until_it_has_been_silent(core: Core) -> None:
    store = core.roster.store
    assert not a_worker_lives(store, "here", SILENCE)
    core.join("worker1@there")
    assert not a_worker_lives(store, "here", SILENCE)
    core.join("worker1@here")
    assert a_worker_lives(store, "here", SILENCE)
    core.now += SILENCE + timedelta(microseconds=1)
    assert not a_worker_lives(store, "here", SILENCE)
