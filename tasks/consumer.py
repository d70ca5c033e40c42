"""The worker's consumer without Celery's delayed delivery, which is of no use here.

Where it finds quorum queues Celery has each worker declare 28 queues and as many exchanges for
messages with an earliest time, and bind every queue to them. None is ever sent: what is to be done
later is kept in rows, with a ``wake_at``.
"""

from typing import Any, ClassVar

from celery.worker.consumer import Consumer

DELAYED_DELIVERY = "celery.worker.consumer.delayed_delivery:DelayedDelivery"
_Celerys: Any = Consumer.Blueprint


class PromptConsumer(Consumer):
    """Celery's consumer, less that one step of its start."""

    class Blueprint(_Celerys):
        """What a consumer starts, and in which order."""

        default_steps: ClassVar[list[str]] = [
            step for step in _Celerys.default_steps if step != DELAYED_DELIVERY
        ]
