"""MariaDB or MySQL for the tests: the server that is given, with a database for each test."""

import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import pymysql
from sqlalchemy import URL, make_url

from tests.support.waiting import eventually

HOSTILE = "latin1_swedish_ci"
"""What a database may have been made with: few characters, and A is a."""
AS_LAID = "utf8mb4_nopad_bin"
"""What the migrations lay on MariaDB, whatever the database was made with."""
_VERSIONS = "alembic_version"
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")


class Mariadb:
    """A server, given by its administrator's URL, that hands out fresh databases."""

    def __init__(self, url: str) -> None:
        self.url: URL = make_url(url)
        self._shapes: dict[str, dict[str, str]] = {}
        self._free: defaultdict[str, list[str]] = defaultdict(list)

    def make_template(self, fill: Callable[[str], None]) -> str:
        """Make a database, let ``fill`` lay the schema at its URL, and return its name."""
        name = self._make("template", HOSTILE)
        fill(self.url_of(name))
        self._shapes[name] = {table: _COUNTER.sub("", made) for table, made in self._tables(name)}
        return name

    @contextmanager
    def database(self, template: str = "", collation: str = HOSTILE) -> Iterator[str]:
        """Yield the URL of a database that is as ``template`` is, for one user at a time."""
        free = self._free[template]
        name = free.pop() if free else self._copy(template, collation)
        try:
            yield self.url_of(name)
        finally:
            with suppress(pymysql.Error):
                if template and self._emptied(name, template):
                    free.append(name)
            if name not in free:
                self._drop(name)

    @contextmanager
    def owned(self, url: str) -> Iterator[str]:
        """Yield the URL by which a user of its own reaches the database at ``url``."""
        owner = f"atalaia_{secrets.token_hex(6)}"
        self.run(f"CREATE USER {owner}")
        self.run(f"GRANT ALL ON {make_url(url).database}.* TO {owner}")
        self.run(f"GRANT PROCESS ON *.* TO {owner}")  # Who waits for whom is asked as the owner.
        try:
            yield make_url(url).set(username=owner).render_as_string(hide_password=False)
        finally:
            self.run(f"DROP USER {owner}")

    @contextmanager
    def away(self, url: str) -> Iterator[None]:
        """Let the owner not into the database at ``url``, and throw it out."""
        owned = make_url(url)
        self.run(f"ALTER USER {owned.username} ACCOUNT LOCK")
        self.throw_out(owned.database or "")
        try:
            yield
        finally:
            self.run(f"ALTER USER {owned.username} ACCOUNT UNLOCK")

    @contextmanager
    def read_only(self, url: str) -> Iterator[None]:
        """Refuse every write of the owner to the database at ``url``."""
        owned = make_url(url)
        of_it = f"{owned.database}.* {{}} {owned.username}"
        self.run(f"REVOKE ALL ON {of_it.format('FROM')}")
        self.run(f"GRANT SELECT ON {of_it.format('TO')}")
        self.throw_out(owned.database or "")
        try:
            yield
        finally:
            self.run(f"GRANT ALL ON {of_it.format('TO')}")
            self.throw_out(owned.database or "")

    def run(self, statement: str) -> list[Any]:
        """Run a statement as the administrator; return its rows."""
        with self._administrator.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def throw_out(self, database: str) -> None:
        """End every session of a database, and wait until they are gone."""
        sessions = (
            "SELECT id FROM information_schema.processlist"
            f" WHERE db = '{database}' AND id <> CONNECTION_ID()"
        )
        for (number,) in self.run(sessions):
            with suppress(pymysql.Error):  # It may have gone by itself.
                self.run(f"KILL {number}")
        eventually(lambda: not self.run(sessions), within=20, describe="nobody is in any more")

    def url_of(self, database: str) -> str:
        """Return the URL of a database on this server."""
        return self.url.set(database=database).render_as_string(hide_password=False)

    def close(self) -> None:
        """Drop what is left, and disconnect."""
        for name in [*self._shapes, *(name for free in self._free.values() for name in free)]:
            self._drop(name)
        self._administrator.close()

    def _tables(self, name: str) -> list[tuple[str, str]]:
        """Return the tables of a database, each with the statement that makes it."""
        tables = self.run(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{name}'"
        )
        return [self.run(f"SHOW CREATE TABLE {name}.{table}")[0] for (table,) in tables]

    def _copy(self, template: str, collation: str) -> str:
        name = self._make("test", collation)
        if template:
            self.run(f"USE {name}")
            for statement in self._shapes[template].values():
                self.run(statement)
            self.run(f"INSERT INTO {_VERSIONS} SELECT * FROM {template}.{_VERSIONS}")
        return name

    def _emptied(self, name: str, template: str) -> bool:
        """Delete all rows but the schema's own; tell whether nothing else is there."""
        self.throw_out(name)
        found = self._tables(name)
        if {table: _COUNTER.sub("", made) for table, made in found} != self._shapes[template]:
            return False
        for table, made in found:
            if table != _VERSIONS:
                has_counted = _COUNTER.search(made)
                self.run(f"{'TRUNCATE' if has_counted else 'DELETE FROM'} {name}.{table}")
        return True

    def _make(self, kind: str, collation: str) -> str:
        name = f"atalaia_{kind}_{secrets.token_hex(6)}"
        charset = collation.partition("_")[0]
        self.run(f"CREATE DATABASE {name} CHARACTER SET {charset} COLLATE {collation}")
        return name

    def _drop(self, name: str) -> None:
        self.throw_out(name)  # Or it would wait for whoever is in the middle of a transaction.
        self.run(f"DROP DATABASE IF EXISTS {name}")

    @cached_property
    def _administrator(self) -> Any:
        return pymysql.connect(
            host=self.url.host or "127.0.0.1",
            port=self.url.port or 3306,
            user=self.url.username or "root",
            password=self.url.password or "",
            autocommit=True,
            init_command="SET foreign_key_checks = 0",
        )
