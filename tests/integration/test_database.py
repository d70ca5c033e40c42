"""What every database must do alike: its clock, its texts, its documents, and what it refuses."""

import json
import sys
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from models import Definition, Saga, Step
from orchestration.database import open_engine
from orchestration.errors import ConfigurationError
from orchestration.statement import Prepared
from orchestration.store import Store
from tests.support.core import Core, line
from tests.support.mariadb import Mariadb
from tests.support.postgres import Postgres
from tests.support.waiting import eventually


@pytest.mark.proves("T-1")
def test_time_goes_on_within_a_transaction(engine: Engine) -> None:
    store = Store(engine)
    with store.transaction() as connection:
        began_at = store.time(connection)
        eventually(
            lambda: store.time(connection) > began_at,
            within=5,
            describe="the clock stands still while a transaction is open",
        )


@pytest.mark.proves("D-01")
def test_keys_are_the_same_only_to_the_letter(engine: Engine) -> None:
    core = Core(engine)
    keys = ["order", "Order", "order ", "örder", "ORDER\t", "注文"]
    assert len({core.start(key=key) for key in keys}) == len(keys)
    assert len({core.start(key=key) for key in keys}) == len(keys)
    assert {row.key for row in core.rows(Saga)} == set(keys)


def test_documents_come_back_as_they_were_written(engine: Engine) -> None:
    core = Core(engine)
    document = {
        "b": [1.0, 1e30, 0.1, 12345678901234567890, -0.0],
        "a": {"": None, "z": 'é\\"\n%s', "y": True},
    }
    written = json.dumps(document)
    saga = core.start(document)
    core.done(saga, "a", result=document)
    work = core.take(saga, "b")
    found = [core.saga(saga).input, core.step(saga, "a").result, work.input, work.results["a"]]
    assert [json.dumps(one) for one in found] == [written] * 4


def test_a_step_without_a_result_is_among_the_results(engine: Engine) -> None:
    core = Core(engine)
    saga = core.start()
    core.done(saga, "a")
    assert core.take(saga, "b").results == {"a": None}


def test_results_that_are_long_together_are_handed_on_whole(engine: Engine) -> None:
    core = Core(engine, line("a", "b", "c"))
    saga = core.start("x" * 2**21)
    results = {"a": 'é"' * 2**18, "b": "y" * 3 * 2**20}
    for path, result in results.items():
        core.done(saga, path, result=result)
    assert core.take(saga, "c").results == results


def test_a_prepared_change_that_contradicts_a_row_is_refused_as_such(engine: Engine) -> None:
    """It is no outage, which would be waited for."""
    core = Core(engine)
    core.start()
    table: Any = Step.__table__
    change = Prepared(update(table), ("state",))
    with pytest.raises(IntegrityError), core.store.transaction() as connection:
        change.change(connection, state="sleeping")


def test_an_idle_connection_that_the_server_has_closed_is_not_lent_again(
    mariadb: Mariadb, mariadb_template: str
) -> None:
    with mariadb.database(mariadb_template) as url:
        core = Core(open_engine(url))
        mariadb.throw_out(core.engine.url.database or "")
        assert core.states(core.start()) == {"a": "dispatched", "b": "waiting"}
        core.engine.dispose()


def test_a_connection_that_its_driver_has_closed_is_not_lent_again(writers: Engine) -> None:
    core = Core(writers)
    with writers.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
    driver.close()
    assert core.states(core.start()) == {"a": "dispatched", "b": "waiting"}


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql"])
def test_without_the_driver_the_extra_that_brings_it_is_named(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'atalaia\[mariadb\]'"):
        open_engine(f"{scheme}://ada:geheim@127.0.0.1/atalaia")


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql"])
def test_each_name_of_the_same_driver_opens_the_same_database(
    scheme: str, mariadb: Mariadb, mariadb_template: str
) -> None:
    with mariadb.database(mariadb_template) as url:
        engine = open_engine(url.replace("mysql+pymysql", scheme))
        with engine.connect() as connection:
            isolation = connection.exec_driver_sql("SELECT @@tx_isolation, @@time_zone").one()
        engine.dispose()
    assert tuple(isolation) == ("READ-COMMITTED", "+00:00")


def test_the_isolation_is_ours_whatever_the_default_of_the_database_is(
    postgres: Postgres, postgres_template: str
) -> None:
    with postgres.database(postgres_template) as url:
        engine = open_engine(url)
        name = engine.url.database
        with engine.begin() as connection:
            change = f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
            connection.exec_driver_sql(change)
        engine.dispose()
        store = Store(open_engine(url))
        for opened in (store.looking, store.at_once, store.writing):
            with opened() as connection:
                driver: Any = connection
                told = driver.cursor().execute("SHOW transaction_isolation").fetchone()
            assert told == ("read committed",)
        store.engine.dispose()


@pytest.mark.parametrize("quick", [True, False], ids=["directly", "SQLAlchemy's way"])
@pytest.mark.parametrize("listened", [True, False], ids=["listened to", ""])
def test_an_error_says_nothing_of_what_was_written(
    engine: Engine, quick: bool, listened: bool
) -> None:
    if listened:
        event.listen(engine, "before_cursor_execute", lambda *_: None)
    store = Store(engine)
    add = Prepared(insert(Definition.__table__).inline(), ("id", "workflow"))
    with (
        pytest.raises(DBAPIError) as refused,
        store.writing() if quick else store.transaction() as connection,
    ):
        add.change(connection, id="geheim", workflow=None)
    for told in (refused.value, refused.value.orig):
        assert "geheim" not in str(told).partition("[SQL")[0]
    assert "definitions" in str(refused.value)
    assert "parameters: (" not in str(refused.value)
