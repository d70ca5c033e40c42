"""The PostgreSQL that the tests start when none is given, tested also where one is given."""

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import URL

from tests.support import services
from tests.support.postgres import Postgres, UnavailableError, private_server


@pytest.fixture(scope="module")
def administrator() -> Iterator[URL]:
    try:
        with private_server() as url:
            yield url
    except UnavailableError as error:
        services.missing(str(error))


@pytest.fixture(scope="module")
def durable() -> Iterator[URL]:
    try:
        with private_server(durable=True) as url:
            yield url
    except UnavailableError as error:
        services.missing(str(error))


def plain(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def test_it_asks_for_the_password(administrator: URL) -> None:
    wrong = administrator.set(password="guessed")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(plain(wrong))


def test_it_listens_on_the_loopback_interface_only(administrator: URL) -> None:
    with psycopg.connect(plain(administrator)) as connection:
        shown = connection.execute("SHOW listen_addresses").fetchone()
        sockets = connection.execute("SHOW unix_socket_directories").fetchone()
    assert (shown, sockets) == (("127.0.0.1",), ("",))


def test_databases_are_copies_that_share_nothing(administrator: URL) -> None:
    def fill(url: str) -> None:
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            connection.execute("CREATE TABLE kept (id integer)")

    server = Postgres(administrator)
    template = server.make_template(fill)
    with server.database(template) as one, server.database(template) as two:
        with psycopg.connect(one.replace("+psycopg", "")) as connection:
            connection.execute("INSERT INTO kept VALUES (1)")
        with psycopg.connect(two.replace("+psycopg", "")) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    with server.database(template) as again:
        assert again in {one, two}, "one that was used and emptied is lent again"
        with psycopg.connect(again.replace("+psycopg", "")) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
            connection.execute("ALTER TABLE kept ADD CHECK (id > 0)")
    with server.database(template) as further, server.database(template) as last:
        assert again not in {further, last}, "one whose schema was changed is lent to nobody"
    server.close()

    with psycopg.connect(plain(administrator)) as connection:
        left = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'atalaia%'")
        assert left.fetchall() == []


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
def test_a_durable_one_waits_for_the_disk(durable: URL, setting: str) -> None:
    with psycopg.connect(plain(durable)) as connection:
        assert connection.execute(f"SHOW {setting}").fetchone() == ("on",)
