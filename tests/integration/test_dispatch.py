"""Messages on every broker: also those for a queue that only another release has declared."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.app.trace import build_tracer

import celeryconfig
from orchestration.events import Dispatch
from orchestration.roster import release_of
from tasks.dispatch import FIRST, LAST, CeleryDispatcher
from tests.support.waiting import eventually


@pytest.mark.proves("D-22")
@pytest.mark.parametrize("queue", ["newer", release_of(["newer.book"], ["a definition"])])
def test_a_message_for_a_queue_of_another_release_is_sent(broker_url: str, queue: str) -> None:
    kind = "quorum" if broker_url.startswith("amqp") else "classic"
    with Celery("older", set_as_current=False) as app:
        app.config_from_object(celeryconfig)
        app.conf.update(broker_url=broker_url, task_default_queue_type=kind)
        dispatcher = CeleryDispatcher(app)
        before = dispatcher.depth(queue) or 0
        dispatcher.publish(
            [
                Dispatch(
                    saga_id=uuid4(), path="a", number=1, name="newer.book", queue=queue,
                    time_limit=None,
                )
            ]
        )  # fmt: skip
        eventually(
            lambda: dispatcher.depth(queue) == before + 1, within=10, describe="it waits there"
        )


@pytest.mark.proves("D-06")
def test_a_queue_that_is_not_there_holds_nothing(broker_url: str) -> None:
    with Celery("older", set_as_current=False) as app:
        app.config_from_object(celeryconfig)
        app.conf.update(broker_url=broker_url)
        assert CeleryDispatcher(app).depth(f"never-declared-{uuid4()}") == 0


def test_a_broker_that_is_away_tells_no_depth() -> None:
    with Celery("older", set_as_current=False) as app:
        app.conf.update(broker_url="redis://127.0.0.1:9/0")
        assert CeleryDispatcher(app).depth("any") is None


QUEUE = "ranks"


def sent() -> Dispatch:
    return Dispatch(saga_id=uuid4(), path="a", number=1, name="a", queue=QUEUE, time_limit=None)


@pytest.fixture
def ranked(valkey_url: str) -> Iterator[Celery]:
    with Celery("ranked", set_as_current=False) as app:
        app.config_from_object(celeryconfig)
        app.conf.update(broker_url=valkey_url, task_default_queue_type="classic")
        yield app


def priority_of_next(app: Celery) -> Any:
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue(QUEUE).get(timeout=5)
        message.ack()
        return message.properties["priority"]


@pytest.mark.parametrize(("behind", "priority"), [(False, FIRST), (True, LAST)])
def test_what_the_supervisor_sends_stands_behind(
    ranked: Celery, behind: bool, priority: int
) -> None:
    dispatcher = CeleryDispatcher(ranked, behind=behind)
    dispatcher.publish([sent(), sent()])
    assert dispatcher.depth(QUEUE) == 2
    assert priority_of_next(ranked) == priority


@pytest.mark.parametrize(
    ("url", "ranks"),
    [
        ("redis://127.0.0.1:9/0", True),
        ("sentinel://127.0.0.1:9;sentinel://127.0.0.1:10", True),
        ("rediss://127.0.0.1:9/0", False),
        ("amqp://127.0.0.1:9", False),
    ],
)
def test_nothing_stands_behind_where_it_would_wait_for_ever(url: str, ranks: bool) -> None:
    with Celery("ranked", set_as_current=False) as app:
        app.conf.update(broker_url=url)
        assert CeleryDispatcher(app, behind=True).ranks is ranks


@pytest.mark.parametrize("priority", [FIRST, LAST])
def test_what_follows_on_a_message_stands_where_that_one_stood(
    ranked: Celery, priority: int
) -> None:
    dispatcher = CeleryDispatcher(ranked)

    @ranked.task(name="a", shared=False)
    def follow() -> None:
        dispatcher.publish([sent()])

    request = {"id": "1", "delivery_info": {"priority": priority}}
    build_tracer("a", follow, app=ranked)("1", [], {}, request)
    assert priority_of_next(ranked) == priority
