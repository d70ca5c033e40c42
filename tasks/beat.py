"""The application of beat: the schedule and nothing else (``celery -A tasks.beat beat``).

Beat only rings. It needs no agents and no database, and is half as large without them.
"""

from celery import Celery
from kombu import Queue

from tasks.sweeping import SUPERVISOR_QUEUE, queue_arguments

app = Celery("atalaia", amqp="tasks.connection:AMQP")
app.config_from_object("celeryconfig")
app.conf.task_queues = [
    Queue(
        SUPERVISOR_QUEUE,
        routing_key=SUPERVISOR_QUEUE,
        queue_arguments=queue_arguments(app.conf.task_default_queue_type),
    )
]

import tasks.logs  # noqa: E402, F401 - hangs on Celery's signals
