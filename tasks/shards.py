"""One of several installations, for a process that starts sagas on all of them."""

from celery import Celery

from orchestration.database import open_engine
from orchestration.registry import registry
from orchestration.scheduler import Scheduler
from orchestration.store import Store
from tasks.dispatch import CeleryDispatcher


def open_shard(database_url: str, broker_url: str) -> Scheduler:
    """Return the scheduler of the installation at two URLs; it connects when it is used.

    It starts the workflows of this process, and those that its database has stored. Raises
    ``ConfigurationError`` for a database URL that cannot be understood.
    """
    app = Celery(
        "atalaia-shard", broker=broker_url, amqp="tasks.connection:AMQP", set_as_current=False
    )
    app.conf.task_ignore_result = True
    if broker_url.startswith("amqp"):
        app.conf.task_default_queue_type = "quorum"
        app.conf.task_create_missing_queue_type = "quorum"
    return Scheduler(Store(open_engine(database_url)), CeleryDispatcher(app), registry)
