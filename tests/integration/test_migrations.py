"""The schema that the migrations make is the one that the models describe."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, MetaData, inspect, text

from migrations import run
from migrations.run import LOCK_TIMEOUT_SECONDS
from models.base import Base
from models.mysql import is_compared
from orchestration.database import open_engine
from tests.support import databases
from tests.support.mariadb import AS_LAID, HOSTILE, Mariadb
from tests.support.postgres import Postgres
from tests.support.waiting import eventually

VERSIONS = Path(run.__file__).parent / "versions"

MIGRATE = """
import sys
from migrations.run import upgrade
from orchestration.database import open_engine
upgrade(open_engine(sys.argv[1]))
"""

pytestmark = pytest.mark.skipif(not list(VERSIONS.glob("0*.py")), reason="there is no revision yet")


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Engine]]:
    """Two databases without any table, of one kind."""
    if request.param == "sqlite":
        urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
        yield from _opened(urls)
        return
    if request.param == "mariadb":
        mariadb: Mariadb = request.getfixturevalue("mariadb")
        with mariadb.database("", AS_LAID) as one, mariadb.database("", AS_LAID) as two:
            yield from _opened([one, two])
        return
    server: Postgres = request.getfixturevalue("postgres")
    with server.database() as one, server.database() as two:
        yield from _opened([one, two])


def _opened(urls: list[str]) -> Iterator[list[Engine]]:
    engines = [open_engine(url) for url in urls]
    yield engines
    for engine in engines:
        engine.dispose()


def _opened_each(*urls: str) -> Iterator[Engine]:
    for url in urls:
        engine = open_engine(url)
        yield engine
        engine.dispose()


def test_migrations_make_what_the_models_describe(empty: list[Engine]) -> None:
    migrated, modelled = empty
    run.upgrade(migrated)
    Base.metadata.create_all(modelled)

    with migrated.connect() as connection:
        options = {
            "compare_server_default": True,
            "include_object": lambda _, name, kind, *__: is_compared(
                connection.dialect.name, name, kind
            ),
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []
    assert _fine_print(migrated) == _fine_print(modelled)


def test_migrations_lay_tables_of_their_own_kind_whatever_the_database_was_made_with(
    mariadb: Mariadb,
) -> None:
    with mariadb.database("", HOSTILE) as hostile, mariadb.database("", AS_LAID) as fit:
        prints = []
        for engine in _opened_each(hostile, fit):
            run.upgrade(engine)
            prints.append(_fine_print(engine))
        assert prints[0] == prints[1]


def _differ(engines: list[Engine], statements: list[str]) -> bool:
    """Tell whether the comparison sees what the statements have changed in the second database."""
    for engine in engines:
        Base.metadata.create_all(engine)
    assert _fine_print(engines[0]) == _fine_print(engines[1])
    with engines[1].begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    return _fine_print(engines[0]) != _fine_print(engines[1])


DROP = "DROP INDEX ix_sagas_live"


@pytest.mark.parametrize(
    "statements",
    [
        [DROP],
        [DROP, "CREATE INDEX ix_sagas_live ON sagas (id)"],
        ["CREATE INDEX another ON steps (agent)"],
        ["ALTER TABLE sagas ADD COLUMN note VARCHAR(10)"],
    ],
    ids=str,
)
def test_the_comparison_sees_other_indexes_and_columns(
    empty: list[Engine], statements: list[str]
) -> None:
    of_table = f"{DROP} ON sagas" if empty[0].dialect.name == "mysql" else DROP
    assert _differ(empty, [of_table if one == DROP else one for one in statements])


OTHER_STATE = "ALTER TABLE sagas ADD CONSTRAINT ck_sagas_state_known CHECK (state <> '')"
UNPROVEN = (
    "ALTER TABLE journal ADD CONSTRAINT fk_journal_saga_id "
    "FOREIGN KEY (saga_id) REFERENCES sagas (id) NOT VALID"
)


@pytest.mark.parametrize("empty", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE sagas ADD CHECK (length(workflow) > 0)"],
        ["ALTER TABLE sagas DROP CONSTRAINT ck_sagas_state_known"],
        ["ALTER TABLE sagas DROP CONSTRAINT ck_sagas_state_known", OTHER_STATE],
        ["ALTER TABLE journal DROP CONSTRAINT fk_journal_saga_id", UNPROVEN],
        ["ALTER TABLE sagas ALTER COLUMN state DROP NOT NULL"],
        ["ALTER TABLE sagas ALTER COLUMN state SET DEFAULT 'running'"],
        ["ALTER TABLE sagas ALTER COLUMN state TYPE VARCHAR(17)"],
    ],
    ids=str,
)
def test_the_comparison_sees_other_constraints_and_types(
    empty: list[Engine], statements: list[str]
) -> None:
    """SQLite cannot alter what is there; its checks are compared by the same functions."""
    assert _differ(empty, statements)


@pytest.mark.parametrize("revision", run.revisions())
def test_every_revision_leads_to_the_models_and_keeps_the_rows(
    empty: list[Engine], revision: str
) -> None:
    old, modelled = empty
    run.upgrade(old, revision)
    Base.metadata.create_all(modelled)
    with old.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO definitions (id, workflow, version, document, created_at) "
            "VALUES ('one', 'trip', 1, '{}', '2026-11-29')"
        )
    run.upgrade(old)
    assert run.current(old) == run.revisions()[-1]
    assert _fine_print(old) == _fine_print(modelled)
    with old.connect() as connection:
        rows = connection.exec_driver_sql("SELECT id, workflow, version FROM definitions").all()
    assert [tuple(row) for row in rows] == [("one", "trip", 1)]


# --- while sagas run ------------------------------------------------------------------------------

ONE_MORE = """
import sqlalchemy as sa
from alembic import op
from migrations import online

