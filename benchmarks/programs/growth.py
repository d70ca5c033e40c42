"""The agent of the workflow whose sagas fill a database: it does nothing, and says that it did."""

from typing import Any

from benchmarks.filling import GROWTH, WORK
from orchestration.signals import Answer, Applied
from tasks.agent import Call, agent

__all__ = ["GROWTH"]

RESULT = {"reference": "AB-1234567", "ok": True}


@agent(WORK.name, queue=WORK.queue, idempotent=WORK.idempotent)
def work(_call: Call[Any]) -> dict[str, Any]:
    """Return a small result at once."""
    return RESULT


@work.probe
def find(_call: Call[Any]) -> Answer:
    """Say that it was done."""
    return Applied(RESULT)


@work.compensation
def undo(_call: Call[Any], _result: dict[str, Any] | None) -> None:
    """Do nothing."""


assert work.contract == WORK, "the copies are of sagas of another agent"
