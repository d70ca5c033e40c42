"""The present within a statement of PostgreSQL, and what comes so much later."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Dialect, Double, Interval, bindparam, literal_column
from sqlalchemy.types import TypeDecorator

PRESENT = "present"
"""The part of a statement that holds the time as ``now``."""
_NOW: ColumnElement[datetime] = literal_column(f"(SELECT now FROM {PRESENT})")  # noqa: S608
_SECOND: ColumnElement[timedelta] = literal_column("interval '1 second'", Interval())


class _Since(TypeDecorator[datetime]):
    """An instant, given to the database as the seconds since another."""

    impl = Double
    cache_ok = True

    def __init__(self, since: datetime) -> None:
        super().__init__()
        self.since = since

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Return the seconds."""
        del dialect
        return None if value is None else (value - self.since).total_seconds()


def seconds(number: ColumnElement[Any]) -> ColumnElement[timedelta]:
    """Return so many seconds.

    A driver writes a duration with its days, and to PostgreSQL not all days are of one length.
    """
    passed: ColumnElement[timedelta] = number * _SECOND
    return passed


def moved(name: str, since: datetime) -> ColumnElement[datetime]:
    """Return the instant of that parameter, moved as ``since`` would be moved to the present."""
    return _NOW + seconds(bindparam(name, type_=_Since(since)))
