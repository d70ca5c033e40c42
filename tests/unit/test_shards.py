"""Where a key is at home: the same everywhere, evenly, and for ever with the same names."""

from collections import Counter
from unittest.mock import Mock

import pytest
from kombu import Queue

from orchestration.shards import Shards
from tasks.dispatch import CeleryDispatcher
from tasks.shards import open_shard

KEYS = [f"order-{number}" for number in range(10_000)]


def shards(*names: str) -> Shards:
    return Shards({name: Mock() for name in names})


def test_a_key_is_at_home_where_it_was_in_every_release() -> None:
    for order in ("abc", "cab"):
        homes = [shards(*order).home(key) for key in KEYS[:6]]
        assert homes == ["b", "a", "c", "a", "b", "c"]


def test_keys_are_shared_out_evenly() -> None:
    four = shards("a", "b", "c", "d")
    counts = Counter(four.home(key) for key in KEYS)
    assert counts.keys() == set(four)
    assert all(2_300 < number < 2_700 for number in counts.values())


def test_a_further_shard_takes_its_share_and_nothing_else_moves() -> None:
    before, after = shards("a", "b", "c"), shards("a", "b", "c", "d")
    moved = [key for key in KEYS if before.home(key) != after.home(key)]
    assert {after.home(key) for key in moved} == {"d"}
    assert 2_300 < len(moved) < 2_700


def test_without_a_shard_there_is_nothing_to_choose() -> None:
    with pytest.raises(ValueError, match="at least one"):
        shards()


@pytest.mark.parametrize(
    ("broker", "declared"),
    [
        ("amqp://guest@127.0.0.1:5672/none", {"x-queue-type": "quorum"}),
        ("redis://127.0.0.1:6379/0", {}),
    ],
)
def test_a_shards_queues_are_declared_as_its_workers_declare_them(
    broker: str, declared: dict[str, str]
) -> None:
    dispatcher = open_shard("sqlite://", broker).dispatcher
    assert isinstance(dispatcher, CeleryDispatcher)
    queue = dispatcher._queue("flights")
    assert isinstance(queue, Queue)
    assert queue.queue_arguments == declared
