"""The schema that the migrations make is the one that the models describe."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, MetaData, inspect, text

from migrations import run
from models.base import Base
from orchestration.database import open_engine
from tests.support.postgres import Postgres

VERSIONS = Path(run.__file__).parent / "versions"

MIGRATE = """
import sys
from migrations.run import upgrade
from orchestration.database import open_engine
upgrade(open_engine(sys.argv[1]))
"""

pytestmark = pytest.mark.skipif(not list(VERSIONS.glob("0*.py")), reason="there is no revision yet")


@pytest.fixture(params=["sqlite", "postgres"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Engine]]:
    """Two databases without any table, of one kind."""
    if request.param == "sqlite":
        urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
        yield from _opened(urls)
        return
    server: Postgres = request.getfixturevalue("postgres")
    with server.database() as one, server.database() as two:
        yield from _opened([one, two])


def _opened(urls: list[str]) -> Iterator[list[Engine]]:
    engines = [open_engine(url) for url in urls]
    yield engines
    for engine in engines:
        engine.dispose()


def test_migrations_make_what_the_models_describe(empty: list[Engine]) -> None:
    migrated, modelled = empty
    run.upgrade(migrated)
    Base.metadata.create_all(modelled)

    with migrated.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    assert _fine_print(migrated) == _fine_print(modelled)


def test_migrating_twice_changes_nothing(empty: list[Engine]) -> None:
    run.upgrade(empty[0])
    before = _fine_print(empty[0])
    run.upgrade(empty[0])
    assert _fine_print(empty[0]) == before
    assert run.current(empty[0]) == run.revisions()[-1]


def test_several_that_migrate_at_once_do_it_once(empty: list[Engine]) -> None:
    url = empty[0].url.render_as_string(hide_password=False)
    racers = [
        subprocess.Popen([sys.executable, "-c", MIGRATE, url], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    complaints = [racer.communicate(timeout=60)[1] for racer in racers]

    assert [racer.returncode for racer in racers] == [0, 0, 0], complaints
    assert run.current(empty[0]) == run.revisions()[-1]


def test_a_failing_revision_leaves_nothing_behind(
    empty: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("alembic.runtime.migration.HeadMaintainer.update_to_step", fail)
    with pytest.raises(RuntimeError, match="the disk is full"):
        run.upgrade(empty[0])
    assert set(inspect(empty[0]).get_table_names()) <= {"alembic_version"}


def test_revisions_are_numbered_without_a_gap() -> None:
    numbers = sorted(path.name[:4] for path in VERSIONS.glob("0*.py"))
    assert numbers == [f"{number:04d}" for number in range(1, len(numbers) + 1)]
    assert run.revisions() == numbers


def _fine_print(engine: Engine) -> dict[str, Any]:
    """Return what autogenerate does not compare: checks, index conditions, keys and types."""
    with engine.connect() as connection:
        metadata = MetaData()
        metadata.reflect(connection)
        return {
            name: _of_table(connection, name)
            for name in metadata.tables
            if name != "alembic_version"
        }


def _of_table(connection: Connection, name: str) -> dict[str, Any]:
    inspector = inspect(connection)
    return {
        "columns": {
            column["name"]: (str(column["type"]), column["nullable"], column["default"])
            for column in inspector.get_columns(name)
        },
        "primary key": inspector.get_pk_constraint(name),
        "foreign keys": sorted(inspector.get_foreign_keys(name), key=str),
        "unique": sorted(inspector.get_unique_constraints(name), key=str),
        "checks": sorted(
            (str(check["name"]), _squeezed(check["sqltext"]))
            for check in inspector.get_check_constraints(name)
        ),
        "indexes": _indexes(connection, name),
    }


def _indexes(connection: Connection, name: str) -> list[str]:
    catalogue = {
        "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = :name",
        "postgresql": "SELECT indexdef FROM pg_indexes WHERE tablename = :name",
    }[connection.dialect.name]
    rows = connection.execute(text(catalogue), {"name": name})
    return sorted(_squeezed(row[0]) for row in rows if row[0])


def _squeezed(statement: str) -> str:
    return re.sub(r"\s+", " ", statement).strip()
