"""Which pools are told about, and what for."""

import pytest
from celery.concurrency import get_implementation

from orchestration.errors import ConfigurationError
from tasks import pools


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_a_pool_is_known_by_the_name_that_it_is_asked_for(pool: str) -> None:
    assert pools.name_of(get_implementation(pool)) == pool


def test_a_pool_of_nobody_is_known_by_its_class() -> None:
    assert pools.name_of(type("Strange", (), {})) == "Strange"


@pytest.mark.parametrize("sqlite", [True, False])
def test_nothing_is_said_against_processes(sqlite: bool) -> None:
    assert list(pools.weaknesses("prefork", sqlite=sqlite)) == []


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet", "solo", "Strange"])
def test_a_pool_whose_calls_cannot_be_killed_is_told(pool: str) -> None:
    (found,) = pools.weaknesses(pool, sqlite=False)
    assert found.level == "warning"
    assert pool in found.text
    assert found.why
    assert found.remedy


def test_gevent_on_sqlite_is_told_besides() -> None:
    _, found = pools.weaknesses("gevent", sqlite=True)
    assert found.remedy == "use PostgreSQL"
    assert len(list(pools.weaknesses("threads", sqlite=True))) == 1


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_pool_that_celery_must_hear_of_by_its_command_line_is_told(pool: str) -> None:
    (found,) = pools.configured(pool)
    assert found.remedy.endswith(f"--pool {pool}")
    assert list(pools.configured("threads")) == []


def test_a_pool_that_is_not_installed_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasks.pools.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'atalaia\[gevent\]'"):
        pools.require("gevent")
    with pytest.raises(ConfigurationError, match="pip install 'eventlet'"):
        pools.require("eventlet")
    pools.require("threads")
