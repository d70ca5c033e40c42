"""Workers send events of tasks for as long as somebody asks for them again and again."""

from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.control import Panel

from tasks import watched

CLOCK = [0.0]


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(watched, "time", SimpleNamespace(monotonic=lambda: CLOCK[0]))
    return SimpleNamespace(event_dispatcher=SimpleNamespace(groups={"worker"}))


def ask(consumer: Any) -> None:
    Panel.data["enable_events"](SimpleNamespace(consumer=consumer))


def sends(consumer: Any) -> bool:
    watched.hush(consumer)
    return "task" in consumer.event_dispatcher.groups


def test_events_flow_while_they_are_asked_for_and_no_longer(consumer: Any) -> None:
    assert not sends(consumer)
    for _ in range(10):
        ask(consumer)
        CLOCK[0] += 5
        assert sends(consumer)
    CLOCK[0] += watched.PATIENCE_SECONDS
    assert not sends(consumer)
    ask(consumer)
    assert sends(consumer)


def test_events_that_a_worker_was_started_with_go_on(consumer: Any) -> None:
    consumer.event_dispatcher.groups = {"worker", "task"}
    CLOCK[0] += 10 * watched.PATIENCE_SECONDS
    assert sends(consumer)


def test_a_worker_that_has_lost_its_broker_is_left_alone(consumer: Any) -> None:
    ask(consumer)
    consumer.event_dispatcher = None
    CLOCK[0] += 2 * watched.PATIENCE_SECONDS
    watched.hush(consumer)