revision = "more"
down_revision = "{newest}"

def upgrade():
    {change}
"""


@pytest.fixture
def more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Adds a revision, for this test only, that makes the given change."""

    def added(change: str) -> None:
        newest = run.revisions()[-1]
        copy = tmp_path / "migrations"
        shutil.copytree(VERSIONS.parent, copy)
        (copy / "versions" / "9999_more.py").write_text(
            ONE_MORE.format(newest=newest, change=change)
        )
        monkeypatch.setattr(run, "HERE", copy)

    return added


@pytest.fixture(params=["postgres"])
def hot(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A database at the newest revision."""
    server: Postgres | Mariadb = request.getfixturevalue(request.param)
    with server.database() as url:
        engine = open_engine(url)
        run.upgrade(engine)
        yield engine
        engine.dispose()


PATIENCE = {
    "postgresql": f"SET LOCAL lock_timeout = '{3 * LOCK_TIMEOUT_SECONDS}s'",
    "mysql": f"SET lock_wait_timeout = {3 * LOCK_TIMEOUT_SECONDS}",
}


@pytest.mark.parametrize("hot", databases.CONCURRENT, indirect=True)
def test_a_change_that_waits_for_a_table_lets_the_others_pass(
    hot: Engine, more: Callable[[str], None]
) -> None:
    more('op.add_column("sagas", sa.Column("note", sa.Text(), nullable=True))')
    with ThreadPoolExecutor() as pool:
        with hot.connect() as reader:
            reader.exec_driver_sql("SELECT count(*) FROM sagas")  # Its lock stays until it ends.
            migrating = pool.submit(run.upgrade, hot)
            eventually(lambda: _waits(hot), within=20, describe="the change waits for the reader")
            with hot.begin() as writer:
                writer.exec_driver_sql(PATIENCE[hot.dialect.name])
                writer.exec_driver_sql("UPDATE sagas SET state = state")
            assert not migrating.done()
        migrating.result(60)
    assert run.current(hot) == "more"
    assert "note" in {column["name"] for column in inspect(hot).get_columns("sagas")}


WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT count(*) FROM information_schema.processlist"
    " WHERE db = DATABASE() AND state = 'Waiting for table metadata lock'",
}


def _waits(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.exec_driver_sql(WAITING[engine.dialect.name]).scalar())


def test_an_index_is_built_while_others_write_and_others_want_to_migrate(
    hot: Engine, more: Callable[[str], None]
) -> None:
    more('online.create_index("ix_more", "steps", ["agent"])')
    with hot.connect() as connection:  # What an index that failed halfway leaves behind.
        connection.exec_driver_sql("CREATE INDEX ix_more ON steps (queue)")
        connection.commit()
    with ThreadPoolExecutor() as pool:
        with hot.connect() as writer:
            writer.exec_driver_sql("UPDATE steps SET agent = agent")
            migrating = [pool.submit(run.upgrade, hot) for _ in range(3)]
            eventually(lambda: _waits(hot), within=20, describe="the index waits for the writer")
            with hot.begin() as another:
                another.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
                another.exec_driver_sql("UPDATE steps SET agent = agent")
            writer.commit()
        for one in migrating:
            one.result(60)
    (index,) = [one for one in inspect(hot).get_indexes("steps") if one["name"] == "ix_more"]
    assert index["column_names"] == ["agent"]
    with hot.connect() as connection:
        valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'ix_more'::regclass"
        assert connection.exec_driver_sql(valid).scalar()
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == "0"


SAFE = {"add_column", "create_table", "execute", "get_bind", "f"}
"""Of Alembic's operations, those that hold no lock for as long as a table is large."""


def _unsafe(source: str) -> list[str]:
    """Return what in a revision after the first may hold a lock on a hot table for long."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        whose, name = ast.unparse(node.func.value), node.func.attr
        if whose.startswith(("op", "batch_op")) and whose != "op.get_bind()" and name not in SAFE:
            found.append(f"{whose}.{name}")
        if whose == "op" and name == "add_column":
            column = node.args[1]
            given = {k.arg: ast.unparse(k.value) for k in getattr(column, "keywords", [])}
            if given.get("nullable") != "True" and "server_default" not in given:
                found.append("add_column: neither nullable nor with a server_default")
        if whose == "op" and name == "execute":
            statement = ast.unparse(node.args[0]).upper()
            banned = ("LOCK TABLE", "CREATE INDEX", "CREATE UNIQUE", "SET NOT NULL", " TYPE ")
            found += [f"execute: {word}" for word in banned if word in statement]
    return found


@pytest.mark.parametrize(
    "path", sorted(VERSIONS.glob("0*.py"))[1:], ids=lambda path: str(path.stem)
)
def test_a_revision_after_the_first_holds_no_lock_for_long(path: Path) -> None:
    """An index is built with ``migrations.online``, whose statement waits for nobody's lock."""
    assert _unsafe(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "statement",
    [
        'op.create_index("ix", "steps", ["agent"])',
        'op.alter_column("steps", "agent", nullable=False)',
        'op.create_check_constraint("ck", "steps", "agent <> 1")',
        'op.create_foreign_key("fk", "steps", "sagas", ["a"], ["b"])',
        'op.add_column("steps", sa.Column("a", sa.Text(), nullable=False))',
        'op.execute("CREATE INDEX ix ON steps (agent)")',
        'op.execute("ALTER TABLE steps ALTER agent SET NOT NULL")',
        'batch_op.create_index("ix", ["agent"])',
    ],
)
def test_a_lock_that_would_be_held_for_long_is_noticed(statement: str) -> None:
    assert _unsafe(statement)


# --- again, and at once ---------------------------------------------------------------------------


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


def test_a_failing_revision_leaves_the_tables_that_others_have_made_meanwhile(
    empty: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        with empty[0].connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("CREATE TABLE orders (id integer)")
        raise RuntimeError("the disk is full")

    if empty[0].dialect.name == "sqlite":
        pytest.skip("its one writer lets nobody else make a table meanwhile")
    monkeypatch.setattr("alembic.runtime.migration.HeadMaintainer.update_to_step", fail)
    with pytest.raises(RuntimeError, match="the disk is full"):
        run.upgrade(empty[0])
    assert set(inspect(empty[0]).get_table_names()) - {"alembic_version"} == {"orders"}


@pytest.mark.parametrize("empty", ["mariadb"], indirect=True)
def test_a_revision_that_was_cut_off_after_its_change_is_finished(empty: list[Engine]) -> None:
    """A change of a table cannot be rolled back there."""
    run.upgrade(empty[0])
    before = _fine_print(empty[0])
    with empty[0].begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    run.upgrade(empty[0])
    assert run.current(empty[0]) == run.revisions()[-1]
    assert _fine_print(empty[0]) == before


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
        "validity": _validity(connection, name),
    }


def _validity(connection: Connection, name: str) -> list[str]:
    """Return PostgreSQL's own words for each constraint, and whether it and each index holds.

    Or MariaDB's own words for all of the table.
    """
    if connection.dialect.name == "sqlite":
        return []
    if connection.dialect.name == "mysql":
        made = connection.execute(text(f"SHOW CREATE TABLE {name}")).one()[1]
        return sorted(line.strip(" ,") for line in made.splitlines())
    catalogue = text(
        "SELECT conname || ' ' || pg_get_constraintdef(oid) || ' ' || convalidated "
        "FROM pg_constraint WHERE conrelid = to_regclass(:name) UNION ALL "
        "SELECT indexrelid::regclass || ' ' || indisvalid FROM pg_index "
        "WHERE indrelid = to_regclass(:name)"
    )
    return sorted(row[0] for row in connection.execute(catalogue, {"name": name}))


def _indexes(connection: Connection, name: str) -> list[str]:
    if connection.dialect.name == "mysql":
        return sorted(str(index) for index in inspect(connection).get_indexes(name))
    catalogue = {
        "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = :name",
        "postgresql": "SELECT indexdef FROM pg_indexes WHERE tablename = :name",
    }[connection.dialect.name]
    rows = connection.execute(text(catalogue), {"name": name})
    return sorted(_squeezed(row[0]) for row in rows if row[0])


def _squeezed(statement: str) -> str:
    return re.sub(r"\s+", " ", statement).strip()
