"""What is shown of a saga: one shape for the web and for ``--json`` on the command line.

Instants are RFC 3339 in UTC. Inputs, results and errors are the JSON that is recorded.
"""

import json
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, field_validator

from models.states import SagaState, StepState
from orchestration import views
from orchestration.store import Store

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A name of one line, as every database can keep it."""
Line = Annotated[str, Field(max_length=2000, pattern=r"^[^\x00]*$")]
"""Text that every database can keep."""


class _Shown(BaseModel):
    model_config = ConfigDict(from_attributes=True, frozen=True)


class StartRequest(BaseModel):
    """What to start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workflow: Annotated[Name, Field(examples=["trip"])]
    input: Annotated[Any, Field(description="What the workflow declares as its input.")] = None
    key: Annotated[
        Name | None,
        Field(description="The same key and input again answer with the saga that is there."),
    ] = None

    @field_validator("input")
    @classmethod
    def _is_json(cls, value: Any) -> Any:
        json.dumps(value, allow_nan=False)  # Python reads NaN, but no database keeps it.
        return value


class CancelRequest(BaseModel):
    """Why a saga is to turn back, and who wants it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: Line = ""
    by: Name = "web"


class Links(_Shown):
    """Where to go on."""

    self: str
    cancel: str


class SagaReference(_Shown):
    """A saga's id, where it stands, and where to see more."""

    id: UUID
    state: SagaState
    links: Links

    @classmethod
    def to(cls, saga_id: UUID, state: SagaState) -> Self:
        """Return the reference to one saga."""
        here = f"/sagas/{saga_id}"
        return cls(id=saga_id, state=state, links=Links(self=here, cancel=f"{here}/cancel"))


class SagaSummary(_Shown):
    """One line of a list of sagas."""

    id: UUID
    workflow: str
    key: str | None
    state: SagaState
    created_at: datetime
    ended_at: datetime | None
    abort: Annotated[
        dict[str, Any] | None,
        Field(description="Why it turned back: reason, step and message; null while it goes on."),
    ]


class StepShown(_Shown):
    """Where one step stands."""

    path: str
    kind: str
    agent: str
    queue: str
    direction: Literal["forward", "backward"]
    state: StepState
    attempt: int
    failure_count: int
    inquiry: Annotated[
        str | None,
        Field(description="What is asked about an unknown outcome: probe, probe again or close."),
    ]
    wake_at: Annotated[
        datetime | None, Field(description="When it is looked at next, if nobody reports before.")
    ]
    settled_at: datetime | None
    result: Any
    error: dict[str, Any] | None


class AttemptShown(_Shown):
    """One lease of one step: who took it, and how it ended."""

    path: str
    no: int
    direction: Literal["forward", "backward"]
    state: str
    node: str
    pid: int
    granted_at: datetime
    ended_at: datetime | None
    heartbeat_at: datetime | None
    details: Any
    error: dict[str, Any] | None
    late: Annotated[
        dict[str, Any] | None, Field(description="What was reported after the lease had ended.")
    ]


class TimelineEntryShown(_Shown):
    """Who did what to which step, when and why; ``row`` is the row of the recovery table."""

    at: datetime
    path: str
    attempt: int
    verb: str
    actor: str
    text: str
    row: str | None


class IncidentShown(_Shown):
    """A question to an operator, and how it was answered."""

    id: int
    saga_id: UUID
    workflow: str
    path: str
    kind: str
    message: str
    opened_at: datetime
    resolved_at: datetime | None
    resolution: str | None
    resolved_by: str | None
    reason: str | None


class SagaShown(SagaSummary):
    """Everything about one saga."""

    version: int
    input: Any
    deadline_at: datetime
    results: Annotated[
        dict[str, Any], Field(description="The results of the steps that have succeeded.")
    ]
    steps: list[StepShown]
    attempts: list[AttemptShown]
    incidents: list[IncidentShown]
    timeline: list[TimelineEntryShown]


class Health(_Shown):
    """Whether sagas are looked after."""

    status: Literal["ok", "failing"]
    problems: list[str]
    last_sweep_seconds: float | None
    nodes: int


class Problem(BaseModel):
    """Why a request was refused, in one sentence."""

    detail: str


def saga_shown(store: Store, saga_id: UUID) -> SagaShown:
    """Return everything about one saga; raise ``NotFoundError``."""
    with store.reading() as connection:
        row = views.saga_row(connection, saga_id)
        document = store.definition_document(connection, row.definition_id)
        incidents = views.list_incidents(connection, include_resolved=True, saga_id=saga_id)
        return SagaShown.model_validate(
            {
                **row._mapping,  # noqa: SLF001 - SQLAlchemy's public name
                "version": document["workflow"]["version"],
                "results": store.results_of(connection, saga_id),
                "steps": views.saga_steps(connection, saga_id),
                "attempts": views.saga_attempts(connection, saga_id),
                "incidents": incidents,
                "timeline": views.timeline(connection, saga_id),
            }
        )


def sagas_shown(
    store: Store, *, state: SagaState | None = None, workflow: str | None = None, limit: int = 50
) -> list[SagaSummary]:
    """Return the newest sagas."""
    with store.reading() as connection:
        rows = views.list_sagas(connection, state=state, workflow=workflow, limit=limit)
    return [SagaSummary.model_validate(row) for row in rows]


def incidents_shown(
    store: Store, *, include_resolved: bool = False, limit: int = 100
) -> list[IncidentShown]:
    """Return incidents, the oldest open ones first."""
    with store.reading() as connection:
        rows = views.list_incidents(connection, include_resolved=include_resolved, limit=limit)
    return [IncidentShown.model_validate(row) for row in rows]
