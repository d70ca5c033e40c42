"""The composition root: the Celery application, its tasks and queues (``celery -A tasks.app``).

Every agent operation is a Celery task under its own name and on its own queue, so that Flower shows
which service is called for which saga and step.
"""

import os
from collections.abc import Callable
from mmap import mmap
from typing import Any

from tasks.loading import without_collecting

with without_collecting():
    from celery import Celery, Task

    from models.states import Operation
    from orchestration.errors import AtalaiaError
    from orchestration.registry import load_module, load_workflows
    from orchestration.roster import NodeIdentity
    from orchestration.settings import settings
    from tasks.agent import AGENTS, Agent
    from tasks.queues import all_queues, queue_named
    from tasks.runtime import Runtime

app = Celery("atalaia", amqp="tasks.connection:AMQP")
app.config_from_object("celeryconfig")

_runtimes: dict[int, Runtime] = {}
_ending = mmap(-1, 1)  # Shared with whatever is forked from here.
_node: list[NodeIdentity] = []


def runtime() -> Runtime:
    """Return this process's parts; a forked child gets its own.

    What a child inherits is kept, unused: letting go of it could close the parent's connections.
    """
    pid = os.getpid()
    if pid not in _runtimes:
        _runtimes[pid] = Runtime(app, settings(), _node[0] if _node else None, is_ending)
    return _runtimes[pid]


def join_as(node: NodeIdentity) -> None:
    """Say which node this process, and whatever it forks, belongs to."""
    _node[:] = [node]
    _runtimes.clear()


def begin_to_end() -> None:
    """Say that this worker was told to end: none of its processes begins anything more."""
    _ending[0] = 1


def is_ending() -> bool:
    """Tell whether this worker was told to end."""
    return _ending[0] == 1


def _register(agent: Agent) -> None:
    for operation in agent.functions:
        name, _ = agent.contract.route(operation)
        app.task(name=name, ignore_result=True, operation=operation)(_body(agent, operation))


def _body(agent: Agent, operation: Operation) -> Callable[[str, str, int], str]:
    asks = operation in {Operation.PROBE, Operation.CLOSE}

    def perform(saga_id: str, path: str, number: int) -> str:
        envelope = runtime().envelope
        run = envelope.inquire if asks else envelope.attempt
        return run(agent, operation, saga_id, path, number)

    return perform


def load() -> None:
    """Import the agents and the workflows that the settings name, and register their tasks."""
    for name in settings().agents:
        load_module(name, "ATALAIA_AGENTS")
    load_workflows(settings().workflows)
    for agent in AGENTS.values():
        _register(agent)
    # Celery gives its default type only to the queue that it makes up when none is named.
    kind = app.conf.task_default_queue_type
    app.conf.task_queues = [queue_named(name, kind) for name in all_queues()]


@app.task(name="atalaia.start", bind=True, ignore_result=True, throws=(AtalaiaError,))
def start(
    task: Task[Any, Any],
    workflow: str,
    input: Any = None,  # noqa: A002 - the field's own word
    key: str | None = None,
) -> str:
    """Start a saga for an app that shares only the broker; the default key is the message's id."""
    handle = runtime().scheduler.start(workflow, input, key=key or task.request.id)
    return str(handle.saga_id)


@app.task(name="atalaia.sweep", ignore_result=True)
def sweep() -> dict[str, int]:
    """Supervise once; what beat fires."""
    parts = runtime()
    report = parts.supervisor.sweep()
    if parts.node is not None:
        parts.roster.swept(parts.node.id)
    return {name: count for name, count in report.counts.items() if count}


with without_collecting():
    load()

    # Logs, metrics, the node's duties and the ringing hang on what Celery's worker offers them.
    import tasks.logs
    import tasks.metrics
    import tasks.node
    import tasks.ringing  # noqa: F401
