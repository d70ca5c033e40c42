"""The messages that decisions amount to: ids and names, for whoever does the step. Pure."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from models.states import Operation
from orchestration.contract import KILL_GRACE
from orchestration.definition import Definition
from orchestration.events import Decision, Dispatch, Send

ANSWER_TIMEOUT = timedelta(seconds=30)


def dispatches_of(
    definition: Definition, saga_id: UUID, decisions: Sequence[Decision]
) -> list[Dispatch]:
    """Return the messages among what was decided about a saga."""
    sends = (decision for decision in decisions if isinstance(decision, Send))
    return [dispatch_of(definition, saga_id, send) for send in sends]


def dispatch_of(definition: Definition, saga_id: UUID, send: Send) -> Dispatch:
    """Return the message that a decision to send amounts to."""
    contract = definition.contracts[send.agent]
    name, queue = contract.route(send.operation)
    step = send.path.partition("~")[0]
    asks = send.operation in {Operation.PROBE, Operation.CLOSE}
    timeout = definition.step(step).timeout
    if asks:
        timeout = min(timeout, ANSWER_TIMEOUT)
    elif send.operation is Operation.ACTION:
        timeout = definition.longest_task(step)
    return Dispatch(
        saga_id=saga_id,
        path=send.path,
        number=send.number,
        name=name,
        queue=queue,
        time_limit=timeout + KILL_GRACE,
    )
