"""Every locked read and every guarded write of a start and of a lease, named as sentences.

Only this module, ``writer``, ``retention`` (deletions), ``roster`` (nodes), ``due`` and ``views``
(reads) hold SQL.

Lock order, everywhere: the saga row, then its steps in the order of their paths, then attempts,
incidents and the journal. A grant and a heartbeat lock one step row and nothing before it, so they
cannot take part in a cycle.

Only row counts are relied on, never RETURNING, so that the statements hold on any dialect.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Engine,
    Table,
    bindparam,
    insert,
    literal_column,
    select,
    update,
)

from models import Attempt, Definition, Saga, Step
from models.states import AttemptState, Direction, SagaState, StepState
from orchestration.access import Access
from orchestration.database import DIALECTS, database_now, insert_unless_there, json_object
from orchestration.snapshot import SagaSnapshot, StepSnapshot
from orchestration.statement import AnyConnection, Batch, Prepared

_sagas: Table = Saga.__table__  # type: ignore[assignment]
_steps: Table = Step.__table__  # type: ignore[assignment]
_attempts: Table = Attempt.__table__  # type: ignore[assignment]
_definitions: Table = Definition.__table__  # type: ignore[assignment]

STEP_FIELDS = tuple(field.name for field in fields(StepSnapshot))
_STEP_COLUMNS = [_steps.c[name] for name in STEP_FIELDS]
_SAGA_COLUMNS = [
    _sagas.c[name] for name in ("id", "state", "deadline_at", "wake_at", "abort", "ended_at")
]

_STATES = {str(state): state for state in StepState}
_DIRECTIONS = {str(direction): direction for direction in Direction}


@dataclass(frozen=True, kw_only=True)
class Locked:
    """A saga under its lock: what it is, what it runs, and the database's time."""

    saga: SagaSnapshot
    definition_id: str
    trace: str | None
    now: datetime


def _results_by_path() -> Any:
    """Return the results of the steps of the same saga that have succeeded, by path."""
    other = _steps.alias("other")
    mine = other.c.saga_id == _steps.c.saga_id, other.c.state == literal_column("'succeeded'")
    return (
        select(json_object(other.c.path, other.c.result))
        .where(*mine)
        .scalar_subquery()
        .label("results")
    )


def step_snapshot(row: Any) -> StepSnapshot:
    """Return a row that begins with the columns of a step as the core sees it."""
    step = object.__new__(StepSnapshot)
    values = vars(step)
    values.update(zip(STEP_FIELDS, row, strict=False))
    values["direction"] = _DIRECTIONS[values["direction"]]
    values["state"] = _STATES[values["state"]]
    return step


