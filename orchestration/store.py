"""Every locked read and every guarded write of a start and of a lease, named as sentences.

Only this module, ``writer``, ``retention`` (deletions), ``roster`` (nodes), ``due`` and ``views``
(reads) hold SQL.

Lock order, everywhere: the saga row, then its steps in the order of their paths, then attempts,
incidents and the journal. A grant and a heartbeat lock one step row and nothing before it, so they
cannot take part in a cycle.

Here only row counts are relied on, never RETURNING, so that the statements hold on any dialect;
``statement`` and ``taking`` make one statement of several where PostgreSQL can.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from functools import cache, partial
from operator import attrgetter
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Engine,
    Select,
    Table,
    bindparam,
    case,
    exists,
    insert,
    select,
    update,
)

from models import Attempt, Definition, Incident, Saga, Step
from models.states import AttemptState, Direction, SagaState, StepState
from orchestration.access import Access
from orchestration.database import database_now, insert_unless_there
from orchestration.seen import Locked, Read
from orchestration.snapshot import SagaSnapshot, StepSnapshot, changed
from orchestration.statement import AnyConnection, Change, Prepared, all_or_none

_sagas: Table = Saga.__table__
_steps: Table = Step.__table__
_attempts: Table = Attempt.__table__
_definitions: Table = Definition.__table__
_incidents: Table = Incident.__table__

STEP_FIELDS = tuple(each.name for each in fields(StepSnapshot))
_STEP_COLUMNS = [_steps.c[name] for name in STEP_FIELDS]
_SAGA_COLUMNS = [
    _sagas.c[name].label(f"saga_{name}")
    for name in ("id", "state", "deadline_at", "wake_at", "abort", "ended_at", "revision")
]
_PINNED = (_sagas.c.definition_id, _sagas.c.trace)
_TROUBLED = exists(
    select(_incidents.c.id).where(
        _incidents.c.saga_id == bindparam("saga"), _incidents.c.resolved_at.is_(None)
    )
).label("troubled")
_MINE = _steps.c.saga_id == bindparam("saga")
READ_AT_MOST = 32
"""So many steps are read with one of theirs; a saga of more is read when it is decided about."""

_SUCCEEDED = str(StepState.SUCCEEDED)
_path = attrgetter("path")
_STATES = {str(state): state for state in StepState}
_DIRECTIONS = {str(direction): direction for direction in Direction}


def step_snapshot(row: Any) -> StepSnapshot:
    """Return a row that begins with the columns of a step as the core sees it."""
    step = object.__new__(StepSnapshot)
    values = vars(step)
    values.update(zip(STEP_FIELDS, row, strict=False))
    values["direction"] = _DIRECTIONS[values["direction"]]
    values["state"] = _STATES[values["state"]]
    return step


def _saga_snapshot(row: Any, steps: Iterable[StepSnapshot]) -> SagaSnapshot:
    return SagaSnapshot(
        id=row.saga_id,
        state=SagaState(row.saga_state),
        deadline_at=row.saga_deadline_at,
        wake_at=row.saga_wake_at,
        abort=row.saga_abort,
        ended_at=row.saga_ended_at,
        revision=row.saga_revision,
        steps={step.path: step for step in steps},
    )


def select_work(*more: ColumnElement[Any]) -> Select[Any]:
    """Return the query of a step with what its agent is given, and of its saga; ``more`` columns.

    Its rows are the steps, that ``at`` first. Its parameters are ``saga`` and ``at``.
    """
    at = _steps.c.path == bindparam("at")
    work = select(
        *_STEP_COLUMNS, _steps.c.result, case((at, _sagas.c.input)).label("input"),
        *_SAGA_COLUMNS, *_PINNED, _TROUBLED, *more,
    )  # fmt: skip
    work = work.join_from(_steps, _sagas, _sagas.c.id == _steps.c.saga_id).where(_MINE)
    return work.order_by(case((at, 0), else_=1), _steps.c.path).limit(READ_AT_MOST + 1)


class Store(Access):
    """The rows. ``now`` gives the SQL expression of the present: the database's own clock."""

    def __init__(
        self, engine: Engine, now: Callable[[], ColumnElement[datetime]] = database_now
    ) -> None:
        super().__init__(engine)
        self.now = now
        self._statements: dict[Callable[[ColumnElement[datetime]], Prepared], Prepared] = {}
        self.present = Prepared(select(now().label("now")))
        present = now().label("now")
        steps = select(*_STEP_COLUMNS, _TROUBLED, present).where(_MINE).order_by(_steps.c.path)
        self._lock_steps = Prepared(steps.with_for_update(key_share=True))
        held = select(_steps.c.deadline_at, present).where(*same_step())
        self._lock_held = Prepared(held.with_for_update(key_share=True))
        self._read = Prepared(select_work(present))

    def prepared(self, build: Callable[[ColumnElement[datetime]], Prepared]) -> Prepared:
        """Return the statement that ``build`` makes of this store's present, made only once."""
        statement = self._statements.get(build)
        if statement is None:
            statement = self._statements[build] = build(self.now())
        return statement

    def time(self, connection: AnyConnection) -> datetime:
        """Return the database's time."""
        now: datetime = self.present.all(connection)[0].now
        return now

    # --- definitions ---------------------------------------------------------------------------

    def definition_document(self, connection: AnyConnection, definition_id: str) -> dict[str, Any]:
        """Return the document that a saga is pinned to."""
        document: dict[str, Any] = _DOCUMENT.all(connection, defined=definition_id)[0].document
        return document

    def find_definition(
        self, connection: AnyConnection, workflow: str, version: int | None = None
    ) -> Any | None:
        """Return (id, version, document) of a version, or of the newest, or ``None``."""
        if version is None:
            return _NEWEST.first(connection, called=workflow)
        return _VERSION.first(connection, called=workflow, numbered=version)

    def add_definition_unless_known(
        self, connection: AnyConnection, definition_id: str, document: Mapping[str, Any]
    ) -> None:
        """Store a definition once; one with the same name and version is left as it is."""
        workflow = document["workflow"]
        values = {
            "id": definition_id,
            "workflow": workflow["name"],
            "version": workflow["version"],
            "document": document,
            "created_at": self.time(connection),
        }
        _add_definition(connection.dialect.name).change(connection, **values)

    # --- locked reads --------------------------------------------------------------------------

    def lock_saga(
        self, connection: AnyConnection, saga_id: UUID, *, skip_locked: bool = False
    ) -> Locked | None:
        """Lock a saga and its steps; ``None`` if there is none, or it is locked and skipped."""
        row = (_LOCK_SAGA_IF_FREE if skip_locked else _LOCK_SAGA).first(connection, saga=saga_id)
        if row is None:
            return None
        rows = self._lock_steps.all(connection, saga=saga_id)
        return Locked(
            saga=_saga_snapshot(row, map(step_snapshot, rows)),
            definition_id=row.definition_id,
            trace=row.trace,
            troubled=bool(rows[0].troubled),
            now=rows[0].now,
            results=partial(self.results_of, connection, saga_id),
        )

    # --- the lease -----------------------------------------------------------------------------

    def read(self, connection: AnyConnection, saga_id: UUID, path: str) -> Read | None:
        """Return a step with what its agent is given, and its saga; lock nothing."""
        rows = self._read.all(connection, saga=saga_id, at=path)
        return self.read_from(connection, saga_id, path, rows)

    def read_from(
        self, connection: AnyConnection, saga_id: UUID, path: str, rows: Sequence[Any]
    ) -> Read | None:
        """Return what the rows of ``select_work`` say of a step."""
        if not rows or rows[0].path != path:
            return None
        row, steps = rows[0], [step_snapshot(each) for each in rows]
        if len(rows) > READ_AT_MOST:
            saga, results = None, self.results_of(connection, saga_id)
        else:
            saga = _saga_snapshot(row, sorted(steps, key=_path))
            results = {each.path: each.result for each in rows if each.state == _SUCCEEDED}
        return Read(
            step=steps[0], result=row.result, input=row.input, results=results, saga=saga,
            definition_id=row.definition_id, trace=row.trace, troubled=bool(row.troubled),
            now=row.now,
        )  # fmt: skip

    def results_of(self, connection: AnyConnection, saga_id: UUID) -> dict[str, Any]:
        """Return the results of the steps that have succeeded, by path."""
        return {row.path: row.result for row in _RESULTS.all(connection, saga=saga_id)}

    def grant_lease_if_dispatched(
        self, connection: AnyConnection, saga_id: UUID, leased: StepSnapshot, node: str
    ) -> bool:
        """Open the next attempt with the lease, the send marker; tell whether it was given.

        ``leased`` is the step as it is then.
        """
        before = changed(leased, state=StepState.DISPATCHED, attempt=leased.attempt - 1)
        values = {name: getattr(leased, name) for name in GRANTED}
        taken = change_step(saga_id, before, values)
        return all_or_none(connection, [taken, open_attempt(saga_id, leased, node)])

    def hasten_if_dispatched(
        self, connection: AnyConnection, saga_id: UUID, step: StepSnapshot, wake_at: datetime
    ) -> None:
        """Have a message sent again at ``wake_at``, if its step still waits for a worker."""
        _HASTEN.change(
            connection,
            was_saga=saga_id,
            was_path=step.path,
            was_attempt=step.attempt,
            was_state=StepState.DISPATCHED,
            wake_at=wake_at,
        )

    def renew_if_leased(
        self,
        connection: AnyConnection,
        saga_id: UUID,
        path: str,
        attempt: int,
        silence: timedelta | None,
        details: Any,
    ) -> bool:
        """Record a heartbeat of the attempt that holds the lease; tell whether it still does."""
        mine = {
            "was_saga": saga_id, "was_path": path, "was_attempt": attempt,
            "was_state": StepState.LEASED,
        }  # fmt: skip
        held = self._lock_held.first(connection, **mine)
        if held is None:
            return False
        if silence is not None:
            wake_at = min(held.deadline_at, held.now + silence)
            _HASTEN.change(connection, **mine, wake_at=wake_at)
        _HEARD.change(
            connection, was_saga=saga_id, was_path=path, was_no=attempt,
            heartbeat_at=held.now, details=details,
        )  # fmt: skip
        return True


