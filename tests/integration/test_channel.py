"""Messages on Redis: entered, acknowledged and put back as with kombu's own channel."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from socket import timeout as NothingCame  # noqa: N812 - what kombu raises then
from typing import Any
from uuid import uuid4

import kombu
import pytest
import redis

from tasks.channel import SHARE
from tasks.dispatch import FIRST, LAST

OURS, KOMBUS = "tasks.channel:Transport", "redis"


class Reader:
    """One consumer of one queue; its keys are its own, and so is the place of its messages."""

    def __init__(self, url: str, prefix: str, transport: str) -> None:
        options = {"global_keyprefix": prefix, "retry_on_timeout": False}
        self.connection = kombu.Connection(url, transport=transport, transport_options=options)
        self.channel: Any = self.connection.channel()
        self.messages: list[Any] = []
        queue = kombu.Queue("work", routing_key="work")
        self.consumer = kombu.Consumer(self.channel, [queue], callbacks=[self._take])
        self.consumer.qos(prefetch_count=10)
        self.consumer.consume()

    def _take(self, _body: object, message: Any) -> None:
        self.messages.append(message)

    def send(self, *bodies: str, priority: int = FIRST) -> None:
        for body in bodies:
            kombu.Producer(self.channel).publish(body, routing_key="work", priority=priority)

    def read(self) -> Any:
        """Return the next message."""
        self.connection.drain_events(timeout=5)
        return self.messages[-1]

    def read_nothing(self) -> None:
        with pytest.raises(NothingCame):
            self.connection.drain_events(timeout=2)

    def close(self) -> None:
        self.connection.release()


Open = Callable[..., Reader]


class Books:
    """What the server holds for these readers."""

    def __init__(self, url: str, prefix: str) -> None:
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.prefix = prefix

    def unacknowledged(self) -> set[str]:
        entries: Any = self.client.hkeys(f"{self.prefix}unacked")
        times: Any = self.client.zrange(f"{self.prefix}unacked_index", 0, -1)
        assert set(entries) == set(times)
        return set(entries)

    def waiting(self) -> int:
        count: Any = self.client.llen(f"{self.prefix}work")
        return int(count)


@pytest.fixture
def prefix() -> str:
    return f"{uuid4()}."


@pytest.fixture
def books(valkey_url: str, prefix: str) -> Iterator[Books]:
    books = Books(valkey_url, prefix)
    yield books
    books.client.close()


@pytest.fixture
def opened(valkey_url: str, prefix: str) -> Iterator[Open]:
    with ExitStack() as stack:

        def reader(transport: str = OURS, url: str = valkey_url) -> Reader:
            found = Reader(url, prefix, transport)
            stack.callback(found.close)
            return found

        yield reader


def test_an_acknowledged_message_is_removed_with_the_entry_of_the_next(
    opened: Open, books: Books
) -> None:
    reader = opened()
    reader.send("first", "second")
    first = reader.read()
    first.ack()
    assert books.unacknowledged() == {first.delivery_tag}
    second = reader.read()
    assert books.unacknowledged() == {second.delivery_tag}


def test_an_acknowledged_message_is_removed_when_no_other_comes(opened: Open, books: Books) -> None:
    reader = opened()
    reader.send("only")
    reader.read().ack()
    reader.read_nothing()
    assert books.unacknowledged() == set()
    assert books.waiting() == 0


def test_an_acknowledged_message_is_removed_at_once_when_the_reader_takes_no_more(
    opened: Open, books: Books
) -> None:
    reader = opened()
    reader.send("only")
    message = reader.read()
    reader.consumer.cancel()
    message.ack()
    assert books.unacknowledged() == set()


@pytest.mark.proves("D-09")
def test_the_end_of_a_channel_removes_what_is_acknowledged_and_puts_back_the_rest(
    opened: Open, books: Books
) -> None:
    reader = opened()
    reader.send("done", "open")
    reader.read().ack()
    late = reader.read()
    reader.channel.close()
    assert books.unacknowledged() == set()
    assert books.waiting() == 1
    assert opened().read().payload == late.payload == "open"


@pytest.mark.proves("D-09")
def test_what_could_not_be_removed_is_removed_with_the_next_try(opened: Open, books: Books) -> None:
    reader = opened()
    reader.send("only")
    reader.read().ack()
    books.client.rename(f"{books.prefix}unacked", "elsewhere")
    books.client.set(f"{books.prefix}unacked", "of another type")
    with pytest.raises(redis.ResponseError):
        reader.channel.qos.settle()
    books.client.rename("elsewhere", f"{books.prefix}unacked")
    reader.channel.qos.settle()
    assert books.unacknowledged() == set()


@pytest.mark.parametrize(("sends", "takes"), [(OURS, KOMBUS), (KOMBUS, OURS)])
def test_both_kinds_of_channels_read_and_put_back_each_others_messages(
    opened: Open, books: Books, sends: str, takes: str
) -> None:
    opened(sends).send("for either")
    silent = opened(takes)
    tag = silent.read().delivery_tag
    opened(sends).channel.qos.restore_by_tag(tag)
    assert books.unacknowledged() == set()
    assert opened(sends).read().payload == "for either"


def test_one_client_serves_all_commands_of_a_channel(opened: Open) -> None:
    channel = opened().channel
    with channel.conn_or_acquire() as one, channel.conn_or_acquire() as another:
        assert one is another
    channel._disconnect_pools()
    with channel.conn_or_acquire() as later:
        assert later is not one


def read_all(reader: Reader, count: int) -> list[str]:
    """Return what so many messages are, each acknowledged before the next is read."""
    found = []
    for _ in range(count):
        message = reader.read()
        message.ack()
        found.append(message.payload)
    return found


@pytest.mark.proves("D-23")
def test_of_so_many_messages_one_is_of_those_that_stand_behind(opened: Open) -> None:
    reader = opened()
    reader.send(*["late"] * 4, priority=LAST)
    reader.send(*["fresh"] * 20)
    found = read_all(reader, 12)
    assert found.count("late") == 12 // SHARE
    gaps = "".join(body[0] for body in found).split("l")
    assert {len(gap) for gap in gaps[1:-1]} == {SHARE - 1}


@pytest.mark.parametrize("priority", [FIRST, LAST])
def test_what_waits_alone_is_taken_at_once(opened: Open, priority: int) -> None:
    reader = opened()
    reader.send(*"abcdef", priority=priority)
    assert read_all(reader, 6) == list("abcdef")


def test_what_stood_behind_is_put_back_behind(opened: Open) -> None:
    opened().send("late", priority=LAST)
    tag = opened().read().delivery_tag
    opened().channel.qos.restore_by_tag(tag)
    reader = opened()
    reader.send("fresh")
    assert read_all(reader, 2) == ["fresh", "late"]
