"""Prepared: a statement of SQLAlchemy Core that is built once and then run at driver level.

Building and hashing an expression costs more than the databases need to run it. So the statements
of the hot path are written in Core, compiled to text once for each dialect, and afterwards only
their parameters are converted, by the same column types as ever.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cache, lru_cache, partial
from itertools import chain
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Dialect, Executable, Uuid
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from models.base import REMEMBERED
from orchestration.borrowed import Borrowed
from orchestration.direct import Direct, told
from orchestration.mysql import refuse_what_is_too_long, renamed

Convert = Callable[[Any], Any] | None
MOST_PARTS = 16
"""So many changes make one statement at most: the texts are kept, and parameters are bounded."""
AnyConnection = Connection | Borrowed | Direct


class Prepared:
    """One statement. ``columns`` are those that an INSERT or the SET of an UPDATE is given."""

    def __init__(self, statement: Executable, columns: Iterable[str] = ()) -> None:
        self.statement: Any = statement
        self.columns = tuple(columns)
        self._forms: dict[tuple[str, str], _Form] = {}

    def _form(self, dialect: Dialect) -> "_Form":
        driver = (dialect.name, dialect.driver)
        form = self._forms.get(driver)
        if form is None:
            form = self._forms[driver] = _Form(self.statement, self.columns, dialect)
        return form

    def change(self, connection: AnyConnection, **values: Any) -> int:
        """Run it and return how many rows it changed."""
        form = self._form(connection.dialect)
        changed: int = _run(connection, form.sql, form.bind(values)).rowcount
        return changed

    def change_many(self, connection: AnyConnection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it once for each of ``rows``, which all hold the same names."""
        form = self._form(connection.dialect)
        _run(connection, form.sql, [form.bind(row) for row in rows])

    def all(self, connection: AnyConnection, **values: Any) -> list[Any]:
        """Run it and return its rows, each with its columns as attributes."""
        form = self._form(connection.dialect)
        result = _run(connection, form.sql, form.bind(values))
        try:
            return form.records(result)
        finally:
            result.close()

    def first(self, connection: AnyConnection, **values: Any) -> Any | None:
        """Run it and return its first row, or ``None``."""
        rows = self.all(connection, **values)
        return rows[0] if rows else None


class Batch:
    """Changes of one row each, kept back so that they reach the database together.

    PostgreSQL runs them as one statement, a data-modifying WITH, for one round trip. Its parts all
    see the rows as they were before any of them, so a second change of a row begins a new one.
    """

    def __init__(self, connection: AnyConnection) -> None:
        self.connection = connection
        self.missed: list[str] = []
        """The rows that a change did not find."""
        self._parts: list[tuple[Prepared, Mapping[str, Any]]] = []
        self._rows: list[str] = []

    def add(self, of: str, statement: Prepared, values: Mapping[str, Any]) -> None:
        """Take a change of one row; ``of`` is any name that no other row has."""
        if of in self._rows or len(self._rows) == MOST_PARTS:
            self.flush()
        self._rows.append(of)
        self._parts.append((statement, values))

    def flush(self) -> None:
        """Run what was kept back."""
        parts, rows, self._parts, self._rows = self._parts, self._rows, [], []
        if len(parts) > 1 and self.connection.dialect.name == "postgresql":
            counts = _run_joined(self.connection, parts)
        else:
            counts = [statement.change(self.connection, **values) for statement, values in parts]
        self.missed += [row for row, count in zip(rows, counts, strict=True) if count != 1]


def _run_joined(
    connection: AnyConnection, parts: Sequence[tuple[Prepared, Mapping[str, Any]]]
) -> Sequence[int]:
    """Run several changes as one statement; return how many rows each of them changed."""
    forms = [statement._form(connection.dialect) for statement, _ in parts]  # noqa: SLF001
    sql = _join(tuple(form.sql for form in forms))
    given = chain.from_iterable(
        form.bind(values) for form, (_, values) in zip(forms, parts, strict=True)
    )
    counts: Sequence[int] = _run(connection, sql, tuple(given)).fetchone()
    return counts


@cache
def _join(texts: tuple[str, ...]) -> str:
    """Return one statement that runs all of ``texts``; its parameters are theirs in that order."""
    heads = ", ".join(f"w{number} AS ({text} RETURNING 1)" for number, text in enumerate(texts))
    counts = ", ".join(f"(SELECT count(*) FROM w{n})" for n in range(len(texts)))  # noqa: S608
    return f"WITH {heads} SELECT {counts}"


