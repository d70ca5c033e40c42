"""What is decided: the public surface for those who write workflows, agents and callers.

Each name is imported when it is first asked for: a process that only needs the settings, such as
beat, stays half as large.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestration.definition import (
        RetryOverride,
        RetryPolicy,
        Step,
        Workflow,
        parallel,
        sequence,
    )
    from orchestration.signals import (
        Absent,
        Answer,
        Applied,
        Closed,
        Conflict,
        OutcomeUnknown,
        Pending,
        PermanentFailure,
        Rejected,
        RetryLater,
        Unclear,
    )

__all__ = [
    "Absent",
    "Answer",
    "Applied",
    "Closed",
    "Conflict",
    "OutcomeUnknown",
    "Pending",
    "PermanentFailure",
    "Rejected",
    "RetryLater",
    "RetryOverride",
    "RetryPolicy",
    "Step",
    "Unclear",
    "Workflow",
    "parallel",
    "sequence",
]
_DEFINING = {"RetryOverride", "RetryPolicy", "Step", "Workflow", "parallel", "sequence"}


def __getattr__(name: str) -> Any:
    """Return one of the public names."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    home = "definition" if name in _DEFINING else "signals"
    return getattr(import_module(f"{__name__}.{home}"), name)
