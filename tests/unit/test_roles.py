from datetime import timedelta
from pathlib import Path

import pytest

from orchestration.settings import Settings
from tasks.roles import environment


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
