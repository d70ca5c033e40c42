"""Bring a database to the newest schema. Nothing else in the project makes or changes tables."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

HERE = Path(__file__).parent

# Any number will do, as long as every version of this program uses the same one.
_LOCK = text("SELECT pg_advisory_xact_lock(20261129)")


def configuration() -> Config:
    """Return the Alembic configuration of this package, wherever it is installed."""
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Apply every revision that the database lacks, in one transaction; safe to repeat.

    Of several callers at once on one database, one applies them and the others find it done.
    """
    config = configuration()
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(_LOCK)  # SQLite lets one writer in at a time by itself.
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def revisions() -> list[str]:
    """Return the names of all revisions, oldest first."""
    script = ScriptDirectory.from_config(configuration())
    return [revision.revision for revision in script.walk_revisions()][::-1]


def current(engine: Engine) -> str | None:
    """Return the revision that the database is at, or None before the first one."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()