class Store(Access):
    """The rows. ``now`` gives the SQL expression of the present: the database's own clock."""

    def __init__(
        self, engine: Engine, now: Callable[[], ColumnElement[datetime]] = database_now
    ) -> None:
        super().__init__(engine)
        self.now = now
        self._statements: dict[Callable[[ColumnElement[datetime]], Prepared], Prepared] = {}
        self._time = Prepared(select(now().label("now")))
        mine = _steps.c.saga_id == bindparam("saga")
        steps = select(*_STEP_COLUMNS, now().label("now")).where(mine).order_by(_steps.c.path)
        self._lock_steps = Prepared(steps.with_for_update(key_share=True))
        held = select(_steps.c.deadline_at, now().label("now")).where(*_same_step())
        self._lock_held = Prepared(held.with_for_update(key_share=True))
        work = select(
            *_STEP_COLUMNS,
            _steps.c.result,
            _sagas.c.input,
            _sagas.c.definition_id,
            _sagas.c.trace,
            _results_by_path(),
            now().label("now"),
        ).join_from(_steps, _sagas, _sagas.c.id == _steps.c.saga_id)
        self._read_for_work = Prepared(work.where(mine, _steps.c.path == bindparam("at")))

    def prepared(self, build: Callable[[ColumnElement[datetime]], Prepared]) -> Prepared:
        """Return the statement that ``build`` makes of this store's present, made only once."""
        statement = self._statements.get(build)
        if statement is None:
            statement = self._statements[build] = build(self.now())
        return statement

    def time(self, connection: AnyConnection) -> datetime:
        """Return the database's time."""
        now: datetime = self._time.all(connection)[0].now
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
        _ADD_DEFINITION[connection.dialect.name].change(connection, **values)

    # --- starting ------------------------------------------------------------------------------

    def add_saga_unless_key_taken(
        self, connection: AnyConnection, values: Mapping[str, Any]
    ) -> bool:
        """Insert the saga row; tell whether it is new."""
        dialect, key = connection.dialect.name, values["key"]
        added = _ADD_SAGA[dialect].change(connection, **values) == 1
        if dialect != "mysql" or key is None:
            return added
        there = self.saga_of_key(connection, values["workflow"], key)
        return there is not None and bool(there.id == values["id"])

    def saga_of_key(self, connection: AnyConnection, workflow: str, key: str) -> Any | None:
        """Return (id, input) of the saga that was started under ``key``, or ``None``."""
        query = _OF_KEY_NOW if connection.dialect.name == "mysql" else _OF_KEY
        return query.first(connection, called=workflow, under=key)

    def add_steps(
        self, connection: AnyConnection, saga_id: UUID, steps: Iterable[StepSnapshot]
    ) -> None:
        """Insert the steps of a new saga."""
        batch = Batch(connection)
        for step in steps:
            batch.add(step.path, ADD_STEP, step_values(saga_id, step))
        batch.flush()

    # --- locked reads --------------------------------------------------------------------------

    def lock_saga(
        self, connection: AnyConnection, saga_id: UUID, *, skip_locked: bool = False
    ) -> Locked | None:
        """Lock a saga and its steps; ``None`` if there is none, or it is locked and skipped."""
        row = (_LOCK_SAGA_IF_FREE if skip_locked else _LOCK_SAGA).first(connection, saga=saga_id)
        if row is None:
            return None
        rows = self._lock_steps.all(connection, saga=saga_id)
        saga = SagaSnapshot(
            id=row.id,
            state=SagaState(row.state),
            deadline_at=row.deadline_at,
            wake_at=row.wake_at,
            abort=row.abort,
            ended_at=row.ended_at,
            steps={step.path: step_snapshot(step) for step in rows},
        )
        return Locked(saga=saga, definition_id=row.definition_id, trace=row.trace, now=rows[0].now)

    # --- the lease -----------------------------------------------------------------------------

    def read_for_work(self, connection: AnyConnection, saga_id: UUID, path: str) -> Any | None:
        """Return a step with its saga's input, definition, results, and the time; lock nothing."""
        row = self._read_for_work.first(connection, saga=saga_id, at=path)
        if row is not None and row.results is True:  # They are too long to be read as one.
            return row._replace(results=self.results_of(connection, saga_id))
        return row

    def results_of(self, connection: AnyConnection, saga_id: UUID) -> dict[str, Any]:
        """Return the results of the steps that have succeeded, by path."""
        return {row.path: row.result for row in _RESULTS.all(connection, saga=saga_id)}

    def grant_lease_if_dispatched(  # noqa: PLR0913 - the fields of one lease
        self,
        connection: AnyConnection,
        saga_id: UUID,
        step: StepSnapshot,
        *,
        node_id: UUID,
        node: str,
        pid: int,
        now: datetime,
        deadline_at: datetime,
        wake_at: datetime,
    ) -> bool:
        """Open the next attempt with the lease, the send marker; tell whether it was given."""
        number = step.attempt + 1
        taken = {
            "was_saga": saga_id, "was_path": step.path, "was_attempt": step.attempt,
            "was_state": StepState.DISPATCHED, "state": StepState.LEASED, "attempt": number,
            "node_id": node_id, "pid": pid, "granted_at": now, "deadline_at": deadline_at,
            "wake_at": wake_at, "dispatch_count": 0, "crash_count": 0, "asked_count": 0,
        }  # fmt: skip
        opened = {
            "saga_id": saga_id, "path": step.path, "no": number, "direction": step.direction,
            "incarnation": step.incarnation, "state": AttemptState.OPEN, "node": node, "pid": pid,
            "granted_at": now,
        }  # fmt: skip
        if connection.dialect.name == "postgresql":
            new = {f"new_{name}": value for name, value in opened.items()}
            return _GRANT.change(connection, **taken, **new) == 1
        granted = change_step(GRANTED).change(connection, **taken) == 1
        return granted and _ADD_ATTEMPT.change(connection, **opened) == 1

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


