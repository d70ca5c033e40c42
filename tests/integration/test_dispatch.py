"""Messages on every broker: also those for a queue that only another release has declared."""

from uuid import uuid4

import pytest
from celery import Celery

import celeryconfig
from orchestration.events import Dispatch
from orchestration.roster import release_of
from tasks.dispatch import CeleryDispatcher
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