ATTEMPT = (
    _attempts.c.saga_id == bindparam("was_saga"),
    _attempts.c.path == bindparam("was_path"),
    _attempts.c.no == bindparam("was_no"),
)
"""The condition that names one attempt."""


@cache
def update_step(columns: tuple[str, ...]) -> Prepared:
    """Return the guarded update of some columns of a step: only if it is what it was.

    Its parameters are ``was_saga``, ``was_path``, ``was_attempt``, ``was_state`` and the columns.
    """
    return Prepared(update(_steps).where(*same_step()), columns)


def change_step(saga_id: UUID, before: StepSnapshot, values: Mapping[str, Any]) -> Change:
    """Return the change of some columns of a step, only if it is what it was."""
    was = {
        "was_saga": saga_id, "was_path": before.path, "was_attempt": before.attempt,
        "was_state": before.state,
    }  # fmt: skip
    statement = update_step(tuple(sorted(values)))
    return Change(f"step {before.path}", statement, {**values, **was})


def open_attempt(saga_id: UUID, leased: StepSnapshot, node: str) -> Change:
    """Return the insert of the attempt whose lease a step is given."""
    values = {
        "saga_id": saga_id, "path": leased.path, "no": leased.attempt,
        "direction": leased.direction, "incarnation": leased.incarnation,
        "state": AttemptState.OPEN, "node": node, "pid": leased.pid,
        "granted_at": leased.granted_at,
    }  # fmt: skip
    return Change(f"attempt {leased.attempt} of {leased.path}", _ADD_ATTEMPT, values)


