"""Opening the database, and its clock. Every instant that decides anything comes from that clock.

SQLite: WAL, and every transaction begins with BEGIN IMMEDIATE, so that writers queue instead of
failing; isolation_level None hands the transaction to us (the driver's own modes either begin too
late or make commit a no-op). PostgreSQL: READ COMMITTED, which the row locks and the guarded
updates are made for.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from models.base import Instant
from orchestration.errors import ConfigurationError

LOCK_TIMEOUT_SECONDS = 30
READS = "atalaia_reads"
"""Execution option of a transaction that only reads: it does not take SQLite's write lock."""
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    f"busy_timeout={LOCK_TIMEOUT_SECONDS * 1000}",
)


class _DatabaseNow(FunctionElement[datetime]):
    type = Instant()
    inherit_cache = True


@compiles(_DatabaseNow)
def _portable_now(element: _DatabaseNow, compiler: SQLCompiler, **kwargs: Any) -> str:
    """PostgreSQL; ``now()`` would be frozen at the start of the transaction."""
    del element, compiler, kwargs
    return "clock_timestamp()"


@compiles(_DatabaseNow, "sqlite")
def _sqlite_now(element: _DatabaseNow, compiler: SQLCompiler, **kwargs: Any) -> str:
    del element, compiler, kwargs
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


def database_now() -> ColumnElement[datetime]:
    """Return the SQL expression of the present instant."""
    return _DatabaseNow()


def open_engine(url: str, *, pool_size: int = 5) -> Engine:
    """Return an engine for ``url`` (``sqlite:///…`` or ``postgresql+psycopg://…``).

    Raises ``ConfigurationError`` for a URL that cannot be understood.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # A port that is no number; its text may hold the password.
        msg = "database_url is not a database URL, such as sqlite:///atalaia.db"
        raise ConfigurationError(msg) from None
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(url)
    if parsed.get_backend_name() != "postgresql":
        name = parsed.get_backend_name()
        msg = f"database_url: {name!r} is not supported; use sqlite or postgresql"
        raise ConfigurationError(msg)
    return create_engine(
        parsed.set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_recycle=1800,
    )


def _open_sqlite(url: str) -> Engine:
    arguments = {"timeout": LOCK_TIMEOUT_SECONDS, "isolation_level": None}
    engine = create_engine(url, connect_args=arguments)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        del record
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        reads = connection.get_execution_options().get(READS, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine
