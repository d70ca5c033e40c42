"""The queue of the sweeps, on which beat rings and which the supervisor's worker reads."""

from typing import Any

SUPERVISOR_QUEUE = "supervisor"
SUPERVISOR_POOL = "threads"
"""A sweep runs no code but ours, so it needs no process that can be killed, and costs none."""


def queue_arguments(queue_type: str) -> dict[str, Any]:
    """Return what a queue is declared with on RabbitMQ, where a queue keeps its first type.

    Elsewhere there is one type, and nothing to say.
    """
    return {} if queue_type == "classic" else {"x-queue-type": queue_type}
