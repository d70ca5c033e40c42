"""What makes the applications' connections to their broker: of Redis the channel is ours.

It is named and not imported: who has RabbitMQ needs no client of Redis, which is a tenth of what a
worker loads.
"""

from typing import Any

import kombu
from celery.app import amqp
from kombu.transport import get_transport_cls

_OURS = {"redis": "tasks.channel:Transport", "sentinel": "tasks.channel:SentinelTransport"}
"""By the scheme of a URL. What is opened with TLS is left to kombu."""


class Connection(kombu.Connection):
    """A connection whose URL keeps its scheme, for whoever reads it, as Flower does."""

    def get_transport_cls(self) -> Any:
        """Return what opens it."""
        ours = _OURS.get(self.transport_cls)
        return get_transport_cls(ours) if ours else super().get_transport_cls()


class AMQP(amqp.AMQP):
    """What makes an application's connections."""

    Connection = Connection
