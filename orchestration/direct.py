"""Direct: a connection of the engine's pool, spoken to at the level of the driver.

A worker opens a transaction three times a step. SQLAlchemy's own connection and its transaction
cost as much each time as a statement does, and prepared statements need nothing of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Dialect, Engine
from sqlalchemy.exc import DBAPIError


class Direct:
    """One connection of a pool, with the errors that SQLAlchemy would make of the driver's."""

    def __init__(self, engine: Engine) -> None:
        self.dialect: Dialect = engine.dialect
        self.error: type[Exception] = self.dialect.loaded_dbapi.Error
        try:
            self.held = engine.raw_connection()
        except self.error as error:
            raise told(self.dialect, None, None, error) from error
        self.driver: Any = self.held.dbapi_connection
        self.each_alone = False
        """Whether each statement is a transaction of its own."""

    def cursor(self) -> Any:
        """Return a cursor; psycopg's takes a text as the server does, with ``$1`` and so on."""
        if self.dialect.name == "postgresql":
            return self.dialect.loaded_dbapi.RawCursor(self.driver)
        return self.driver.cursor()

    def begin(self, sql: str) -> None:
        """Begin a transaction where the driver does not do so by itself."""
        try:
            self.driver.execute(sql)
        except self.error as error:
            raise self.failed(sql, None, error) from error

    def alone(self, *, each: bool) -> None:
        """Have each statement be a transaction of its own, or not; a lost connection is left so."""
        if each is not self.each_alone and not self.driver.closed:
            self.driver.autocommit = each
        self.each_alone = each

    @contextmanager
    def together(self) -> Iterator[None]:
        """Have what is run within be one transaction, whether or not each statement was."""
        if not self.each_alone:
            yield
            return
        self.alone(each=False)
        yield  # After an error the connection is given back, which rolls back.
        self.commit()
        self.alone(each=True)

    def commit(self) -> None:
        """Commit the transaction that is open."""
        try:
            self.driver.commit()
        except self.error as error:
            raise self.failed("COMMIT", None, error) from error

    def failed(self, sql: str, parameters: Any, error: Exception) -> DBAPIError:
        """Return SQLAlchemy's form of a driver's error; a lost connection is not used again."""
        lost = self.dialect.is_disconnect(error, self.driver, None)  # type: ignore[arg-type]
        if lost:
            self.held.invalidate(error)
        return told(self.dialect, sql, parameters, error, lost=lost)


def told(
    dialect: Dialect, sql: str | None, parameters: Any, error: Any, *, lost: bool = False
) -> DBAPIError:
    """Return SQLAlchemy's form of a driver's error, which says nothing of what was written."""
    keep_values_out(error)
    told = DBAPIError.instance(
        sql, parameters, error, dialect.loaded_dbapi.Error, dialect=dialect,
        connection_invalidated=lost, hide_parameters=True,
    )  # fmt: skip
    assert isinstance(told, DBAPIError)
    return told


def keep_values_out(error: Any) -> None:
    """Leave of what PostgreSQL says only the first line: its details hold the row's values."""
    said = getattr(getattr(error, "diag", None), "message_primary", None)
    if said:
        error.args = (said,)


@contextmanager
def transaction(engine: Engine, begin: str | None) -> Iterator[Direct]:
    """Yield a connection in a transaction that commits at the end.

    ``begin`` opens it; without, the driver does. Whatever is still open when the pool gets its
    connection back is rolled back.
    """
    with _held(engine) as connection:
        if begin:
            connection.begin(begin)
        yield connection
        connection.commit()


@contextmanager
def single(engine: Engine) -> Iterator[Direct]:
    """Yield a connection on which each statement is a transaction of its own."""
    with _held(engine) as connection:
        connection.alone(each=True)
        try:
            yield connection
        except Exception:
            connection.alone(each=False)
            raise
        connection.alone(each=False)


@contextmanager
def _held(engine: Engine) -> Iterator[Direct]:
    connection = Direct(engine)
    try:
        yield connection
    except Exception:
        raise
    except BaseException as error:
        connection.held.invalidate(error)  # It may have come in the middle of a statement.
        raise
    finally:
        connection.held.close()
