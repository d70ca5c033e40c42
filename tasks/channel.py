"""kombu's channel to Redis, with fewer trips to the server for each message.

Redis knows no acknowledgements. kombu keeps what is delivered and not acknowledged in two keys; it
makes one trip to enter a message there and another to remove it. Here the removal travels with the
entry of the next message. If none follows within a second, it is sent by itself. What a killed
worker had acknowledged and not yet removed is delivered once more, long after (visibility_timeout).

What the supervisor sends has a lower priority than fresh work. By itself kombu asks for the highest
first, and would ask for nothing else as long as that comes quickly enough. Here each third message
is one of the lowest, if any waits. So thousands that are sent again at once neither stand before
what comes later, nor wait for ever.

The keys and messages are kombu's own: workers and senders with either channel share them.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from typing import Any

from kombu.transport import redis, virtual

_QoS: Any = redis.QoS
_Channel: Any = redis.Channel
_SentinelChannel: Any = redis.SentinelChannel

SHARE = 3
"""Of so many messages one is of the lowest priority, if all priorities wait."""


class QoS(_QoS):
    """What is delivered and not acknowledged; an acknowledgement may come from any thread.

    There are no transactions. Everything is written in such an order that of an entry that is cut
    off only its time can be left, and kombu drops a time that has no message.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.acknowledged: deque[str] = deque()
        super().__init__(*args, **kwargs)

    def ack(self, delivery_tag: str) -> None:
        """Remove a message: with the next one, or at once if this channel waits for none."""
        self.acknowledged.append(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)
        if self.channel.closed or not self.channel.active_queues:
            self.settle()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - as kombu
        """Put a message back, or remove it."""
        if requeue:
            super().reject(delivery_tag, requeue)
        else:
            self.ack(delivery_tag)

    def settle(self) -> None:
        """Remove what is acknowledged."""
        if self.acknowledged:
            with self.pipe_or_acquire() as pipe:
                pipe.execute()

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """End: remove what is acknowledged, if the server is there, and put back the rest."""
        with suppress(*self.channel.connection_errors):
            self.settle()
        super().restore_unacked_once(stderr)

    @contextmanager
    def pipe_or_acquire(self, pipe: Any = None, client: Any = None) -> Iterator[Any]:
        """Begin a trip, such as for the entry of a message, with what is to be removed."""
        if pipe is not None:
            yield pipe
            return
        done: list[str] = []
        with suppress(IndexError):  # Another thread may take some, too.
            while True:
                done.append(self.acknowledged.popleft())
        try:
            with self.channel.conn_or_acquire(client) as connected:
                begun = connected.pipeline(transaction=False)
                if done:
                    begun.hdel(self.unacked_key, *done).zrem(self.unacked_index_key, *done)
                yield begun
        except BaseException:
            self.acknowledged.extendleft(reversed(done))  # Twice is as good as once.
            raise


class Channel(_Channel):
    """A channel to one server."""

    QoS = QoS
    _kept: Any = None
    _asked = 0
    _reverse = False

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - as kombu
        """Return the client of the pool; kombu would make one for each command."""
        if asynchronous:
            return super()._create_client(asynchronous)
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = super()._create_client()
        return self._kept

    def _brpop_start(self, timeout: Any = None) -> None:
        """Ask for the next message, each so many times in the reverse order of priorities."""
        self._asked += 1
        self._reverse = self._asked % SHARE == 0
        try:
            super()._brpop_start(timeout)
        finally:
            self._reverse = False

    def _q_for_pri(self, queue: str, pri: int) -> str:
        steps = self.priority_steps
        rank = steps[-1 - steps.index(pri)] if self._reverse else pri
        return str(super()._q_for_pri(queue, rank))

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except Empty:
            self.qos.settle()
            raise


class Transport(redis.Transport):
    """What kombu opens for ``redis://``."""

    Channel = Channel


class SentinelChannel(Channel, _SentinelChannel):
    """A channel to the server that Sentinel names."""


class SentinelTransport(redis.SentinelTransport):
    """What kombu opens for ``sentinel://``."""

    Channel = SentinelChannel
