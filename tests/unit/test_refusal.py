import sqlite3
from collections.abc import Iterator

import psycopg.errors
import pymysql
import pytest
import typer
from pydantic import ValidationError
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError

from orchestration.errors import RefusedError
from orchestration.settings import settings
from tasks.refusal import FAILED, REFUSED, of_database, place, told
from web.schema import StartRequest

MIGRATE = "the database is not migrated; run `atalaia migrate`"


@pytest.fixture
def _secret_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ATALAIA_DATABASE_URL", "postgresql://ada:geheim@db.example/atalaia")
    settings.cache_clear()
    yield
    settings.cache_clear()


def operational(text: str) -> OperationalError:
    return OperationalError("SELECT 1", {}, sqlite3.OperationalError(text))


@pytest.mark.parametrize(
    ("error", "line", "status"),
    [
        (RefusedError("it has ended"), "it has ended", REFUSED),
        (typer.BadParameter("Value error, 'x' is not one of 'a'."), "'x' is not one of", REFUSED),
        (TimeoutError("saga 1 is running after 2 s"), "saga 1 is running after 2 s", FAILED),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied", REFUSED),
        (ValueError("odd\n  thing"), "something broke: ValueError: odd thing", FAILED),
        (operational("no such table: sagas"), MIGRATE, REFUSED),
    ],
)
def test_every_error_is_one_line_with_its_status(error: Exception, line: str, status: int) -> None:
    text, code = told(error)
    assert line in text
    assert "\n" not in text
    assert code == status


def test_a_field_of_a_request_is_named() -> None:
    with pytest.raises(ValidationError) as caught:
        StartRequest(workflow="trip", key="k" * 201)
    assert told(caught.value) == ("key: String should have at most 200 characters", REFUSED)


@pytest.mark.parametrize("kind", [psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn])
def test_what_postgresql_does_not_find_is_not_migrated(kind: type[psycopg.Error]) -> None:
    assert of_database(ProgrammingError("SELECT 1", {}, kind("gone"))) == MIGRATE


@pytest.mark.parametrize("code", [1146, 1054])
def test_what_mariadb_does_not_find_is_not_migrated(code: int) -> None:
    assert of_database(ProgrammingError("SELECT 1", {}, pymysql.err.Error(code, "gone"))) == MIGRATE


@pytest.mark.usefixtures("_secret_database")
def test_of_what_pymysql_raises_only_the_words_are_told() -> None:
    error = OperationalError("", {}, pymysql.err.OperationalError(2003, "no route to host"))
    assert of_database(error).endswith(": no route to host")


@pytest.mark.usefixtures("_secret_database")
@pytest.mark.parametrize(
    "error", [operational("connection refused\nmore"), SQLAlchemyError("pool is empty")]
)
def test_a_database_that_is_away_is_named_without_its_password(error: SQLAlchemyError) -> None:
    text = of_database(error)
    assert text.startswith("the database at db.example:5432/atalaia cannot be used (see ATALAIA_")
    assert "geheim" not in text
    assert "\n" not in text


def test_a_busy_database_is_called_busy() -> None:
    assert "is busy" in of_database(operational("database is locked"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////var/lib/atalaia.db", "/var/lib/atalaia.db"),
        ("postgresql://ada:geheim@db:6543/atalaia?password=geheim", "db:6543/atalaia"),
        ("mariadb://ada:geheim@db/atalaia", "db:3306/atalaia"),
    ],
)
def test_a_place_holds_no_secret(url: str, shown: str) -> None:
    assert place(url) == shown
