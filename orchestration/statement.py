"""Prepared: a statement of SQLAlchemy Core that is built once and then run at driver level.

Building and hashing an expression costs more than the databases need to run it. So the statements
of the hot path are written in Core, compiled to text once for each dialect, and afterwards only
their parameters are converted, by the same column types as ever.
"""

import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache, partial
from itertools import chain
from itertools import count as numbers_from
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    Insert,
    Uuid,
    bindparam,
    insert,
    select,
    text,
)
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from models.base import REMEMBERED, Instant
from orchestration.borrowed import Borrowed
from orchestration.direct import Direct, told
from orchestration.mysql import refuse_what_is_too_long, renamed
from orchestration.present import PRESENT, moved

Convert = Callable[[Any], Any] | None
MOST_PARTS = 16
"""So many changes make one statement at most: the texts are kept, and parameters are bounded."""
AnyConnection = Connection | Borrowed | Direct


class StaleWriteError(Exception):
    """The row is no longer what the decision was taken on."""


class Prepared:
    """One statement. ``columns`` are those that an INSERT or the SET of an UPDATE is given.

    With ``since``, an INSERT is part of a statement that begins with the present, and its instants
    are moved: what is ``since`` becomes the present, what is later comes as much after that.
    """

    def __init__(
        self, statement: Executable, columns: Iterable[str] = (), *, since: datetime | None = None
    ) -> None:
        self.statement: Any = statement
        self.columns = tuple(columns)
        self.since = since
        self._forms: dict[tuple[str, str, bool], _Form] = {}

    def form(self, dialect: Dialect, *, if_first: bool = False) -> "_Form":
        """Return it in a dialect; ``if_first``: as a part that depends on the first one."""
        kind = (dialect.name, dialect.driver, if_first)
        form = self._forms.get(kind)
        if form is None:
            statement, columns = self.statement, self.columns
            if if_first:
                statement, columns = self._if_first()
            elif self.since is not None:
                statement = statement.values({name: self.given(name) for name in columns})
            form = self._forms[kind] = _Form(statement, columns, dialect)
        return form

    def _if_first(self) -> tuple[Any, tuple[str, ...]]:
        """Return a change that takes place only if the statement's first part found its row."""
        if not isinstance(self.statement, Insert):
            return self.statement.where(_FIRST_FOUND), self.columns
        given = select(*map(self.given, self.columns)).where(_FIRST_FOUND)
        table: Any = self.statement.table
        return insert(table).from_select(self.columns, given, include_defaults=False), ()

    def given(self, name: str) -> ColumnElement[Any]:
        """Return what a column of an INSERT is given."""
        kind = self.statement.table.c[name].type
        if self.since is None or not isinstance(kind, Instant):
            return bindparam(name, type_=kind)
        return moved(name, self.since)

    def change(self, connection: AnyConnection, **values: Any) -> int:
        """Run it and return how many rows it changed."""
        form = self.form(connection.dialect)
        changed: int = _run(connection, form.sql, form.bind(values)).rowcount
        return changed

    def change_many(self, connection: AnyConnection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it once for each of ``rows``, which all hold the same names."""
        form = self.form(connection.dialect)
        _run(connection, form.sql, [form.bind(row) for row in rows])

    def all(self, connection: AnyConnection, **values: Any) -> list[Any]:
        """Run it and return its rows, each with its columns as attributes."""
        form = self.form(connection.dialect)
        result = _run(connection, form.sql, form.bind(values))
        try:
            return form.records(result)
        finally:
            result.close()

    def first(self, connection: AnyConnection, **values: Any) -> Any | None:
        """Run it and return its first row, or ``None``."""
        rows = self.all(connection, **values)
        return rows[0] if rows else None


@dataclass(frozen=True)
class Change:
    """A change of one row; ``of`` is any name that no other row has."""

    of: str
    statement: Prepared
    values: Mapping[str, Any]


class Batch:
    """Changes of one row each, kept back so that they reach the database together.

    PostgreSQL runs them as one statement, a data-modifying WITH, for one round trip. Its parts all
    see the rows as they were before any of them, so a second change of a row begins a new one.
    """

    def __init__(self, connection: AnyConnection) -> None:
        self.connection = connection
        self.missed: list[str] = []
        """The rows that a change did not find."""
        self._kept: list[Change] = []

    def add(self, change: Change) -> None:
        """Take a change."""
        if not _fit([*self._kept, change]):
            self.flush()
        self._kept.append(change)

    def flush(self) -> None:
        """Run what was kept back."""
        kept, self._kept = self._kept, []
        if len(kept) > 1 and self.connection.dialect.name == "postgresql":
            counts = _run_joined(self.connection, kept)
        else:
            counts = [one.statement.change(self.connection, **one.values) for one in kept]
        self.missed += [one.of for one, count in zip(kept, counts, strict=True) if count != 1]


def is_one(connection: AnyConnection, changes: int) -> bool:
    """Tell whether so many changes are one statement in ``all_or_none``."""
    alone = isinstance(connection, Direct) and connection.each_alone
    return alone and changes <= MOST_PARTS


def all_or_none(
    connection: AnyConnection, changes: Sequence[Change], present: Prepared | None = None
) -> bool:
    """Run changes of one row each if the first finds its row; tell whether it does.

    Raises ``StaleWriteError`` if another does not find its row; nothing is changed then, either.
    On a connection on which each statement is a transaction of its own, they are one. Only there
    may instants be moved to the ``present``.
    """
    if isinstance(connection, Direct) and connection.each_alone and _fit(changes):
        return _run_as_one(connection, changes, present)
    with connection.together() if isinstance(connection, Direct) else nullcontext():
        first, batch = changes[0], Batch(connection)
        if first.statement.change(connection, **first.values) != 1:
            return False
        for change in changes[1:]:
            batch.add(change)
        batch.flush()
        if batch.missed:
            raise StaleWriteError(", ".join(batch.missed))
    return True


def _fit(changes: Sequence[Change]) -> bool:
    """Tell whether changes can be one statement."""
    return len(changes) <= MOST_PARTS and len({change.of for change in changes}) == len(changes)


def _run_joined(connection: AnyConnection, changes: Sequence[Change]) -> Sequence[int]:
    """Run several changes as one statement; return how many rows each of them changed."""
    forms = [change.statement.form(connection.dialect) for change in changes]
    counts: Sequence[int] = _run(
        connection, _join(tuple(form.sql for form in forms)), _bound(forms, changes)
    ).fetchone()
    return counts


def _run_as_one(connection: Direct, changes: Sequence[Change], present: Prepared | None) -> bool:
    """Run several changes as one statement that fails unless all, or not even the first, fit."""
    dialect = connection.dialect
    first, *rest = changes
    forms = [
        first.statement.form(dialect),
        *(change.statement.form(dialect, if_first=True) for change in rest),
    ]
    now = present.form(dialect) if present else None
    sql = _join_all_or_none(tuple(form.sql for form in forms), now.sql if now else None)
    parameters = (*(now.bind({}) if now else ()), *_bound(forms, changes))
    try:
        found: bool = _run(connection, sql, parameters).fetchone()[0] == 1
    except DataError as error:
        if getattr(error.orig, "sqlstate", None) != _DIVISION_BY_ZERO:
            raise
        raise StaleWriteError(", ".join(change.of for change in changes)) from error
    return found


def _bound(forms: "Sequence[_Form]", changes: Sequence[Change]) -> tuple[Any, ...]:
    given = zip(forms, changes, strict=True)
    return tuple(chain.from_iterable(form.bind(change.values) for form, change in given))


@cache
def _join(texts: tuple[str, ...]) -> str:
    """Return one statement that runs all of ``texts``; its parameters are theirs in that order."""
    counts = ", ".join(_count(number) for number in range(len(texts)))
    return f"{_heads(texts)} SELECT {counts}"


@cache
def _join_all_or_none(texts: tuple[str, ...], present: str | None) -> str:
    """Return the same, for ``texts`` of which all but the first ask whether that found its row.

    Its one column is what the first found. Only a failure takes back what one statement has done;
    so it divides by nothing if the first found its row and not all others did.
    """
    rest = " + ".join(_count(number) for number in range(1, len(texts))) or "0"
    return (
        f"{_heads(texts, present)} SELECT CASE WHEN first = 1 AND rest <> {len(texts) - 1}"  # noqa: S608
        f" THEN 1 / (first - 1) ELSE first END"
        f" FROM (SELECT {_count(0)} AS first, {rest} AS rest) AS found"
    )


def _heads(texts: tuple[str, ...], present: str | None = None) -> str:
    heads = [f"w{number} AS ({text} RETURNING 1)" for number, text in enumerate(texts)]
    if present:
        heads.insert(0, f"{PRESENT} AS ({present})")
    return f"WITH {', '.join(heads)}"


def _count(number: int) -> str:
    return f"(SELECT count(*) FROM w{number})"  # noqa: S608


_DIVISION_BY_ZERO = "22012"
_FIRST_FOUND = text("EXISTS (SELECT 1 FROM w0)")


def _run(connection: AnyConnection, sql: str, parameters: Any) -> Any:
    """Run a text with converted parameters: one set, or a list of sets; return the cursor.

    It goes to the driver itself: SQLAlchemy's own way costs several times what the drivers need. Of
    what that way does, an error's class and a lost connection matter here. Whoever listens to
    SQLAlchemy's statements, as tracing does, hears of these too, at the price of its own way. On a
    borrowed connection an error stays the driver's own, which the connection's owner can take.
    """
    if isinstance(connection, Direct):
        try:
            if connection.dialect.name == "postgresql":
                sql = _numbered(sql)
            return _execute(connection.cursor(), sql, parameters)
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


@cache
def _numbered(sql: str) -> str:
    """Return a text with its parameters by number, which spares the driver to look for them."""
    numbers = numbers_from(1)
    return re.sub("%[s%]", lambda found: f"${next(numbers)}" if found[0] == "%s" else "%", sql)


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
