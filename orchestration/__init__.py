"""What is decided: the public surface for those who write workflows, agents and callers."""

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
