"""The HTTP API: start, see and cancel sagas. Its OpenAPI page is at ``/docs``.

Handlers are plain functions, so they run in a thread pool and may wait for the database. Whatever
is refused is answered with ``{"detail": "one sentence"}`` and changes nothing.
"""

from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import (
    InterfaceError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.exc import (
    TimeoutError as PoolTimeoutError,
)

from models.states import SagaState
from orchestration import views
from orchestration.errors import (
    AtalaiaError,
    DefinitionChangedError,
    InputError,
    NotFoundError,
    RefusedError,
    StartConflictError,
    UnknownNameError,
)
from orchestration.roster import Roster
from orchestration.scheduler import Scheduler
from orchestration.settings import settings
from orchestration.telemetry import log_of
from web.metrics import Metrics
from web.reference import reference_page
from web.schema import (
    CancelRequest,
    Health,
    IncidentShown,
    Name,
    Problem,
    SagaReference,
    SagaShown,
    SagaSummary,
    StartRequest,
    incidents_shown,
    saga_shown,
    sagas_shown,
)

SWEEPS_MISSED = 3
"""So many intervals without a sweep mean that nobody supervises."""

_STATUS: dict[type[AtalaiaError], int] = {
    UnknownNameError: 404,
    NotFoundError: 404,
    InputError: 422,
    StartConflictError: 409,
    RefusedError: 409,
    DefinitionChangedError: 409,
}
_DATABASE_ERRORS = (OperationalError, InterfaceError, PoolTimeoutError, ProgrammingError)
"""What a database says that is away, overloaded, or not migrated."""
_AWAY: dict[int | str, dict[str, Any]] = {
    503: {"model": Problem, "description": "The database is away"}
}
_BAD_INPUT: dict[int | str, dict[str, Any]] = {
    422: {"model": Problem, "description": "Bad input; the answer names the field"}
}


def _refusals(**why: str) -> dict[int | str, dict[str, Any]]:
    """Return how OpenAPI shows refusals: ``_404="No such saga"``."""
    told = {int(code.strip("_")): text for code, text in why.items()}
    return {code: {"model": Problem, "description": text} for code, text in told.items()}


def _scheduler(request: Request) -> Scheduler:
    scheduler: Scheduler = request.app.state.scheduler
    return scheduler


TheScheduler = Annotated[Scheduler, Depends(_scheduler)]
Limit = Annotated[int, Query(ge=1, le=1000)]

router = APIRouter(responses={**_AWAY, **_BAD_INPUT})


@router.post(
    "/sagas",
    status_code=HTTPStatus.CREATED,
    responses={
        200: {"model": SagaReference, "description": "The key had started it before"},
        **_refusals(
            _404="No such workflow; the answer names the nearest one",
            _409="The key belongs to a saga with another input",
        ),
    },
    tags=["sagas"],
)
def start(asked: StartRequest, scheduler: TheScheduler, response: Response) -> SagaReference:
    """Start a saga; with a key, at most once."""
    handle = scheduler.start(asked.workflow, asked.input, key=asked.key)
    if not handle.created:
        response.status_code = HTTPStatus.OK
    reference = SagaReference.to(handle.saga_id, handle.state())
    response.headers["Location"] = reference.links.self
    return reference


@router.get("/sagas", tags=["sagas"])
def list_sagas(
    scheduler: TheScheduler,
    state: SagaState | None = None,
    workflow: Name | None = None,
    limit: Limit = 50,
) -> list[SagaSummary]:
    """List the newest sagas."""
    return sagas_shown(scheduler.store, state=state, workflow=workflow, limit=limit)


@router.get("/sagas/{saga_id}", responses=_refusals(_404="No such saga"), tags=["sagas"])
def show_saga(saga_id: UUID, scheduler: TheScheduler) -> SagaShown:
    """Show one saga: its steps, results, attempts, incidents and timeline."""
    return saga_shown(scheduler.store, saga_id)


@router.post(
    "/sagas/{saga_id}/cancel",
    status_code=HTTPStatus.ACCEPTED,
    responses=_refusals(
        _404="No such saga", _409="It has ended or is past its pivot, and cannot turn back"
    ),
    tags=["sagas"],
)
def cancel(
    saga_id: UUID, scheduler: TheScheduler, asked: CancelRequest | None = None
) -> SagaReference:
    """Turn a saga back: what it did is compensated."""
    asked = asked or CancelRequest()
    scheduler.cancel(saga_id, by=asked.by, reason=asked.reason)
    with scheduler.store.reading() as connection:
        return SagaReference.to(saga_id, views.saga_state(connection, saga_id))


@router.get("/incidents", tags=["operations"])
def list_incidents(
    scheduler: TheScheduler,
    *,
    include_resolved: bool = False,
    limit: Limit = 100,
) -> list[IncidentShown]:
    """List what waits for an operator, the oldest first."""
    return incidents_shown(scheduler.store, include_resolved=include_resolved, limit=limit)


@router.get(
    "/health",
    responses={503: {"model": Health, "description": "Nobody supervises, or no database"}},
    tags=["operations"],
)
def health(scheduler: TheScheduler, response: Response) -> Health:
    """Tell whether the database answers and somebody sweeps."""
    found = _health(scheduler)
    if found.problems:
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return found


def _health(scheduler: Scheduler) -> Health:
    try:
        since = Roster(scheduler.store).since_last_sweep()
        with scheduler.store.reading() as connection:
            nodes = len(views.list_nodes(connection))
    except SQLAlchemyError:
        problem = "the database is away"
        return Health(status="failing", problems=[problem], last_sweep_seconds=None, nodes=0)
    problems = list(filter(None, [unsupervised(since)]))
    return Health(
        status="failing" if problems else "ok",
        problems=problems,
        last_sweep_seconds=None if since is None else since.total_seconds(),
        nodes=nodes,
    )


def unsupervised(since: timedelta | None) -> str | None:
    """Return what is wrong when the last sweep was ``since`` ago, if anything is."""
    if since is None:
        return "no sweep was ever finished: is a worker running?"
    if since > settings().sweep_interval * SWEEPS_MISSED:
        return f"the last sweep was {since.total_seconds():.0f} s ago: is a worker running?"
    return None


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request) -> Response:
    """Show how things stand, as Prometheus reads it."""
    shown: Metrics = request.app.state.metrics
    return Response(shown.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/docs", include_in_schema=False)
def docs(request: Request) -> HTMLResponse:
    """Show this API as one page, which loads nothing from anywhere."""
    return HTMLResponse(reference_page(request.app.openapi()))


def create_app(scheduler: Scheduler) -> FastAPI:
    """Return the API over ``scheduler``, which must know the workflows that are to be started."""
    app = FastAPI(
        title="Atalaia",
        description="Start, see and cancel sagas.",
        version="1",
        docs_url=None,  # FastAPI's own page loads its scripts from a public server.
        redoc_url=None,
    )
    app.state.scheduler = scheduler
    app.state.metrics = Metrics(scheduler.store)
    app.include_router(router)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(AtalaiaError, _refused)
    for kind in _DATABASE_ERRORS:
        app.add_exception_handler(kind, _away)
    app.add_exception_handler(Exception, _broken)
    return app


def _problem(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status_code=status)


def _bad_request(request: Request, error: Exception) -> JSONResponse:
    """Name each wrong field, as ``field: what is allowed``."""
    del request
    assert isinstance(error, RequestValidationError)
    lines = []
    for item in error.errors():
        if item["type"] == "json_invalid":
            position, why = item["loc"][-1], item["ctx"]["error"]
            lines.append(f"the body is not JSON: {why} at position {position}")
            continue
        field = ".".join(str(part) for part in item["loc"][1:]) or str(item["loc"][0])
        lines.append(f"{field}: {item['msg']}")
    return _problem(422, "; ".join(lines))


def _refused(request: Request, error: Exception) -> JSONResponse:
    del request
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    return _problem(status, str(error))


def _away(request: Request, error: Exception) -> JSONResponse:
    log_of("web").error("the database is away", path=request.url.path, error=str(error))
    return _problem(503, "the database is away or not migrated; nothing was changed")


def _broken(request: Request, error: Exception) -> JSONResponse:
    log_of("web").error("failed", path=request.url.path, error=repr(error))
    return _problem(500, "something broke; the server's log says what")
