"""The worker's consumer is Celery's, less what makes queues that nobody uses."""

from celery.utils.imports import symbol_by_name
from celery.worker.consumer import Consumer
from celery.worker.consumer.delayed_delivery import DelayedDelivery

from tasks.app import app
from tasks.consumer import PromptConsumer


def test_workers_start_everything_that_celery_starts_but_delayed_delivery() -> None:
    assert symbol_by_name(app.conf.worker_consumer) is PromptConsumer
    started = PromptConsumer.Blueprint().claim_steps().values()
    celerys = Consumer.Blueprint().claim_steps().values()
    assert set(celerys) - set(started) == {DelayedDelivery}
    assert set(started) <= set(celerys)
