"""Prepared: a statement of SQLAlchemy Core that is built once and then run at driver level.

Building and hashing an expression costs more than the databases need to run it. So the statements
of the hot path are written in Core, compiled to text once for each dialect, and afterwards only
their parameters are converted, by the same column types as ever.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Executable, Uuid
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from models.base import REMEMBERED

Convert = Callable[[Any], Any] | None


class Prepared:
    """One statement. ``columns`` are those that an INSERT or the SET of an UPDATE is given."""

    def __init__(self, statement: Executable, columns: Iterable[str] = ()) -> None:
        self.statement: Any = statement
        self.columns = tuple(columns)
        self._forms: dict[str, _Form] = {}

    def _form(self, dialect: Dialect) -> "_Form":
        form = self._forms.get(dialect.name)
        if form is None:
            form = self._forms[dialect.name] = _Form(self.statement, self.columns, dialect)
        return form

    def change(self, connection: Connection, **values: Any) -> int:
        """Run it and return how many rows it changed."""
        form = self._form(connection.dialect)
        changed: int = _run(connection, form.sql, form.bind(values)).rowcount
        return changed

    def change_many(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it once for each of ``rows``, which all hold the same names."""
        form = self._form(connection.dialect)
        _run(connection, form.sql, [form.bind(row) for row in rows])

    def all(self, connection: Connection, **values: Any) -> list[Any]:
        """Run it and return its rows, each with its columns as attributes."""
        form = self._form(connection.dialect)
        result = _run(connection, form.sql, form.bind(values))
        try:
            return [form.record(row) for row in result]
        finally:
            result.close()

    def first(self, connection: Connection, **values: Any) -> Any | None:
        """Run it and return its first row, or ``None``."""
        rows = self.all(connection, **values)
        return rows[0] if rows else None


def _run(connection: Connection, sql: str, parameters: Any) -> Any:
    """Run a text with converted parameters: one set, or a list of sets.

    SQLAlchemy's own way costs several times what SQLite needs, and does nothing for it that is
    needed here: a connection to a file is never lost.
    """
    if connection.dialect.name != "sqlite":
        return connection.exec_driver_sql(sql, parameters)
    driver: Any = connection.connection.dbapi_connection
    try:
        if isinstance(parameters, list):
            return driver.executemany(sql, parameters)
        return driver.execute(sql, parameters)
    except driver.Error as error:
        raise DBAPIError.instance(
            sql, parameters, error, driver.Error, dialect=connection.dialect
        ) from error


class _Form:
    """The text of a statement in one dialect, and how its values are converted."""

    def __init__(self, statement: Any, columns: tuple[str, ...], dialect: Dialect) -> None:
        compiled: SQLCompiler = statement.compile(
            dialect=dialect, column_keys=list(columns) if columns else None
        )
        self.sql = str(compiled)
        bounds = {name: bound for bound, name in compiled.bind_names.items()}
        self.callables = {name: bound.callable for name, bound in bounds.items() if bound.callable}
        self.constants = {
            name: bound.value for name, bound in bounds.items() if name not in self.callables
        }
        self.converts: dict[str, Convert] = {
            name: bound.type.dialect_impl(dialect).bind_processor(dialect)
            for name, bound in bounds.items()
        }
        self.positions: list[str] | None = compiled.positiontup if compiled.positional else None
        self.plan = [(name, self.converts[name]) for name in self.positions or self.converts]
        selected = list(getattr(statement, "selected_columns", ()))
        self.row: Any = namedtuple("Row", [column.key for column in selected])  # type: ignore[misc]  # noqa: PYI024
        reads = [_reader(column.type, dialect) for column in selected]
        self.reads = [(number, read) for number, read in enumerate(reads) if read is not None]

    def bind(self, values: Mapping[str, Any]) -> Any:
        """Return the parameters as the driver takes them."""
        given = {**self.constants, **values}
        for name, call in self.callables.items():
            given[name] = call()
        if self.positions is None:
            return {
                name: value if (value := given[name]) is None or convert is None else convert(value)
                for name, convert in self.plan
            }
        return tuple(
            [
                value if (value := given[name]) is None or convert is None else convert(value)
                for name, convert in self.plan
            ]
        )

    def record(self, row: Sequence[Any]) -> Any:
        """Return a row of the driver with every value as its column's type."""
        values = list(row)
        for number, read in self.reads:
            value = values[number]
            if value is not None:
                values[number] = read(value)
        return self.row._make(values)


def _reader(column: TypeEngine[Any], dialect: Dialect) -> Convert:
    """Return how a value other than NULL is read; ids are the same again and again."""
    read: Convert = column.dialect_impl(dialect).result_processor(dialect, None)
    return lru_cache(maxsize=REMEMBERED)(read) if read and isinstance(column, Uuid) else read
