"""The scheduler: one transaction for each event, and the messages after its commit.

It chains the steps, durably: whatever an event makes of a saga, and whatever may start because of
it, is committed together; the broker only hears of it afterwards and may forget it.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy.exc import IntegrityError

from orchestration import due, tracing
from orchestration.borrowed import AnySession, join
from orchestration.decide import decide
from orchestration.definition import Definition, Workflow
from orchestration.errors import (
    DefinitionChangedError,
    InputError,
    NotFoundError,
    RefusedError,
    StartConflictError,
    UnknownNameError,
)
from orchestration.events import (
    UNSET,
    Cancelled,
    Crashed,
    DeadlinePassed,
    Decision,
    Dispatch,
    Distrusted,
    Event,
    Hastened,
    Lost,
    Nudged,
    Remedy,
    Resolved,
    Started,
    Woken,
)
from orchestration.failpoint import reach
from orchestration.handle import Handle
from orchestration.messages import dispatches_of
from orchestration.mysql import repeated
from orchestration.plan import new_saga
from orchestration.ports import Clock, Dispatcher, new_saga_id
from orchestration.registry import Registry, difference
from orchestration.seen import Locked, Seen, after, needs_rows
from orchestration.starting import ONCE, add_saga_unless_key_taken, saga_of_key
from orchestration.statement import AnyConnection, StaleWriteError
from orchestration.store import Store
from orchestration.writer import apply, apply_unlocked

LONGEST_KEY = 200
WINDOW = 500
_TRIES = 5

Follow = Callable[[Definition, Locked | Seen, Sequence[Decision], datetime], Sequence[Decision]]
"""Takes over one of the messages to be sent, before what was decided is written."""


class Scheduler:
    """Applies events to sagas. One object for each process; safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        registry: Registry,
        *,
        actor: str = "scheduler",
        new_id: Callable[[], UUID] = new_saga_id,
    ) -> None:
        self.store = store
        self.new_id = new_id
        self.dispatcher = dispatcher
        self.registry = registry
        self.actor = actor
        self._definitions: dict[str, Definition] = {}
        self._stored: set[str] = set()
        """The ids of this process's definitions that it has stored, or seen to be."""

    # --- definitions ---------------------------------------------------------------------------

    def register_definitions(self) -> list[str]:
        """Store every workflow of this process; return their ids.

        Raises ``DefinitionChangedError`` with a diff where a version is stored with other content.
        """
        definitions = self.registry.definitions()
        with self.store.transaction() as connection:
            for definition in definitions:
                self._ensure_stored(connection, definition, self._stored)
        self._stored.update(definition.id for definition in definitions)
        return [definition.id for definition in definitions]

    def _ensure_stored(
        self, connection: AnyConnection, definition: Definition, stored: Collection[str]
    ) -> None:
        if definition.id in stored:
            return
        workflow = definition.workflow
        row = self.store.find_definition(connection, workflow.name, workflow.version)
        if row is None:
            self.store.add_definition_unless_known(connection, definition.id, definition.document)
            row = self.store.find_definition(connection, workflow.name, workflow.version)
        if row is not None and row.id != definition.id:
            diff = difference(row.document, definition.document)
            raise DefinitionChangedError(workflow.name, workflow.version, diff)

    def definition(self, connection: AnyConnection, definition_id: str) -> Definition:
        """Return the definition that a saga is pinned to."""
        known = self._definitions.get(definition_id)
        if known is None:
            document = self.store.definition_document(connection, definition_id)
            known = self._definitions[definition_id] = Definition.from_document(document)
        return known

    def _definition_for_start(
        self, connection: AnyConnection, workflow: Workflow | str, stored: Collection[str]
    ) -> tuple[Workflow, str, Definition]:
        """Return the workflow, and the stored definition that a new saga is pinned to."""
        if isinstance(workflow, str):
            known = self.registry.newest(workflow)
            row = self.store.find_definition(connection, workflow) if known is None else None
            if row is not None:
                return (
                    Workflow.from_document(row.document["workflow"]),
                    row.id,
                    self.definition(connection, row.id),
                )
            workflow = self.registry.require(workflow)
        bound = self.registry.bound(workflow)
        if bound is not None:
            self._ensure_stored(connection, bound, stored)
            return workflow, bound.id, bound
        row = self.store.find_definition(connection, workflow.name, workflow.version)
        if row is None:
            where = "start a worker that has its agents, or run `atalaia migrate`: "
            raise UnknownNameError("stored workflow", workflow.name, (), where)
        if row.document["workflow"] != workflow.document:
            diff = difference(row.document["workflow"], workflow.document)
            raise DefinitionChangedError(workflow.name, workflow.version, diff)
        return workflow, row.id, self.definition(connection, row.id)

    # --- starting ------------------------------------------------------------------------------

    @tracing.starts
    def start(
        self,
        workflow: Workflow | str,
        input: Any = None,  # noqa: A002 - the field's own word
        *,
        key: str | None = None,
        session: "AnySession | None" = None,
        connection: Any = None,
    ) -> Handle:
        """Start a saga and return its handle.

        With ``session`` (SQLAlchemy's) or ``connection`` (Django's, of SQLAlchemy Core, of psycopg,
        sqlite3 or PyMySQL), everything is written in the caller's own open transaction, so that it
        commits or rolls back together with the caller's rows. A session and Django send the first
        messages after the commit; of the others nobody else hears, so the caller calls
        ``handle.publish()`` then, or the supervisor sends them some seconds later.

        The same ``key`` with the same input returns the saga that is there already. A key is known
        as long as its saga is there: until the retention after its end (``ATALAIA_RETENTION``) is
        over, or it is purged by hand. Repeated after that, it starts another saga.

        Raises ``InputError``, ``UnknownNameError``, ``StartConflictError``,
        ``DefinitionChangedError``; nothing is written then.
        """
        if session is not None or connection is not None:
            joined = join(self.store.engine.dialect, session, connection)
            with joined.errors:
                handle, dispatches = self._start(joined.connection, workflow, input, key)
            handle.unsent = partial(self.dispatcher.publish, dispatches)
            if joined.after_commit is not None:
                joined.after_commit(handle.publish)
            return handle
        begin = partial(self._start_alone, workflow, input, key, self._stored)
        try:
            handle, dispatches = repeated(begin)
        except IntegrityError:
            self._stored.clear()  # The database may have been put back to before they were stored.
            handle, dispatches = repeated(begin)
        reach("p0")
        self.dispatcher.publish(dispatches)
        return handle

    def _start_alone(self, *given: Any) -> tuple[Handle, list[Dispatch]]:
        with self.store.at_once() as own:
            return self._start(own, *given)

    def _start(
        self, connection: AnyConnection, workflow: Workflow | str, raw: Any, key: str | None,
        stored: Collection[str] = (),
    ) -> tuple[Handle, list[Dispatch]]:  # fmt: skip
        plan, definition_id, definition = self._definition_for_start(connection, workflow, stored)
        value = plan.parse_input(raw)
        if key is not None and not 0 < len(key) <= LONGEST_KEY:
            msg = f"key: must be 1 to {LONGEST_KEY} characters long, got {len(key)}"
            raise InputError(msg)
        saga = new_saga(definition, self.new_id(), ONCE)
        decisions = decide(definition, saga, Started(), ONCE)
        assert not needs_rows(decisions), "a saga begins with steps and messages only"
        steps = list(after(saga, decisions).steps.values())
        row = {
            "id": saga.id,
            "definition_id": definition_id,
            "workflow": plan.name,
            "key": key,
            "input": value,
            "state": saga.state,
            "created_at": ONCE,
            "deadline_at": saga.deadline_at,
            "wake_at": saga.wake_at,
            "trace": tracing.traceparent(),
        }
        for _ in range(_TRIES):
            if add_saga_unless_key_taken(self.store, connection, row, steps):
                break
            there = self._existing(connection, plan.name, key or "", value)
            if there is not None:
                return Handle(self.store, there, created=False), []
        else:
            msg = f"key {key!r} of workflow {plan.name!r} was changed by others; try again"
            raise RefusedError(msg)
        return Handle(self.store, saga.id), dispatches_of(definition, saga.id, decisions)

    def _existing(
        self, connection: AnyConnection, workflow: str, key: str, value: Any
    ) -> UUID | None:
        """Return the saga that has the key, or ``None`` if it has been purged just now."""
        row = saga_of_key(connection, workflow, key)
        if row is None:
            return None
        if row.input != value:
            msg = (
                f"key {key!r} of workflow {workflow!r} belongs to saga {row.id}, which was started "
                f"with {row.input!r}; got {value!r}"
            )
            raise StartConflictError(msg)
        saga_id: UUID = row.id
        return saga_id

    # --- events --------------------------------------------------------------------------------

    def handle(
        self,
        saga_id: UUID,
        event: Event,
        *,
        actor: str | None = None,
        skip_locked: bool = False,
        follow: Follow | None = None,
    ) -> bool:
        """Decide and write one event; tell whether the saga was there and free.

        A decision that lost a race is rolled back and taken again on the rows as they are then.
        """
        by = actor or self.actor
        for _ in range(_TRIES):
            try:
                done, dispatches = repeated(
                    partial(self._handle, saga_id, event, by, skip_locked, follow)
                )
            except StaleWriteError:
                continue
            reach("p2")
            self.dispatcher.publish(dispatches)
            return done
        msg = f"saga {saga_id} was changed by others {_TRIES} times in a row; try again"
        raise RefusedError(msg)

    def _handle(
        self,
        saga_id: UUID,
        event: Event,
        actor: str,
        skip_locked: bool,  # noqa: FBT001
        follow: Follow | None,
    ) -> tuple[bool, list[Dispatch]]:
        with self.store.writing() as connection:
            locked = self.store.lock_saga(connection, saga_id, skip_locked=skip_locked)
            if locked is None:
                return False, []
            definition = self.definition(connection, locked.definition_id)
            with tracing.deciding(event, saga_id, locked.trace, actor):
                decisions: Sequence[Decision] = decide(definition, locked.saga, event, locked.now)
                if follow is not None:
                    decisions = follow(definition, locked, decisions, locked.now)
                apply(connection, locked.saga, decisions, actor=actor, now=locked.now)
            reach("p1")
        return True, dispatches_of(definition, saga_id, decisions)

    def handle_unlocked(
        self, seen: Seen, definition: Definition, event: Event, clock: Clock, follow: Follow
    ) -> bool:
        """Decide and write one event without a lock; if that fails, it is for ``handle``."""
        try:
            dispatches = repeated(partial(self._unlocked, seen, definition, event, clock, follow))
        except (StaleWriteError, IntegrityError):
            return False  # What collides with a row that was not seen is stale, too.
        if dispatches is None:
            return False
        reach("p2")
        self.dispatcher.publish(dispatches)
        return True

    def _unlocked(
        self, seen: Seen, definition: Definition, event: Event, clock: Clock, follow: Follow
    ) -> list[Dispatch] | None:
        deciding = tracing.deciding(event, seen.saga.id, seen.trace, self.actor)
        with self.store.at_once() as connection, deciding:
            now = seen.present(clock.monotonic())  # A connection may have been waited for.
            if now is None:
                return None
            decisions: Sequence[Decision] = decide(definition, seen.saga, event, now)
            if needs_rows(decisions):
                return None
            decisions = follow(definition, seen, decisions, now)
            reach("p1")
            apply_unlocked(connection, seen.saga, decisions, actor=self.actor, now=now)
        return dispatches_of(definition, seen.saga.id, decisions)

    # --- what the supervisor, the nodes and people ask for ---------------------------------------

    def lost(self, saga_id: UUID, path: str, attempt: int, why: str) -> bool:
        """Take back the lease of an attempt whose process is gone."""
        return self.handle(saga_id, Lost(path=path, attempt=attempt, why=why))

    def crashed(self, saga_id: UUID, path: str, attempt: int) -> bool:
        """Count a worker process that died before it took the lease of ``attempt``."""
        return self.handle(saga_id, Crashed(path=path, attempt=attempt))

    def wake(
        self, saga_id: UUID, path: str, *, queued: bool = False, unserved: bool = False
    ) -> bool:
        """Act on a step whose wake-up time has passed, unless somebody is at it already."""
        event = Woken(path=path, queued=queued, unserved=unserved)
        return self.handle(saga_id, event, actor="supervisor", skip_locked=True)

    def hasten(self, saga_id: UUID, path: str, *, by: str = "webhook") -> bool:
        """Ask about a step in doubt now: its partner has said that there is news.

        For a webhook. It is a doorbell: nothing of it is believed, the probe learns the truth. If
        nothing is in doubt there, nothing happens; tell whether there is such a saga.
        """
        return self.handle(saga_id, Hastened(path=path), actor=by)

    def deadline(self, saga_id: UUID) -> bool:
        """Act on a saga whose deadline has passed."""
        return self.handle(saga_id, DeadlinePassed(), actor="supervisor", skip_locked=True)

    def nudge(self, saga_id: UUID) -> bool:
        """Derive again what should be under way."""
        return self.handle(saga_id, Nudged(), actor="supervisor", skip_locked=True)

    def distrust(self, *, by: str, reason: str) -> int:
        """Have every live saga ask before it sends what it may have sent; return how many.

        To be called after the database has lost commits: a fail-over without synchronous
        replication, or a restore. Until then nothing may run.
        """
        count, after = 0, due.FIRST
        while True:
            with self.store.reading() as connection:
                ids = due.unended(connection, after, WINDOW)
            for saga_id in ids:
                count += self.handle(saga_id, Distrusted(by=by, reason=reason), actor=by)
            if len(ids) < WINDOW:
                return count
            after = ids[-1]

    def cancel(self, saga_id: UUID, *, by: str, reason: str = "") -> None:
        """Turn a saga back; raise ``RefusedError`` after its pivot and after its end."""
        self._ask(saga_id, Cancelled(by=by, reason=reason), by)

    def resolve(
        self,
        saga_id: UUID,
        path: str,
        remedy: Remedy,
        *,
        by: str,
        reason: str,
        result: Any = UNSET,
    ) -> None:
        """Do what an operator decided about a step; raise ``RefusedError`` if it is not allowed."""
        event = Resolved(path=path, remedy=remedy, by=by, reason=reason, result=result)
        self._ask(saga_id, event, by)

    def _ask(self, saga_id: UUID, event: Event, by: str) -> None:
        if not self.handle(saga_id, event, actor=by):
            raise NotFoundError(f"there is no saga {saga_id}")
