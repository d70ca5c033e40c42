"""Bring a database to the newest schema. Nothing else in the project makes or changes tables.

On PostgreSQL sagas run on meanwhile. Whoever asks for a table after a change that waits for it
waits with it, so a change waits for a moment only, lets the others pass and is tried again. Each
revision is a transaction of its own. MariaDB and MySQL cannot roll such changes back: the tables
that a failed attempt has made are dropped. On SQLite all revisions are one transaction.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData, inspect, text
from sqlalchemy.exc import OperationalError

from models import Base

HERE = Path(__file__).parent
LOCK_TIMEOUT_SECONDS = 2

_PAUSE_SECONDS = 0.5
_TRIES = 20
_LOCK_NOT_AVAILABLE = {"postgresql": "55P03", "mysql": 1205}
# Any name will do, as long as every version of this program uses the same one.
_TRY_LOCK = {
    "postgresql": text("SELECT pg_try_advisory_lock(20261129)"),
    "mysql": text("SELECT GET_LOCK(CONCAT('atalaia ', MD5(DATABASE())), 0)"),
}
_UNLOCK = {
    "postgresql": text("SELECT pg_advisory_unlock(20261129)"),
    "mysql": text("SELECT RELEASE_LOCK(CONCAT('atalaia ', MD5(DATABASE())))"),
}
_WAIT_BRIEFLY = {
    "postgresql": text(f"SET lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'"),
    "mysql": text(f"SET lock_wait_timeout = {LOCK_TIMEOUT_SECONDS}"),
}


def configuration() -> Config:
    """Return the Alembic configuration of this package, wherever it is installed."""
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Apply every revision that the database lacks; safe to repeat.

    Of several callers at once on one database, one applies them and the others find it done.
    """
    if engine.dialect.name == "sqlite":
        with engine.begin() as connection:  # It lets one writer in at a time by itself.
            _apply(connection, revision)
        return
    with _alone(engine):
        if engine.dialect.name == "postgresql":
            _apply_online(engine, revision)
        else:
            with _cleared_up(engine):
                _apply_online(engine, revision)


def _apply(connection: Connection, revision: str) -> None:
    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _apply_online(engine: Engine, revision: str) -> None:
    """Apply the revisions one by one; one that does not get its table is tried again."""
    for left in reversed(range(_TRIES)):
        try:
            with _impatient(engine) as connection:
                _apply(connection, revision)
        except OperationalError as error:
            if not left or _code(error.orig) != _LOCK_NOT_AVAILABLE[engine.dialect.name]:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _code(error: Any) -> Any:
    """Return the code of an error of PyMySQL, whose state says too little, or of psycopg."""
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) else getattr(error, "sqlstate", None)


@contextmanager
def _cleared_up(engine: Engine) -> Iterator[None]:
    """Drop those of our tables that are made within if not even the first revision is through.

    An application may make tables of its own in the same database meanwhile.
    """
    ours = {*Base.metadata.tables, "alembic_version"} - set(inspect(engine).get_table_names())
    try:
        yield
    except BaseException:
        if current(engine) is None:
            made = MetaData()
            made.reflect(engine, only=lambda name, _: name in ours)
            made.drop_all(engine)
        raise


@contextmanager
def _impatient(engine: Engine) -> Iterator[Connection]:
    """Yield a connection that waits for a lock for a moment only, and is closed afterwards."""
    with engine.connect() as connection:
        connection.execute(_WAIT_BRIEFLY[engine.dialect.name])
        connection.commit()
        try:
            yield connection
        finally:
            connection.invalidate()  # The pool would lend it, with its setting, to others.


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """Keep other callers out.

    They ask again and again: a statement that waited for the lock would hold a snapshot, and an
    index that is built concurrently waits for all of those.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.scalar(_TRY_LOCK[engine.dialect.name]):
            time.sleep(_PAUSE_SECONDS)
        try:
            yield
        finally:
            connection.execute(_UNLOCK[engine.dialect.name])


def revisions() -> list[str]:
    """Return the names of all revisions, oldest first."""
    script = ScriptDirectory.from_config(configuration())
    return [revision.revision for revision in script.walk_revisions()][::-1]


def current(engine: Engine) -> str | None:
    """Return the revision that the database is at, or None before the first one."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()
