"""MariaDB and MySQL through PyMySQL: opening them, and what their errors mean.

READ COMMITTED, as on PostgreSQL. What a session may have been set to otherwise, by the server's
configuration, is set here: strict mode, so that nothing is cut to size in silence; UTC; and how
long a lock is waited for.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import URL, Dialect, Engine, create_engine, event
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import DataError, IntegrityError, OperationalError

from models.mysql import MYSQL
from orchestration.errors import ConfigurationError

SCHEMES = frozenset({"mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql"})
_CHECK_VIOLATED = frozenset({3819, 4025})
"""What MySQL and MariaDB say of a row that contradicts itself; PyMySQL takes it for an outage."""
_DEADLOCK = 1213
LONGEST_DOCUMENT = 4 * 2**20
"""In bytes. A statement, and a row, has to fit into one packet: 16 MiB by default on MariaDB."""
_TRIES = 5

T = TypeVar("T")


def open_mysql(url: URL, *, pool_size: int, lock_timeout: int) -> Engine:
    """Return an engine; both are spoken to by the same dialect, whatever the URL calls them.

    Raises ``ConfigurationError`` where the driver is not installed or is another one.
    """
    if url.drivername not in SCHEMES:
        msg = f"database_url: {url.drivername!r} is not supported; use mysql+pymysql"
        raise ConfigurationError(msg)
    settings = {
        "sql_mode": "'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'",
        "time_zone": "'+00:00'",
        "innodb_lock_wait_timeout": lock_timeout,
    }
    given = ", ".join(f"{name} = {value}" for name, value in settings.items())
    try:
        engine = create_engine(
            url.set(drivername="mysql+pymysql"),
            paramstyle="format",
            hide_parameters=True,
            isolation_level="READ COMMITTED",
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_recycle=1800,
            connect_args={"charset": "utf8mb4", "init_command": f"SET {given}"},
        )
    except ModuleNotFoundError as error:
        if error.name != "pymysql":
            raise
        msg = (
            "database_url: MariaDB and MySQL need the driver PyMySQL; "
            "install it with `pip install 'atalaia[mariadb]'`"
        )
        raise ConfigurationError(msg) from None
    event.listen(engine, "handle_error", _rename)
    return engine


def renamed(dialect: Dialect, error: Any) -> Any:
    """Return a driver's error as one of the kind that the other databases' drivers give it."""
    if dialect.name == MYSQL and error.args[:1] and error.args[0] in _CHECK_VIOLATED:
        return dialect.loaded_dbapi.IntegrityError(*error.args)
    return error


def refuse_what_is_too_long(dialect: Dialect, sql: str, parameters: Any) -> None:
    """Raise ``DataError`` for a value that may not fit into a packet.

    The server would close the connection, which looks as if it were away for a moment.
    """
    if dialect.name != MYSQL:
        return
    longest = max((len(value) for value in parameters if isinstance(value, str)), default=0)
    if longest > LONGEST_DOCUMENT:
        said = f"a document of {longest} bytes is longer than {LONGEST_DOCUMENT}"
        raise DataError(sql, None, dialect.loaded_dbapi.DataError(said), hide_parameters=True)


def _rename(context: ExceptionContext) -> None:
    error = context.original_exception
    again = renamed(context.dialect, error)
    if again is not error:
        raise IntegrityError(context.statement, context.parameters, again) from error


def repeated(act: Callable[[], T]) -> T:
    """Do what is one transaction, and again if it was rolled back so that another could go on.

    Nothing is wrong with it after such a deadlock, and nothing of it is left. The order of locks
    rules deadlocks out, but for two locks that InnoDB takes by itself: of a saga's row by whoever
    adds to its journal, and of the place of a key that two starts want at once.
    """
    for _ in range(_TRIES - 1):
        try:
            return act()
        except OperationalError as error:
            if getattr(error.orig, "args", ())[:1] != (_DEADLOCK,):
                raise
    return act()
