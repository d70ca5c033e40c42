"""The broker behind the ``Dispatcher`` port. What it loses, the supervisor sends again."""

import math
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from celery import Celery, current_task
from celery.utils.nodenames import anon_nodename
from kombu import Queue

from models.states import Operation
from orchestration.events import Dispatch
from orchestration.telemetry import log_of
from tasks.queues import queue_named

_NOT_FOUND = "404"
FIRST, LAST = 0, 9
"""The highest and the lowest of kombu's priorities on Redis."""


class CeleryDispatcher:
    """Sends ids, and only ids, to the queue of an agent.

    With ``behind``, its messages stand behind those of others on Redis: see ``tasks.channel``.
    """

    def __init__(self, app: Celery, *, behind: bool = False) -> None:
        self.app = app
        self.behind = behind
        self.origin = anon_nodename()
        self.tells = app.conf.task_send_sent_event
        url = app.conf.broker_url or ""
        # RabbitMQ drops what it cannot route unless it is told not to. Redis has no such
        # option, and its lists need no declaration.
        self.options: dict[str, Any] = (
            {"mandatory": True, "confirm_timeout": 5} if url.startswith("amqp") else {"declare": ()}
        )
        # What is opened with TLS is kombu's channel, which would keep the lowest waiting for ever.
        self.ranks = url.startswith(("redis://", "sentinel://"))

    def publish(self, dispatches: Sequence[Dispatch]) -> None:
        """Send each message; log what fails."""
        for dispatch in dispatches:
            try:
                self._send(dispatch)
            except Exception as error:  # noqa: BLE001 - the row is there and is sent again, whatever this was
                log_of("dispatch").warning(
                    "not sent", saga=str(dispatch.saga_id), step=dispatch.path, error=repr(error)
                )

    def _send(self, dispatch: Dispatch) -> None:
        """Send one message through Celery's own sender, without what ``send_task`` does besides.

        There is no result, no callback and no earliest time; routes are the agents' own queues.
        """
        task_id, limit = str(uuid4()), dispatch.time_limit
        message = self.app.amqp.as_task_v2(
            task_id,
            dispatch.name,
            args=(str(dispatch.saga_id), dispatch.path, dispatch.number),
            argsrepr=_told(dispatch),
            kwargsrepr="{}",
            time_limit=math.ceil(limit.total_seconds()) if limit else None,
            root_id=task_id,
            ignore_result=True,
            origin=self.origin,
            create_sent_event=self.tells,
        )
        with self.app.producer_or_acquire() as producer:
            self.app.amqp.send_task_message(
                producer, dispatch.name, message, queue=self._queue(dispatch.queue),
                **self.options, **self._rank(),
            )  # fmt: skip

    def _rank(self) -> dict[str, int]:
        """Return where a message stands; what follows on one that stood behind does so, too."""
        if not self.ranks:
            return {}
        task: Any = current_task
        follows = bool(task) and (task.request.delivery_info or {}).get("priority") == LAST
        return {"priority": LAST if self.behind or follows else FIRST}

    def _queue(self, name: str) -> str | Queue:
        """Return a queue; one that this code does not know is another release's."""
        known = name in self.app.amqp.queues
        return name if known else queue_named(name, self.app.conf.task_default_queue_type)

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in ``queue``; ``None`` if the broker does not say."""
        try:
            with self.app.connection_for_read() as connection:
                channel: Any = connection.default_channel
                return int(channel.queue_declare(queue, passive=True).message_count)
        except Exception as error:  # noqa: BLE001 - not knowing only means to send once more
            if str(getattr(error, "reply_code", "")) == _NOT_FOUND:
                return 0  # Redis keeps no empty list.
            log_of("dispatch").info("depth not known", queue=queue, error=repr(error))
            return None


def _told(dispatch: Dispatch) -> str:
    """Return the arguments as Flower and the logs show them; what is cut off there comes last."""
    asks = dispatch.name.endswith((f".{Operation.PROBE}", f".{Operation.CLOSE}"))
    what = "question" if asks else "attempt"
    return f"{dispatch.path} {what}={dispatch.number} saga={dispatch.saga_id}"
