"""The store of a simulated world: real rows, a clock of our own, and commits that may be lost."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    bindparam,
    create_engine,
    event,
    select,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from models import Step
from models.base import Base, Instant
from orchestration import due
from orchestration.statement import Prepared
from orchestration.store import Store

Backup = dict[Table, list[dict[str, Any]]]


class Circumstances(Protocol):
    """What a world tells its store."""

    def tick(self) -> datetime:
        """Return the present; it is later each time."""

    def away(self) -> bool:
        """Tell whether the database cannot be reached."""

    def before_transaction(self) -> None:
        """Hear that a process is about to begin a transaction."""

    def commit_fault(self) -> str:
        """Return ``commit-kept``, ``commit-lost`` or nothing for the transaction that is ending."""


_steps: Any = Step.__table__
_STEP = Prepared(
    select(_steps).where(_steps.c.saga_id == bindparam("saga"), _steps.c.path == bindparam("path"))
)
_DELETIONS = tuple(Prepared(table.delete()) for table in reversed(Base.metadata.sorted_tables))


def _empty_mysql(connection: Connection, *, numbering: bool) -> None:
    for statement in _DELETIONS:
        statement.change(connection)
    for table in ("incidents", "journal") if numbering else ():
        connection.exec_driver_sql(f"ALTER TABLE {table} AUTO_INCREMENT = 1")


class LostCommitError(Exception):
    """Rolls a transaction back whose client is to believe that it may have been committed."""


class SimulatedStore(Store):
    """A store whose every transaction asks its world what becomes of it."""

    def __init__(self, engine: Engine) -> None:
        self.world: Circumstances | None = None
        self.changed = True
        """Whether anything was written since this was last set to false."""
        self.memory = engine.connect() if isinstance(engine.pool, StaticPool) else None
        super().__init__(engine, now=self._clock)

    def serve(self, world: Circumstances) -> None:
        """Be the database of a world that begins."""
        self.world, self.changed = world, True

    def empty(self, *, numbering: bool = True) -> None:
        """Delete every row; unless told otherwise, new ones are numbered from one on."""
        if self.memory is not None:
            for statement in _DELETIONS:
                statement.change(self.memory)
            return
        names = ", ".join(Base.metadata.tables)
        with self.engine.begin() as connection:
            if self.engine.dialect.name == "mysql":
                _empty_mysql(connection, numbering=numbering)
                return
            connection.exec_driver_sql(
                f"TRUNCATE {names} {'RESTART' if numbering else 'CONTINUE'} IDENTITY"
            )

    def backup(self) -> Backup:
        """Return all rows; taken by nobody in the world."""
        with self.peek() as connection:
            return {
                table: [dict(row._mapping) for row in connection.execute(table.select())]  # noqa: SLF001 - its public name
                for table in Base.metadata.sorted_tables
            }

    def restore(self, backup: Backup) -> None:
        """Put all rows back to what they were."""
        self.empty(numbering=False)
        with self.engine.begin() if self.memory is None else nullcontext(self.memory) as connection:
            for table, rows in backup.items():
                if rows:
                    connection.execute(table.insert(), rows)
        self.changed = True

    def _clock(self) -> ColumnElement[datetime]:
        return bindparam("clock", callable_=self._tick, type_=Instant(), unique=True)

    def _tick(self) -> datetime:
        assert self.world is not None
        return self.world.tick()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection in a transaction; its commit may fail, done or not."""
        assert self.world is not None
        self.world.before_transaction()
        self._refuse_if_away()
        self.changed = True
        try:
            with self._transaction() as connection:
                yield connection
                fault = self.world.commit_fault()
                _lose_if(fault == "commit-lost")
        except LostCommitError:
            raise _unreachable("the connection was lost during the commit") from None
        if fault == "commit-kept":
            raise _unreachable("the connection was lost during the commit")

    writing = at_once = transaction

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection that only reads."""
        self._refuse_if_away()
        with self.peek() as connection:
            yield connection

    looking = reading

    def next_due(self) -> datetime | None:
        """Return when the next sweep has something to do; asked by nobody in the world."""
        with self.peek() as connection:
            return due.next_at(connection)

    def step(self, saga_id: str, path: str) -> Any:
        """Return the row of a step; asked by nobody in the world."""
        with self.peek() as connection:
            return _STEP.first(connection, saga=UUID(saga_id), path=path)

    def _transaction(self) -> AbstractContextManager[Connection]:
        """Begin and commit; in memory on the one connection that there is, without a pool."""
        return super().transaction() if self.memory is None else _InMemory(self.memory)

    def peek(self) -> AbstractContextManager[Connection]:
        """Return a connection for those who stand outside the world and only look."""
        return super().reading() if self.memory is None else nullcontext(self.memory)

    def _refuse_if_away(self) -> None:
        if self.world is not None and self.world.away():
            raise _unreachable("the database is away")


class _InMemory:
    """A transaction at the level of the driver."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.driver: Any = connection.connection.dbapi_connection

    def __enter__(self) -> Connection:
        self.driver.execute("BEGIN IMMEDIATE")
        return self.connection

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.driver.commit()
        else:
            self.driver.rollback()


def _lose_if(lost: bool) -> None:  # noqa: FBT001 - the name asks
    if lost:
        raise LostCommitError


def _unreachable(why: str) -> OperationalError:
    return OperationalError(why, {}, ConnectionError(why))


def open_memory() -> Engine:
    """Return a database with all tables and no rows, in the memory of this process.

    Nothing begins a transaction there but the simulated store, at the level of the driver.
    """
    engine = create_engine(
        "sqlite://",
        poolclass=StaticPool,
        connect_args={
            "isolation_level": None,
            "check_same_thread": False,
            "cached_statements": 1000,
        },
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        del record
        connection.execute("PRAGMA foreign_keys=ON")

    Base.metadata.create_all(engine)
    return engine
