"""A start on a connection of the caller's: in his transaction, which only he ends."""

import json
import sqlite3
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import set_json_loads
from pymysql.cursors import DictCursor
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from models import Saga
from orchestration import store, writer
from orchestration.errors import InputError, StartConflictError
from orchestration.statement import Prepared
from tests.support.core import Core, postgres_engine
from tests.support.postgres import Postgres

ORDER = "INSERT INTO orders VALUES (1)"


@pytest.fixture
def core(engine: Engine) -> Core:
    core = Core(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    return core


class Mysql(pymysql.Connection):
    """PyMySQL's connection, which the tests use as they use the other drivers'."""

    def execute(self, statement: str) -> Any:
        cursor = self.cursor()
        cursor.execute(statement)
        return cursor


def opened(url: str, **options: Any) -> Any:
    """Return a plain connection of the driver, with the driver's own defaults."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return sqlite3.connect(parsed.database or "", **options)
    if parsed.get_backend_name() == "mysql":
        return Mysql(
            host=parsed.host, port=parsed.port or 3306, user=parsed.username,
            password=parsed.password or "", database=parsed.database, **options,
        )  # fmt: skip
    plain = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, **options)


@pytest.fixture
def driver(database_url: str) -> Iterator[Any]:
    connection = opened(database_url)
    yield connection
    connection.close()


def found(core: Core) -> tuple[int, int]:
    """Return how many orders and sagas there are for everybody to see."""
    with core.store.reading() as connection:
        orders = int(connection.execute(text("SELECT count(*) FROM orders")).scalar_one())
    return orders, len(core.rows(Saga))


# --- psycopg, sqlite3 and PyMySQL -----------------------------------------------------------------


@pytest.mark.proves("COL-01", "D-01")
def test_a_saga_is_committed_with_the_drivers_transaction_and_sent_when_that_is_told(
    core: Core, driver: Any
) -> None:
    driver.execute(ORDER)
    handle = core.scheduler.start("stay", {"n": 1}, connection=driver)
    assert found(core) == (0, 0)
    driver.commit()
    assert found(core) == (1, 1)
    assert core.news() == []
    handle.publish()
    assert core.news() == [("book", "a", 1)]
    handle.publish()
    assert core.news() == []
    assert core.states(handle.saga_id) == {"a": "dispatched", "b": "waiting"}


@pytest.mark.proves("COL-01", "D-01")
def test_a_saga_is_rolled_back_with_the_drivers_transaction(core: Core, driver: Any) -> None:
    driver.execute(ORDER)
    handle = core.scheduler.start("stay", connection=driver)
    driver.rollback()
    assert found(core) == (0, 0)
    handle.publish()
    assert core.news() == [("book", "a", 1)]
    assert core.grant(handle.saga_id, "a", 1) is None


def test_what_the_caller_never_published_is_sent_by_the_supervisor(core: Core, driver: Any) -> None:
    core.scheduler.start("stay", connection=driver)
    driver.commit()
    core.later(seconds=5).supervisor.sweep()
    assert core.news() == [("book", "a", 1)]


def test_a_start_can_be_the_first_thing_in_a_transaction_that_the_driver_begins_by_itself(
    core: Core, driver: Any
) -> None:
    core.scheduler.start("stay", connection=driver)
    driver.execute(ORDER)
    driver.rollback()
    assert found(core) == (0, 0)


def test_the_same_key_on_a_connection_is_one_saga_and_another_input_a_conflict(
    core: Core, driver: Any
) -> None:
    first = core.scheduler.start("stay", {"n": 1}, key="7", connection=driver)
    again = core.scheduler.start("stay", {"n": 1}, key="7", connection=driver)
    assert (again.saga_id, again.created) == (first.saga_id, False)
    with pytest.raises(StartConflictError):
        core.scheduler.start("stay", {"n": 2}, key="7", connection=driver)
    driver.execute(ORDER)
    driver.commit()
    assert found(core) == (1, 1)
    again.publish()
    assert core.news() == []


def test_without_an_open_transaction_a_start_is_refused_and_writes_nothing(
    core: Core, database_url: str
) -> None:
    sqlite = database_url.startswith("sqlite")
    driver = opened(database_url, **({"isolation_level": None} if sqlite else {"autocommit": True}))
    with pytest.raises(InputError, match="no transaction is open"):
        core.scheduler.start("stay", connection=driver)
    assert found(core) == (0, 0)
    driver.execute("BEGIN")
    core.scheduler.start("stay", connection=driver)
    driver.execute("COMMIT")
    assert found(core) == (0, 1)
    driver.close()


def test_a_connection_in_pipeline_mode_is_refused(
    postgres: Postgres, postgres_template: str
) -> None:
    """Its statements have no row counts until much later."""
    with postgres_engine(postgres, postgres_template) as engine:
        core = Core(engine)
        url = engine.url.render_as_string(hide_password=False)
        refused = pytest.raises(InputError, match="pipeline mode")
        with opened(url) as driver, driver.pipeline(), refused:
            core.scheduler.start("stay", connection=driver)
        assert core.rows(Saga) == []


def test_a_connection_of_another_kind_is_refused_by_its_name(core: Core) -> None:
    with pytest.raises(InputError, match=r"connection: must be one of .*; got a builtins\.str"):
        core.scheduler.start("stay", connection="sqlite://")


def test_what_is_no_session_is_refused(core: Core) -> None:
    with pytest.raises(InputError, match="session: must be a Session or scoped_session, got 7"):
        core.scheduler.start("stay", session=7)  # type: ignore[arg-type]


def test_a_session_and_a_connection_at_once_are_refused(core: Core, driver: Any) -> None:
    with Session(core.engine) as session, pytest.raises(InputError, match="not both"):
        core.scheduler.start("stay", session=session, connection=driver)


def test_an_error_on_a_connection_is_the_drivers_own(core: Core, driver: Any) -> None:
    errors = (
        sqlite3.OperationalError,
        psycopg.errors.UndefinedTable,
        pymysql.err.ProgrammingError,
    )
    driver.execute("ALTER TABLE sagas RENAME TO hidden")
    with pytest.raises(errors, match="sagas"):
        core.scheduler.start("stay", connection=driver)
    driver.rollback()


# --- what a connection may have been set to ------------------------------------------------------


class Strange(TimestamptzLoader):
    """Reads instants as text, as an application may want it."""

    def load(self, data: Any) -> Any:
        return str(super().load(data))


def test_what_the_caller_has_set_on_a_connection_does_not_matter(
    core: Core, database_url: str
) -> None:
    if database_url.startswith("sqlite"):
        driver = opened(database_url)
        driver.row_factory = lambda cursor, row: {
            c[0]: v for c, v in zip(cursor.description, row, strict=True)
        }
    elif database_url.startswith("mysql"):
        driver = opened(database_url, cursorclass=DictCursor)
    else:
        driver = opened(database_url, row_factory=dict_row)
        driver.adapters.register_loader("timestamptz", Strange)
        set_json_loads(lambda data: json.loads(data, parse_int=str), driver)
    handle = core.scheduler.start("stay", {"n": 1}, key="7", connection=driver)
    assert core.scheduler.start("stay", {"n": 1}, key="7", connection=driver).created is False
    assert driver.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    driver.commit()
    driver.close()
    core.done(handle.saga_id, "a", "b")
    assert core.saga(handle.saga_id).state == "completed"


def test_a_definition_that_is_not_stored_yet_is_stored_in_the_callers_transaction(
    core: Core, driver: Any
) -> None:
    with core.engine.begin() as connection:
        connection.execute(text("DELETE FROM definitions"))
    handle = core.scheduler.start("stay", connection=driver)
    driver.commit()
    core.done(handle.saga_id, "a", "b")
    assert core.saga(handle.saga_id).state == "completed"


# --- SQLAlchemy ----------------------------------------------------------------------------------


def test_a_connection_of_sqlalchemy_core_is_joined_and_published_by_its_owner(core: Core) -> None:
    with core.engine.connect() as connection, connection.begin() as transaction:
        connection.execute(text(ORDER))
        handle = core.scheduler.start("stay", connection=connection)
        transaction.commit()
    assert core.news() == []
    handle.publish()
    assert core.news() == [("book", "a", 1)]
    assert found(core) == (1, 1)


def test_a_connection_of_sqlalchemy_core_without_a_transaction_is_refused(core: Core) -> None:
    with core.engine.connect() as connection, pytest.raises(InputError, match="no transaction"):
        core.scheduler.start("stay", connection=connection)


def test_a_session_in_autocommit_is_refused(core: Core, database_url: str) -> None:
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with Session(engine) as session, pytest.raises(InputError, match="AUTOCOMMIT"):
        core.scheduler.start("stay", session=session)
    engine.dispose()
    assert found(core) == (0, 0)


def test_a_scoped_session_sends_each_transactions_messages_once(core: Core) -> None:
    """Its listeners belong to the session of the moment, not to all that come after it."""
    scoped = scoped_session(sessionmaker(core.engine))
    for _ in range(3):
        core.scheduler.start("stay", session=scoped)
        assert core.news() == []
        scoped.commit()
        assert core.news() == [("book", "a", 1)]
        scoped.remove()
    with Session(core.engine) as session:
        session.execute(text(ORDER))
        session.commit()
    assert not sessionmaker(core.engine)().info
    assert not _listened(scoped)


def _listened(scoped: Any) -> bool:
    with scoped() as session:
        return bool(list(session.dispatch.after_commit))


@pytest.mark.parametrize("compiled_before", [True, False])
def test_a_session_on_the_callers_own_engine_is_joined(
    core: Core, database_url: str, compiled_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(database_url)
    if not compiled_before:
        for statement in every_statement(core):
            monkeypatch.setattr(statement, "_forms", {})
    with Session(engine) as session:
        session.execute(text(ORDER))
        handle = core.scheduler.start("stay", {"n": 1}, session=session)
        session.rollback()
        assert found(core) == (0, 0)
        handle = core.scheduler.start("stay", {"n": 1}, session=session)
        session.commit()
    engine.dispose()
    assert core.news() == [("book", "a", 1)]
    assert isinstance(handle.saga_id, UUID)
    assert found(core) == (0, 1)


def every_statement(core: Core) -> list[Prepared]:
    """The statements of a start, as they are kept from one start to the next."""
    there = [*vars(store).values(), *vars(writer).values(), *vars(core.store).values()]
    there += [one for group in there if isinstance(group, dict) for one in group.values()]
    return [one for one in there if isinstance(one, Prepared)]


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_a_session_on_an_engine_by_sqlalchemys_other_name_for_mariadb_is_joined(
    core: Core, database_url: str
) -> None:
    engine = create_engine(database_url.replace("mysql+", "mariadb+"))
    with Session(engine) as session:
        session.execute(text(ORDER))
        first = core.scheduler.start("stay", {"n": 1}, key="7", session=session)
        again = core.scheduler.start("stay", {"n": 1}, key="7", session=session)
        assert (again.saga_id, again.created) == (first.saga_id, False)
        session.commit()
    engine.dispose()
    assert core.news() == [("book", "a", 1)]
    assert found(core) == (1, 1)


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_a_key_that_was_taken_after_the_callers_snapshot_is_seen(core: Core, driver: Any) -> None:
    """The default isolation of MariaDB shows a transaction what was there when it began to read."""
    assert driver.execute("SELECT count(*) FROM sagas").fetchone() == (0,)
    there = core.start({"n": 1}, key="7")
    assert core.scheduler.start("stay", {"n": 1}, key="7", connection=driver).saga_id == there
    driver.rollback()
