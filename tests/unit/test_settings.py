"""Settings come from the environment; whatever is wrong with them is said at once."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestration.errors import ConfigurationError
from orchestration.settings import Settings, settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Any:
    import os

    for name in [name for name in os.environ if name.startswith("ATALAIA_")]:
        monkeypatch.delenv(name)
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_nothing_needs_to_be_set() -> None:
    assert settings().database.startswith("sqlite:////")
    assert settings().database.endswith("/.atalaia/atalaia.db")
    assert settings().broker_url is None


def test_the_database_lives_in_home_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(home=Path("/var/a")).database == "sqlite:////var/a/atalaia.db"
    monkeypatch.setenv("ATALAIA_DATABASE_URL", "postgresql+psycopg://127.0.0.1/a")
    assert settings().database == "postgresql+psycopg://127.0.0.1/a"


@pytest.mark.parametrize("written", ["PT0.5S", "0.5"])
def test_a_duration_is_iso_8601_or_seconds(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATALAIA_SWEEP_INTERVAL", written)
    assert settings().sweep_interval == timedelta(seconds=0.5)


def test_names_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATALAIA_AGENTS", "shop.agents, tasks.agents,")
    assert settings().agents == ("shop.agents", "tasks.agents")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("P30D", timedelta(days=30)),
        ("86400", timedelta(days=1)),
        ("off", None),
        (" OFF ", None),
    ],
)
def test_how_long_ended_sagas_are_kept_is_a_duration_or_off(
    written: str, meant: timedelta | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings().retention == timedelta(days=30)
    settings.cache_clear()
    monkeypatch.setenv("ATALAIA_RETENTION", written)
    assert settings().retention == meant


@pytest.mark.parametrize("written", ["", "PT23H", "0", "-P1D", "30 days or so", "P40000D", "1e99"])
def test_a_retention_that_would_forget_keys_too_soon_is_refused_in_one_sentence(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATALAIA_RETENTION", written)
    allowed = f"{written!r} is neither off nor a duration of at least a day, such as P30D"
    with pytest.raises(ConfigurationError) as refusal:
        settings()
    assert str(refusal.value) == f"ATALAIA_RETENTION: {allowed}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SWEEP_INTERVAL", "0"),
        ("SWEEP_BATCH", "0"),
        ("CONCURRENCY", "many"),
        ("WEB_PORT", "65536"),
        ("NODE_HEARTBEAT", "-1"),
        ("LOG_JSON", "perhaps"),
    ],
)
def test_what_is_wrong_is_named_by_its_variable(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ATALAIA_{name}", value)
    with pytest.raises(ConfigurationError, match=f"^ATALAIA_{name}: "):
        settings()


def test_everything_that_is_wrong_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATALAIA_SWEEP_BATCH", "0")
    monkeypatch.setenv("ATALAIA_WEB_PORT", "x")
    with pytest.raises(ConfigurationError, match=r"ATALAIA_SWEEP_BATCH: .*; ATALAIA_WEB_PORT: "):
        settings()


def test_a_node_must_miss_several_heartbeats_before_it_counts_as_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATALAIA_NODE_HEARTBEAT", "3")
    with pytest.raises(ConfigurationError, match=r"^node_timeout .* at least three times"):
        settings()
    monkeypatch.setenv("ATALAIA_NODE_TIMEOUT", "9")
    assert settings().node_timeout == timedelta(seconds=9)


def test_sentinel_wants_the_name_of_its_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATALAIA_BROKER_URL", "sentinel://127.0.0.1:26379/0")
    with pytest.raises(ConfigurationError, match="broker_master must name"):
        settings()
    monkeypatch.setenv("ATALAIA_BROKER_MASTER", "mymaster")
    assert settings().broker_master == "mymaster"