@cache
def _insert_step(columns: tuple[str, ...], since: datetime | None) -> Prepared:
    return Prepared(insert(_steps).inline(), columns, since=since)


def add_step(
    saga_id: UUID, step: StepSnapshot, *, since: datetime | None = None, **more: Any
) -> Change:
    """Return the insert of a step; whatever is null is left out. For ``since`` see ``Prepared``."""
    values = {"saga_id": saga_id, **vars(step), **more}
    given = {name: value for name, value in values.items() if value is not None}
    return Change(f"step {step.path}", _insert_step(tuple(given), since), given)


def same_step() -> tuple[ColumnElement[bool], ...]:
    """Return the condition that a step is what it was."""
    return (
        _steps.c.saga_id == bindparam("was_saga"),
        _steps.c.path == bindparam("was_path"),
        _steps.c.attempt == bindparam("was_attempt"),
        _steps.c.state == bindparam("was_state"),
    )


GRANTED = (
    "state", "attempt", "node_id", "pid", "granted_at", "deadline_at", "wake_at",
    "dispatch_count", "crash_count", "asked_count",
)  # fmt: skip
_DEFINED = ("id", "workflow", "version", "document", "created_at")


@cache
def _add_definition(dialect: str) -> Prepared:
    return Prepared(insert_unless_there(dialect, _definitions), _DEFINED)


_OF_WORKFLOW = select(_definitions.c.id, _definitions.c.version, _definitions.c.document).where(
    _definitions.c.workflow == bindparam("called")
)
_DOCUMENT = Prepared(
    select(_definitions.c.document).where(_definitions.c.id == bindparam("defined"))
)
_NEWEST = Prepared(_OF_WORKFLOW.order_by(_definitions.c.version.desc()).limit(1))
_VERSION = Prepared(_OF_WORKFLOW.where(_definitions.c.version == bindparam("numbered")))
OPENED = (
    "saga_id", "path", "no", "direction", "incarnation", "state", "node", "pid", "granted_at"
)  # fmt: skip
_ADD_ATTEMPT = Prepared(insert(_attempts), OPENED)
_HASTEN = update_step(("wake_at",))
_HEARD = Prepared(update(_attempts).where(*ATTEMPT), ("heartbeat_at", "details"))
_SAGA = select(*_SAGA_COLUMNS, *_PINNED).where(_sagas.c.id == bindparam("saga"))
_LOCK_SAGA = Prepared(_SAGA.with_for_update(key_share=True))
_LOCK_SAGA_IF_FREE = Prepared(_SAGA.with_for_update(key_share=True, skip_locked=True))
_RESULTS = Prepared(
    select(_steps.c.path, _steps.c.result).where(
        _steps.c.saga_id == bindparam("saga"), _steps.c.state == StepState.SUCCEEDED
    )
)
