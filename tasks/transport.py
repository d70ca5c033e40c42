"""What `atalaia check` says about Celery's own settings, which celeryconfig.py gives.

Nothing is done twice and no saga is lost by any of them: the rows decide. They cost time, messages
and memory, and the longest of those are worth a line.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from tasks.findings import ONLY_TIME, Finding, warning

_FENCED = "each delivery is fenced, so nothing is done twice"
_WANTED: Mapping[str, tuple[Any, str]] = {
    "result_backend": (
        None,
        "results are rows; a backend is a second thing that each step waits for when it is down",
    ),
    "task_acks_late": (
        True,
        f"a message ends with the worker that has fetched it; {ONLY_TIME}",
    ),
    "worker_prefetch_multiplier": (
        1,
        "a worker holds messages that it cannot run yet: short steps wait behind a long one",
    ),
    "task_reject_on_worker_lost": (
        False,
        f"a message that kills its worker comes back at once and without end; {_FENCED}",
    ),
    "task_retry_on_worker_lost": (
        False,
        f"Celery repeats what the supervisor already repeats, by a count of its own; {_FENCED}",
    ),
    "task_acks_on_timeout": (
        True,
        f"a message that ran out of time comes back at once and without end; {_FENCED}",
    ),
    "worker_cancel_long_running_tasks_on_connection_loss": (
        False,
        "a blip of the broker kills calls that were running, and their outcome must be asked for",
    ),
}
_JSON = {"json", "application/json"}
_REDIS_VISIBILITY = timedelta(hours=1)
"""What holds if none is set."""
_RABBITMQ_PATIENCE = timedelta(minutes=30)
"""RabbitMQ's own ``consumer_timeout``, unless its administrator has set another."""


def transport(conf: Any, url: str, longest: timedelta) -> Iterator[Finding]:
    """Yield what in Celery's settings ``conf`` costs work; ``longest``: that a step may run."""
    for name, (wanted, why) in _WANTED.items():
        value = conf[name]
        if value is not None and value != wanted:
            text = f"{name} is set" if wanted is None else f"{name} is {value}, not {wanted}"
            yield _wrong(text, name, why, f"set {name} = {wanted} in celeryconfig.py")
    if more := sorted(set(conf["accept_content"]) - _JSON):
        text = f"accept_content allows {', '.join(more)}"
        why = "whoever can write to the broker may run code of their own in the workers"
        yield _wrong(text, "accept_content", why, 'set accept_content = ["json"]')
    yield from (_of_rabbitmq if url.startswith("amqp") else _of_redis)(conf, longest)


def _of_redis(conf: Any, longest: timedelta) -> Iterator[Finding]:
    seconds = conf["broker_transport_options"].get("visibility_timeout")
    visible = _REDIS_VISIBILITY if seconds is None else timedelta(seconds=float(seconds))
    if visible <= longest:
        name = "broker_transport_options.visibility_timeout"
        text = f"visibility_timeout is {_told(visible)}, and a step may run for {_told(longest)}"
        why = f"messages of running steps are delivered again; {_FENCED}, but workers are kept busy"
        yield _wrong(text, name, why, f"set it to more than {_told(longest)}")


def _of_rabbitmq(conf: Any, longest: timedelta) -> Iterator[Finding]:
    if not conf["broker_transport_options"].get("confirm_publish"):
        name = "broker_transport_options.confirm_publish"
        why = (
            "a message that RabbitMQ refuses, or loses on the way, counts as sent; "
            f"{ONLY_TIME}, but a start by message has no row yet and is lost"
        )
        yield _wrong("confirm_publish is off", name, why, "set it to True")
    if longest >= _RABBITMQ_PATIENCE:
        text = f"a step may run for {_told(longest)}; RabbitMQ's consumer_timeout is 30 min"
        why = f"the connection is cut and the message delivered again; {_FENCED}"
        remedy = f"set consumer_timeout in rabbitmq.conf to more than {_told(longest)}"
        yield _wrong(text, "consumer_timeout", why, remedy)


def _wrong(text: str, setting: str, why: str, remedy: str) -> Finding:
    return warning("celery", text, setting=setting, why=why, remedy=remedy)


def _told(length: timedelta) -> str:
    return f"{length.total_seconds():g} s"
