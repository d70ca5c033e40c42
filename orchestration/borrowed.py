"""Borrowed: a connection of the caller's, in the middle of a transaction that is his to end.

A start runs its statements on it and does nothing else to it: it is never begun, committed, rolled
back or closed here. What its owner has set on it does not matter either: rows and values are read
by the driver's own rules, whatever row factory, adapters or converters the connection was given.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, Dialect

from orchestration.errors import InputError
from orchestration.outbox import after_commit_of

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session

AnySession: TypeAlias = "Session | scoped_session[Any]"
Later = Callable[[Callable[[], None]], object]
_IDLE = 0
"""The server's word for a connection without a transaction, as both drivers of it give it."""
_IN_TRANSACTION = 1
"""The bit by which MariaDB and MySQL say that there is one."""


class Borrowed:
    """A connection of psycopg, sqlite3 or PyMySQL, with the dialect of the store's own engine."""

    def __init__(self, driver: Any, dialect: Dialect) -> None:
        self.driver = driver
        self.dialect = dialect

    def cursor(self) -> Any:
        """Return a cursor that gives plain tuples of the driver's own values."""
        module: Any = self.dialect.loaded_dbapi
        if self.dialect.name == "sqlite":
            return module.Cursor(self.driver)
        if self.dialect.name == "mysql":
            return module.cursors.Cursor(self.driver)
        return _plain_cursor(module)(self.driver, row_factory=module.rows.tuple_row)


@cache
def _plain_cursor(psycopg: Any) -> Any:
    """Return psycopg's cursor with the adapters of psycopg in place of the connection's."""

    class PlainCursor(psycopg.Cursor):  # type: ignore[misc]
        adapters = property(lambda _: psycopg.adapters)

    return PlainCursor


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A transaction of the caller's, as a start takes part in it."""

    connection: Connection | Borrowed
    after_commit: Later | None = None
    """Has something done after the commit; ``None`` where nobody but the caller learns of it."""
    errors: AbstractContextManager[Any] = field(default_factory=nullcontext)
    """Turns the driver's errors into those that the caller knows."""


def join(dialect: Dialect, session: "AnySession | None", connection: Any) -> Joined:
    """Return the open transaction of a session or of a connection of any kind.

    Raises ``InputError`` where there is none, so that nothing is ever written half.
    """
    if session is not None and connection is not None:
        raise InputError("give session or connection, not both: a start is in one transaction")
    if session is not None:
        whole = _session_of(session)
        begun = _begun(dialect, whole.connection())
        return Joined(connection=begun, after_commit=after_commit_of(whole))
    if isinstance(connection, Connection):
        return Joined(connection=_begun(dialect, connection))
    if hasattr(connection, "in_atomic_block"):
        return _join_django(dialect, connection)
    return Joined(connection=_borrow(dialect, connection))


def _session_of(given: Any) -> "Session":
    # Whoever has a session has loaded the ORM. No worker has, and it is a tenth of one's memory.
    from sqlalchemy.orm import Session, scoped_session  # noqa: PLC0415

    whole = given() if isinstance(given, scoped_session) else given
    if not isinstance(whole, Session):
        raise InputError(f"session: must be a Session or scoped_session, got {whole!r}")
    return whole


def _begun(dialect: Dialect, connection: Connection) -> Connection | Borrowed:
    if not connection.in_transaction():
        raise InputError("connection: no transaction is open; use `with connection.begin():`")
    if _commits_by_itself(connection.dialect, connection.connection.dbapi_connection):
        raise InputError("connection: in AUTOCOMMIT every statement is a transaction of its own")
    if connection.dialect.name != dialect.name:  # SQLAlchemy has two names for MariaDB.
        return _borrow(dialect, connection.connection.dbapi_connection)
    return connection


def _join_django(dialect: Dialect, connection: Any) -> Joined:
    """Join the transaction of ``django.db.connection``, by nothing but what it shows of itself."""
    if not connection.in_atomic_block:
        raise InputError("connection: no transaction is open; use `with transaction.atomic():`")
    connection.validate_no_broken_transaction()
    return Joined(
        connection=_borrow(dialect, connection.connection),
        after_commit=connection.on_commit,
        errors=connection.wrap_database_errors,
    )


def _borrow(dialect: Dialect, driver: Any) -> Borrowed:
    module: Any = dialect.loaded_dbapi
    if not isinstance(driver, module.Connection):
        kind = type(driver)
        raise InputError(
            f"connection: must be one of {module.__name__}, Django or SQLAlchemy, to the database "
            f"that holds the sagas; got a {kind.__module__}.{kind.__qualname__}"
        )
    if _commits_by_itself(dialect, driver):
        raise InputError("connection: no transaction is open, and it is in autocommit mode")
    if dialect.name == "postgresql" and driver.info.pipeline_status:
        raise InputError("connection: it is in pipeline mode; start the saga outside of it")
    return Borrowed(driver, dialect)


def _commits_by_itself(dialect: Dialect, driver: Any) -> bool:
    """Tell whether the driver would make each statement a transaction of its own."""
    by_itself = getattr(driver, "autocommit", None) is True
    if dialect.name == "sqlite":
        by_itself |= getattr(driver, "isolation_level", "") is None
        return by_itself and not getattr(driver, "in_transaction", True)
    if dialect.name in {"mysql", "mariadb"}:
        return bool(
            driver.get_autocommit() and not getattr(driver, "server_status", 0) & _IN_TRANSACTION
        )
    return bool(by_itself and driver.info.transaction_status == _IDLE)
