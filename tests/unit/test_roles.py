from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from orchestration.settings import Settings
from orchestration.store import Store
from tasks.roles import Roles, environment


def test_children_are_given_exactly_the_settings_of_their_stack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATALAIA_BROKER_URL", "redis://somebody-elses")
    monkeypatch.setenv("ATALAIA_TRAVEL_HOTELS_URL", "http://127.0.0.1:1")
    given = Settings(
        home=tmp_path,
        broker_url=None,
        workflows=("one", "two"),
        sweep_interval=timedelta(milliseconds=1500),
        log_json=True,
    )

    inherited = environment(given)

    assert "ATALAIA_BROKER_URL" not in inherited
    assert inherited["ATALAIA_TRAVEL_HOTELS_URL"] == "http://127.0.0.1:1"
    monkeypatch.delenv("ATALAIA_BROKER_URL")
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    assert Settings() == given


@pytest.mark.parametrize(
    ("given", "ports"), [(None, [None] * 3), (0, ["0"] * 3), (9100, ["9100", "9101", "9102"])]
)
def test_workers_of_one_machine_show_their_metrics_at_ports_side_by_side(
    tmp_path: Path, store_of_nobody: Store, given: int | None, ports: list[str | None]
) -> None:
    roles = Roles(Settings(home=tmp_path, metrics_port=given), store_of_nobody, {})
    children = [roles.supervisor(), *roles.workers(2)]
    shown = [(child.environment or {}).get("ATALAIA_METRICS_PORT") for child in children]
    assert shown == ports


@pytest.fixture
def store_of_nobody() -> Iterator[Store]:
    engine = create_engine("sqlite://")
    yield Store(engine)
    engine.dispose()
