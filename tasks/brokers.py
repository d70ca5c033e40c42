"""What `atalaia check` asks the broker itself: how it is set up, and what that would lose.

The broker holds nothing that is not in the rows, but for a start by message: what it loses costs
time. Nothing is written; a setting that may not be read is told as a note.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import kombu
import redis
from amqp.exceptions import AMQPError, NotFound, PreconditionFailed
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from orchestration.settings import Settings
from tasks.findings import ONLY_TIME, Finding, error, note, ok, warning
from tasks.queues import all_queues
from tasks.sweeping import queue_arguments

_PATIENCE_SECONDS = 3
_SENTINEL_PORT = 26379
_STARTS = "a start by message that was waiting is lost, for it has no row yet"


def answers(name: str, url: str, given: Settings, conf: Any) -> Iterator[Finding]:
    """Yield that the broker at ``url`` answers, and what is wrong with it; raise if it does not."""
    if "://" not in url:
        raise ValueError(url)
    if url.startswith(("redis", "sentinel")):
        with _redis(url, given) as client:
            client.ping()
            yield ok("broker", f"{name} answers")
            yield from _settings_of(client)
        return
    with kombu.Connection(url, connect_timeout=_PATIENCE_SECONDS) as connection:
        connection.connect()
        yield ok("broker", f"{name} answers")
        if url.startswith("amqp"):
            yield from _types(connection, all_queues(), conf["task_default_queue_type"])
        else:
            yield warning("broker", "only redis:// and amqp:// are tried out with Atalaia")


# --- Redis and Valkey ----------------------------------------------------------------------------


@contextmanager
def _redis(url: str, given: Settings) -> Iterator[redis.Redis]:
    once: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": _PATIENCE_SECONDS,
        "socket_connect_timeout": _PATIENCE_SECONDS,
    }
    if not url.startswith("sentinel"):
        with redis.Redis.from_url(url, **once) as client:
            yield client
        return
    parts = [urlsplit(part) for part in url.split(";")]
    guards = [(part.hostname or "", part.port or _SENTINEL_PORT) for part in parts]
    password = unquote(parts[0].password) if parts[0].password else None
    watch: Any = Sentinel(guards, sentinel_kwargs=once)  # type: ignore[no-untyped-call]
    name = given.broker_master or ""
    with watch.master_for(name, username=parts[0].username, password=password, **once) as client:
        yield client
    watch.close()


def _settings_of(client: redis.Redis) -> Iterator[Finding]:
    if client.info("cluster").get("cluster_enabled"):
        yield error(
            "broker",
            "this is a cluster, and Celery speaks to single servers only",
            setting="cluster-enabled",
            why="its commands reach for several keys at once, which a cluster refuses",
            remedy="use one server, several behind Sentinel, or RabbitMQ",
        )
    try:
        options: Any = client.config_get("maxmemory*", "append*", "save")
    except redis.ResponseError as refusal:
        yield note("broker", f"its settings could not be read ({refusal})")
        return
    policy = options.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        yield warning(
            "broker",
            f"maxmemory-policy is {policy}: when full, it drops messages without a word",
            setting="maxmemory-policy",
            why=f"{ONLY_TIME}; {_STARTS}",
            remedy="CONFIG SET maxmemory-policy noeviction, and the same in its configuration file",
        )
    if options.get("appendonly", "yes") != "yes":
        snapshots = bool(options.get("save"))
        yield warning(
            "broker",
            "appendonly is no: with a restart it loses "
            + ("what came after its last snapshot" if snapshots else "every message"),
            setting="appendonly",
            why=f"{ONLY_TIME}; {_STARTS}",
            remedy="CONFIG SET appendonly yes, and the same in its configuration file",
        )
    elif options.get("appendfsync") == "no":
        yield warning(
            "broker",
            "appendfsync is no: a crash of its machine loses what the system had not written yet",
            setting="appendfsync",
            why=f"{ONLY_TIME}; {_STARTS}",
            remedy="CONFIG SET appendfsync everysec, and the same in its configuration file",
        )


# --- RabbitMQ ------------------------------------------------------------------------------------


def _types(connection: Any, names: Sequence[str], wanted: str) -> Iterator[Finding]:
    """Yield what is wrong with the types of the queues that are there; none is made."""
    if wanted == "classic":
        yield warning(
            "broker",
            "task_default_queue_type is classic: each queue lives on one node of RabbitMQ",
            setting="task_default_queue_type",
            why=f"with its node, what waits in a queue is gone; {ONLY_TIME}; {_STARTS}",
            remedy='set task_default_queue_type = "quorum", and delete the empty queues',
        )
    others, unseen = [], []
    for name in names:
        try:
            if not _is_of(connection, name, wanted):
                others.append(name)
        except AMQPError as refusal:
            unseen.append(f"{name} ({getattr(refusal, 'reply_text', '') or refusal})")
    if others:
        yield error(
            "broker",
            f"not {wanted} queues: {', '.join(others)}",
            setting="x-queue-type",
            why="a queue keeps the type that it was declared with, and no worker can read these; "
            + ONLY_TIME,
            remedy="stop the workers, then `rabbitmqctl delete_queue NAME` for each",
        )
    if unseen:
        yield note("broker", f"the type could not be read of {'; '.join(unseen)}")


def _is_of(connection: Any, name: str, wanted: str) -> bool:
    """Tell whether a queue has the type, or is not there; asked by declaring it as it should be."""
    with connection.channel() as channel:
        try:
            channel.queue_declare(queue=name, passive=True)
        except NotFound:
            return True  # Whoever needs it first declares it as it should be.
    with connection.channel() as channel:
        try:
            channel.queue_declare(
                queue=name, durable=True, auto_delete=False, arguments=queue_arguments(wanted)
            )
        except PreconditionFailed:
            return False
    return True
