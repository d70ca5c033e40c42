"""Opening the database, and its clock. Every instant that decides anything comes from that clock.

SQLite: WAL, and every transaction begins with BEGIN IMMEDIATE, so that writers queue instead of
failing; isolation_level None hands the transaction to us (the driver's own modes either begin too
late or make commit a no-op). PostgreSQL, MariaDB and MySQL: READ COMMITTED, which the row locks and
the guarded updates are made for.
"""

import select
from datetime import datetime
from importlib import import_module
from typing import Any

from sqlalchemy import URL, ColumnElement, Connection, Engine, Table, create_engine, event, text
from sqlalchemy.engine import ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from models.base import Instant
from orchestration.direct import told
from orchestration.errors import ConfigurationError
from orchestration.mysql import SCHEMES, open_mysql

LOCK_TIMEOUT_SECONDS = 30
POOL_SIZE = 5
"""Connections that a process keeps; when busy, it opens as many more."""
READS = "atalaia_reads"
"""Execution option of a transaction that only reads: it does not take SQLite's write lock."""
ISOLATION = "ISOLATION LEVEL READ COMMITTED"
"""What PostgreSQL's transactions have; the row locks and the guarded updates are made for it."""
WRITING, READING = "BEGIN IMMEDIATE", "BEGIN"
"""How SQLite's transactions begin."""
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    f"busy_timeout={LOCK_TIMEOUT_SECONDS * 1000}",
)

_PROMISES = {
    "sqlite": """
        SELECT 'journal_mode', journal_mode FROM pragma_journal_mode
        UNION ALL SELECT 'synchronous', synchronous FROM pragma_synchronous""",
    "postgresql": """
        SELECT name, setting FROM pg_settings WHERE name IN (
            'fsync', 'full_page_writes', 'idle_in_transaction_session_timeout', 'lock_timeout',
            'server_version_num', 'statement_timeout', 'synchronous_commit',
            'synchronous_standby_names', 'transaction_timeout')""",
    "mysql": """
        SHOW VARIABLES WHERE variable_name IN (
            'binlog_format', 'idle_transaction_timeout', 'idle_write_transaction_timeout',
            'innodb_doublewrite', 'innodb_flush_log_at_trx_commit', 'log_bin',
            'max_allowed_packet', 'max_connections', 'max_statement_time',
            'sync_binlog', 'version', 'wsrep_on')""",
}
_ENGINES = """
    SELECT DISTINCT engine FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name IN ('sagas', 'steps', 'attempts', 'incidents',
        'journal', 'nodes', 'definitions')"""


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


@compiles(_DatabaseNow, "mysql")
def _mysql_now(element: _DatabaseNow, compiler: SQLCompiler, **kwargs: Any) -> str:
    """MariaDB and MySQL; it is the time at which the statement began."""
    del element, compiler, kwargs
    return "UTC_TIMESTAMP(6)"


def database_now() -> ColumnElement[datetime]:
    """Return the SQL expression of the present instant."""
    return _DatabaseNow()


def insert_unless_there(dialect: str, table: Table) -> Any:
    """Return an insert that leaves the table alone where the row's key is taken.

    MariaDB and MySQL lock the row that is there, and count it as if it were new. Their INSERT
    IGNORE would count it right, and take bad values, too.
    """
    kind = import_module(f"sqlalchemy.dialects.{dialect}")  # The engine has loaded its own.
    if dialect == "mysql":
        (key,) = table.primary_key.columns
        return kind.insert(table).on_duplicate_key_update({key.name: key})
    return kind.insert(table).on_conflict_do_nothing()


def open_engine(url: str, *, pool_size: int = POOL_SIZE) -> Engine:
    """Return an engine for ``url`` (``sqlite:///…``, ``postgresql+psycopg://…``, ``mysql+pymysql://…``).

    Raises ``ConfigurationError`` for a URL that cannot be understood.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # A port that is no number; its text may hold the password.
        msg = "database_url is not a database URL, such as sqlite:///atalaia.db"
        raise ConfigurationError(msg) from None
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(url)
    if parsed.get_backend_name() in SCHEMES:
        engine = open_mysql(parsed, pool_size=pool_size, lock_timeout=LOCK_TIMEOUT_SECONDS)
    elif parsed.get_backend_name() == "postgresql":
        engine = _open_postgresql(parsed, pool_size)
    else:
        name = parsed.get_backend_name()
        msg = f"database_url: {name!r} is not supported; use sqlite, postgresql, mariadb or mysql"
        raise ConfigurationError(msg)
    event.listen(engine, "checkout", _refuse_if_hung_up)
    return engine


def _open_postgresql(url: URL, pool_size: int) -> Engine:
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",
        hide_parameters=True,  # Inputs and results are nobody's business in a log.
        paramstyle="format",  # By position, as the other drivers take them anyhow.
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_recycle=1800,
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        del record
        # A statement that is a transaction of its own would have the database's default.
        connection.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION {ISOLATION}")
        connection.commit()

    @event.listens_for(engine, "handle_error", retval=True)
    def _keep_values_out(context: ExceptionContext) -> BaseException | None:
        if context.sqlalchemy_exception is None:
            return None
        return told(
            context.dialect, context.statement, context.parameters, context.original_exception,
            lost=context.is_disconnect,
        )  # fmt: skip

    return engine


def promises(connection: Connection) -> dict[str, str]:
    """Return the settings that decide whether what was committed is kept, as they hold for us."""
    rows = connection.execute(text(_PROMISES[connection.dialect.name]))
    found = {name: str(value) for name, value in rows}
    if connection.dialect.name == "mysql":
        found["engines"] = " ".join(sorted(connection.execute(text(_ENGINES)).scalars()))
    return found


def without_transactions(engine: Engine) -> Engine:
    """Return ``engine``, sharing its pool, for statements that need no transaction around them.

    PostgreSQL spares two round trips where each statement is a transaction of its own. SQLite still
    begins one, but does not take the lock of those who write.
    """
    if engine.dialect.name == "postgresql":
        return engine.execution_options(isolation_level="AUTOCOMMIT")
    return engine.execution_options(**{READS: True})


def _refuse_if_hung_up(connection: Any, record: Any, proxy: Any) -> None:
    """Have the pool open a new connection in place of one that the server has closed.

    A server that goes says so, and an idle connection has nothing else to say. Looking costs a
    system call; to ask the server would cost a round trip each time.
    """
    del record, proxy
    socket = getattr(connection, "_sock", connection)  # PyMySQL itself is not one.
    is_closed = socket is None or getattr(connection, "closed", False)
    if is_closed or _has_news(socket.fileno()):
        msg = "the server has closed the connection"
        raise DisconnectionError(msg)


def _has_news(socket: int) -> bool:
    looks = select.poll()
    looks.register(socket, select.POLLIN)
    return bool(looks.poll(0))


def _open_sqlite(url: str) -> Engine:
    arguments = {"timeout": LOCK_TIMEOUT_SECONDS, "isolation_level": None}
    engine = create_engine(url, connect_args=arguments, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        del record
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        reads = connection.get_execution_options().get(READS, False)
        connection.exec_driver_sql(READING if reads else WRITING)

    return engine