def step_values(saga_id: UUID, step: StepSnapshot) -> dict[str, Any]:
    """Return the columns of a step row."""
    return {"saga_id": saga_id, **vars(step)}


@cache
def change_step(columns: tuple[str, ...]) -> Prepared:
    """Return the guarded update of some columns of a step: only if it is what it was.

    Its parameters are ``was_saga``, ``was_path``, ``was_attempt``, ``was_state`` and the columns.
    """
    return Prepared(update(_steps).where(*_same_step()), columns)


def _same_step() -> tuple[ColumnElement[bool], ...]:
    """Return the condition that a step is what it was."""
    return (
        _steps.c.saga_id == bindparam("was_saga"),
        _steps.c.path == bindparam("was_path"),
        _steps.c.attempt == bindparam("was_attempt"),
        _steps.c.state == bindparam("was_state"),
    )


def _grant_in_one() -> Any:
    """Return the insert of an attempt that takes place only if its step could be leased."""
    values = {name: bindparam(name, type_=_steps.c[name].type) for name in GRANTED}
    taken = update(_steps).where(*_same_step()).values(values).returning(_steps.c.path).cte("taken")
    new = [bindparam(f"new_{name}", type_=_attempts.c[name].type) for name in _OPENED]
    return insert(_attempts).from_select(_OPENED, select(*new).select_from(taken))


GRANTED = (
    "state", "attempt", "node_id", "pid", "granted_at", "deadline_at", "wake_at",
    "dispatch_count", "crash_count", "asked_count",
)  # fmt: skip
ADD_STEP = Prepared(insert(_steps).inline(), ("saga_id", *STEP_FIELDS))
_STARTED = (
    "id", "definition_id", "workflow", "key", "input", "state", "created_at", "deadline_at",
    "wake_at", "trace",
)  # fmt: skip
_DEFINED = ("id", "workflow", "version", "document", "created_at")
_ADD_SAGA, _ADD_DEFINITION = (
    {name: Prepared(insert_unless_there(name, table), columns) for name in DIALECTS}
    for table, columns in ((_sagas, _STARTED), (_definitions, _DEFINED))
)
_OF_WORKFLOW = select(_definitions.c.id, _definitions.c.version, _definitions.c.document).where(
    _definitions.c.workflow == bindparam("called")
)
_DOCUMENT = Prepared(
    select(_definitions.c.document).where(_definitions.c.id == bindparam("defined"))
)
_FIND_KEY = select(_sagas.c.id, _sagas.c.input).where(
    _sagas.c.workflow == bindparam("called"), _sagas.c.key == bindparam("under")
)
_OF_KEY = Prepared(_FIND_KEY)
_OF_KEY_NOW = Prepared(_FIND_KEY.with_for_update())
_NEWEST = Prepared(_OF_WORKFLOW.order_by(_definitions.c.version.desc()).limit(1))
_VERSION = Prepared(_OF_WORKFLOW.where(_definitions.c.version == bindparam("numbered")))
_OPENED = (
    "saga_id", "path", "no", "direction", "incarnation", "state", "node", "pid", "granted_at"
)  # fmt: skip
_ADD_ATTEMPT = Prepared(insert(_attempts), _OPENED)
_GRANT = Prepared(_grant_in_one())
_HASTEN = change_step(("wake_at",))
_HEARD = Prepared(update(_attempts).where(*ATTEMPT), ("heartbeat_at", "details"))
_PINNED = _sagas.c.definition_id, _sagas.c.trace
_SAGA = select(*_SAGA_COLUMNS, *_PINNED).where(_sagas.c.id == bindparam("saga"))
_LOCK_SAGA = Prepared(_SAGA.with_for_update(key_share=True))
_LOCK_SAGA_IF_FREE = Prepared(_SAGA.with_for_update(key_share=True, skip_locked=True))
_RESULTS = Prepared(
    select(_steps.c.path, _steps.c.result).where(
        _steps.c.saga_id == bindparam("saga"), _steps.c.state == StepState.SUCCEEDED
    )
)
