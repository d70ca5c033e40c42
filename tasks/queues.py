"""The names of all queues: for starts, for sweeps, and two for each service and each release."""

from kombu import Queue

from orchestration.contract import RECOVERY_QUEUE_SUFFIX
from orchestration.registry import registry
from orchestration.roster import RELEASE
from tasks.sweeping import SUPERVISOR_QUEUE, queue_arguments

START_QUEUE = "atalaia"
_UNREAD_MILLISECONDS = 3_600_000
"""How long RabbitMQ keeps the queues of a release of which no worker is left."""


def agent_queues() -> list[str]:
    """Return the queues of the agents, with those on which they are recovered."""
    queues = sorted({contract.queue for contract in registry.contracts.values()})
    return [name for queue in queues for name in (queue, queue + RECOVERY_QUEUE_SUFFIX)]


def all_queues() -> list[str]:
    """Return every queue of this installation that outlives a release."""
    return [START_QUEUE, SUPERVISOR_QUEUE, *agent_queues()]


def queue_named(name: str, queue_type: str) -> Queue:
    """Return a queue as whoever sends to it and whoever reads it declare it."""
    arguments = queue_arguments(queue_type)
    if arguments and name.startswith(RELEASE):
        arguments["x-expires"] = _UNREAD_MILLISECONDS
    return Queue(name, routing_key=name, queue_arguments=arguments)


def release_queues(release: str) -> list[str]:
    """Return the two queues that only workers of a release read."""
    return [release, release + RECOVERY_QUEUE_SUFFIX]
