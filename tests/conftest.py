"""What every test may ask for: a fresh database of each kind, and a broker of each kind.

A test that takes ``database_url``, ``engine`` or ``store`` runs on SQLite, PostgreSQL and MariaDB;
one that takes ``broker_url`` runs on the embedded Valkey, on Redis and on RabbitMQ.
"""

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from sqlalchemy import Engine

from tests.support import databases, services
from tests.support.mariadb import Mariadb
from tests.support.postgres import Postgres, UnavailableError, running

if TYPE_CHECKING:
    from orchestration.store import Store


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach what the tests start, however they were started themselves.

    A shell has what it runs in the background ignore it, and every child inherits that.
    """
    is_xdist_worker = hasattr(config, "workerinput")
    if not is_xdist_worker and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def lay_schema(url: str) -> None:
    """Make all tables at ``url``, by the migrations once there are any."""
    from migrations import run
    from models.base import Base
    from orchestration.database import open_engine

    engine = open_engine(url)
    if run.revisions():
        run.upgrade(engine)
    else:
        Base.metadata.create_all(engine)
    engine.dispose()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file that holds the schema and no rows."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    lay_schema(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL server: the given one, or one of our own."""
    try:
        with running(services.optional(services.POSTGRES)) as server:
            yield server
    except UnavailableError as error:
        services.missing(str(error))


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> str:
    """The name of a PostgreSQL database that holds the schema and no rows."""
    return postgres.make_template(lay_schema)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Mariadb]:
    """The MariaDB server that was given."""
    server = Mariadb(services.given(services.MARIADB))
    yield server
    server.close()


@pytest.fixture(scope="session")
def mariadb_template(mariadb: Mariadb) -> str:
    """The name of a MariaDB database that holds the schema and no rows."""
    return mariadb.make_template(lay_schema)


@pytest.fixture(params=databases.EVERY)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with the schema and no rows, which is this test's own."""
    with databases.fresh_database(request, tmp_path) as url:
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """The product's own engine over ``database_url``."""
    from orchestration.database import open_engine

    engine = open_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture(params=databases.CONCURRENT)
def writers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """The product's own engine over a database that lets many write at once."""
    from orchestration.database import open_engine

    with databases.fresh_database(request, tmp_path) as url:
        engine = open_engine(url)
        yield engine
        engine.dispose()


@pytest.fixture
def store(engine: Engine) -> "Store":
    """The product's store over ``engine``."""
    from orchestration.store import Store

    return Store(engine)


@pytest.fixture(scope="session")
def embedded_broker() -> Iterator[str]:
    """The URL of an embedded Valkey that lives as long as the test session."""
    from tasks.embedded import EmbeddedBroker

    with tempfile.TemporaryDirectory(prefix="atalaia-broker-") as directory:
        broker = EmbeddedBroker(directory)
        yield broker.start()
        broker.stop()


@pytest.fixture
def valkey_url(embedded_broker: str) -> str:
    """The URL of the embedded Valkey, emptied."""
    return _emptied(embedded_broker)


@pytest.fixture(
    params=[
        "valkey",
        # All tests share these two servers, so one process runs all tests that use one of them.
        pytest.param("redis", marks=pytest.mark.xdist_group("redis")),
        pytest.param("rabbitmq", marks=pytest.mark.xdist_group("rabbitmq")),
    ]
)
def broker_url(request: pytest.FixtureRequest) -> str:
    """The URL of a broker; Redis and Valkey are emptied first, RabbitMQ keeps its queues."""
    if request.param == "rabbitmq":
        return services.rabbitmq()
    if request.param == "redis":
        return _emptied(services.given(services.REDIS))
    url: str = request.getfixturevalue("valkey_url")
    return url


def _emptied(url: str) -> str:
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url
