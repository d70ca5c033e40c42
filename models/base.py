"""The base of all tables, the names of constraints, and the column types with a meaning.

Instants are aware UTC in Python and microseconds in every database. SQLite has no such type, so
they are kept there as text of constant width, which sorts as time does. MariaDB and MySQL keep them
without a zone.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias, TypeVar

from sqlalchemy import Column, ColumnElement, DateTime, Dialect, MetaData, String, Table, Text, Uuid
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import JSON, TypeDecorator, TypeEngine

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


REMEMBERED = 4096
"""The same instants are read and written again and again, and reading one is dear."""


class _Microseconds(DateTime):
    """What MariaDB and MySQL keep an instant in. They alone need their dialect."""

    __visit_name__ = "DATETIME"
    fsp = 6


class Instant(TypeDecorator[datetime]):
    """An aware UTC datetime; naive ones are refused, so that no local time is ever stored."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive instants; hand UTC to the driver."""
        if value is None:
            return None
        if value.tzinfo is None:
            msg = f"an instant must be aware, got {value!r}"
            raise ValueError(msg)
        del dialect
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return an aware UTC datetime."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type by which a database keeps it."""
        if dialect.name == "mysql":
            return dialect.type_descriptor(_Microseconds())
        return super().load_dialect_impl(dialect)

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """Return how a value is written; as text in one call, as it is done for every value."""
        as_text = dialect.name in {"sqlite", "mysql"}
        return _to_text if as_text else super().bind_processor(dialect)

    def result_processor(self, dialect: Dialect, coltype: Any) -> Callable[[Any], Any] | None:
        """Return how a value is read."""
        if dialect.name == "sqlite":
            return _from_text
        if dialect.name == "mysql":
            return _from_either
        return super().result_processor(dialect, coltype)


@lru_cache(maxsize=REMEMBERED)
def _to_text(value: datetime | None) -> str | None:
    if value is None:
        return None
    if value.tzinfo is not UTC:
        if value.tzinfo is None:
            msg = f"an instant must be aware, got {value!r}"
            raise ValueError(msg)
        value = value.astimezone(UTC)
    return value.isoformat(" ", "microseconds")[:26]


@lru_cache(maxsize=REMEMBERED)
def _from_text(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


def _from_either(value: datetime | str | None) -> datetime | None:
    """Read an instant; one that was a parameter comes back from MariaDB and MySQL as its text."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else _from_text(value)


Id = Uuid().with_variant(Uuid(native_uuid=False), "mysql")
"""A UUID. Some releases of MariaDB have a type for it, and they differ in how it sorts."""


class _LongJson(JSON):
    """JSON as text: MySQL's own type would sort the keys and write numbers anew."""

    __visit_name__ = "LONGTEXT"


Json = JSON(none_as_null=True).with_variant(_LongJson(none_as_null=True), "mysql")
"""A JSON document, kept as it was written; Python ``None`` is SQL NULL."""


class _LongText(Text):
    """What MariaDB and MySQL keep text of any length in."""

    __visit_name__ = "LONGTEXT"


LongText = Text().with_variant(_LongText(), "mysql")
"""Text of any length."""


T = TypeVar("T")
Kind: TypeAlias = "TypeEngine[T] | type[TypeEngine[T]]"


class Base:
    """The base of every table: the columns that a class names become those of a table of Core.

    Nothing is mapped to objects. All statements are Core's, and the ORM would be a tenth of what a
    worker loads.
    """

    metadata: ClassVar[MetaData] = MetaData(naming_convention=NAMES)
    __tablename__: ClassVar[str]
    __table_args__: ClassVar[tuple[SchemaItem, ...]] = ()
    __table__: ClassVar[Table]

    def __init_subclass__(cls) -> None:
        """Make the table."""
        columns = {name: value for name, value in vars(cls).items() if isinstance(value, Column)}
        for name, column in columns.items():
            column.name = column.key = name
        parts = (*columns.values(), *cls.__table_args__)
        cls.__table__ = Table(cls.__tablename__, cls.metadata, *parts)


def required(kind: "Kind[T]", *parts: SchemaItem, **options: Any) -> ColumnElement[T]:
    """Return a column that always holds a value."""
    return Column(kind, *parts, nullable=False, **options)


def optional(kind: "Kind[T]") -> ColumnElement[T | None]:
    """Return a column that may hold none."""
    return Column(kind, nullable=True)


def word(length: int = 16) -> String:
    """Return the column type of a state, a verb or another short name."""
    return String(length)


def listed(column: str, states: type[StrEnum] | frozenset[Any]) -> str:
    """Return the SQL condition that ``column`` holds one of ``states``."""
    names = ", ".join(f"'{state}'" for state in sorted(states))
    return f"{column} IN ({names})"