def _run(connection: AnyConnection, sql: str, parameters: Any) -> Any:
    """Run a text with converted parameters: one set, or a list of sets; return the cursor.

    It goes to the driver itself: SQLAlchemy's own way costs several times what the drivers need. Of
    what that way does, an error's class and a lost connection matter here. Whoever listens to
    SQLAlchemy's statements, as tracing does, hears of these too, at the price of its own way. On a
    borrowed connection an error stays the driver's own, which the connection's owner can take.
    """
    if isinstance(connection, Direct):
        try:
            return _execute(connection.driver.cursor(), sql, parameters)
        except connection.error as error:
            raise connection.failed(sql, parameters, error) from error
    refuse_what_is_too_long(connection.dialect, sql, parameters)
    if isinstance(connection, Borrowed):
        return _execute(connection.cursor(), sql, parameters)
    if connection.dispatch.before_cursor_execute:
        return connection.exec_driver_sql(sql, parameters)
    driver: Any = connection.connection.dbapi_connection
    try:
        return _execute(driver.cursor(), sql, parameters)
    except connection.dialect.loaded_dbapi.Error as error:
        known = renamed(connection.dialect, error)
        raise _failed(connection, sql, parameters, known) from error


def _execute(cursor: Any, sql: str, parameters: Any) -> Any:
    if isinstance(parameters, list):
        cursor.executemany(sql, parameters)
    else:
        cursor.execute(sql, parameters)
    return cursor


def _failed(connection: Connection, sql: str, parameters: Any, error: Any) -> DBAPIError:
    """Return SQLAlchemy's form of a driver's error; a connection that is lost is not used again."""
    dialect = connection.dialect
    lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)
    if lost:
        connection.invalidate(error)
    return told(dialect, sql, parameters, error, lost=lost)


class _Form:
    """The text of a statement in one dialect, and how its values are converted."""

    def __init__(self, statement: Any, columns: tuple[str, ...], dialect: Dialect) -> None:
        compiled: SQLCompiler = statement.compile(
            dialect=_by_position(dialect), column_keys=list(columns) if columns else None
        )
        self.sql = str(compiled)
        names = compiled.positiontup or []
        bounds = {name: bound for bound, name in compiled.bind_names.items()}
        self.callables = {name: bound.callable for name, bound in bounds.items() if bound.callable}
        self.constants = {
            name: bound.value
            for name, bound in bounds.items()
            if not bound.required and name not in self.callables
        }
        self.pick = itemgetter(*names) if len(names) > 1 else _one_by_one(names)
        self.converts = _wherever(
            bounds[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names
        )
        selected = list(getattr(statement, "selected_columns", ()))
        self.row: Any = partial(
            tuple.__new__,
            namedtuple("Row", [column.key for column in selected]),  # noqa: PYI024
        )
        self.reads = _wherever(_reader(column.type, dialect) for column in selected)

    def bind(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the parameters as the driver takes them."""
        if self.constants or self.callables:
            called = {name: call() for name, call in self.callables.items()}
            values = {**self.constants, **values, **called}
        return tuple(_converted(self.pick(values), self.converts))

    def records(self, rows: Iterable[Sequence[Any]]) -> list[Any]:
        """Return rows of the driver with every value as its column's type."""
        row, reads = self.row, self.reads
        return [row(_converted(values, reads)) for values in rows]


def _by_position(dialect: Dialect) -> Dialect:
    """Return a dialect that takes parameters by position, as a caller's own engine may not."""
    if dialect.positional:
        return dialect
    same = copy(dialect)
    same.paramstyle, same.positional = "format", True
    return same


def _one_by_one(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """Return what ``itemgetter`` does for two names and more."""
    return lambda values: [values[name] for name in names]


def _wherever(converts: Iterable[Convert]) -> list[tuple[int, Callable[[Any], Any]]]:
    """Return the conversions that there are, each with its place."""
    return [(place, convert) for place, convert in enumerate(converts) if convert is not None]


def _converted(
    values: Sequence[Any], converts: Sequence[tuple[int, Callable[[Any], Any]]]
) -> list[Any]:
    """Return ``values``, those at some places converted; NULL stays what it is."""
    converted = list(values)
    for place, convert in converts:
        value = converted[place]
        if value is not None:
            converted[place] = convert(value)
    return converted


def _reader(column: TypeEngine[Any], dialect: Dialect) -> Convert:
    """Return how a value other than NULL is read; ids are the same again and again."""
    read: Convert = column.dialect_impl(dialect).result_processor(dialect, None)
    return lru_cache(maxsize=REMEMBERED)(read) if read and isinstance(column, Uuid) else read
