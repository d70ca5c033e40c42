"""Access: the ways in which a piece of work opens the database."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import Connection, Engine

from orchestration import direct
from orchestration.database import READING, WRITING, without_transactions
from orchestration.statement import AnyConnection


class Access:
    """One database. Whatever commits does so at the end of a ``with``, and only if it ends well."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._reads = without_transactions(engine)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection in a transaction that commits at the end."""
        with self.engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection for statements that only read and take no lock."""
        with self._reads.connect() as connection, connection.begin():
            yield connection

    def writing(self) -> AbstractContextManager[AnyConnection]:
        """Return ``transaction`` for prepared statements only, which costs less."""
        if not self._speaks_directly:
            return self.transaction()
        return direct.transaction(self.engine, WRITING if self._is("sqlite") else None)

    def looking(self) -> AbstractContextManager[AnyConnection]:
        """Return ``reading`` for prepared statements only, which costs less."""
        if not self._speaks_directly:
            return self.reading()
        if self._is("sqlite"):
            return direct.transaction(self.engine, READING)
        return direct.single(self.engine)

    def at_once(self) -> AbstractContextManager[AnyConnection]:
        """Return a connection for one change that is a transaction of its own.

        Where it takes several statements, they share a transaction.
        """
        alone = self._is("postgresql") and self._speaks_directly
        return direct.single(self.engine) if alone else self.writing()

    @property
    def reads_changes(self) -> bool:
        """Tell whether one statement may change rows and read others."""
        return self._is("postgresql")

    def _is(self, dialect: str) -> bool:
        return self.engine.dialect.name == dialect

    @property
    def _speaks_directly(self) -> bool:
        """Tell whether that is possible, and nobody, such as a tracer, listens to statements."""
        known = self._is("postgresql") or self._is("sqlite")
        return known and not self.engine.dispatch.before_cursor_execute
