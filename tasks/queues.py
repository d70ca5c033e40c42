"""The names of all queues: one for starts, one for sweeps, two for each service."""

from orchestration.contract import RECOVERY_QUEUE_SUFFIX
from orchestration.registry import registry

START_QUEUE = "atalaia"
SUPERVISOR_QUEUE = "supervisor"


def agent_queues() -> list[str]:
    """Return the queues of the agents, with those on which they are recovered."""
    queues = sorted({contract.queue for contract in registry.contracts.values()})
    return [name for queue in queues for name in (queue, queue + RECOVERY_QUEUE_SUFFIX)]


def all_queues() -> list[str]:
    """Return every queue of this installation."""
    return [START_QUEUE, SUPERVISOR_QUEUE, *agent_queues()]


def queue_arguments(queue_type: str) -> dict[str, str]:
    """Return what a queue is declared with on RabbitMQ, where a queue keeps its first type.

    Elsewhere there is one type, and nothing to say.
    """
    return {} if queue_type == "classic" else {"x-queue-type": queue_type}
