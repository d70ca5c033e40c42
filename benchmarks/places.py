"""Where a run takes place: a home for files, one PostgreSQL and one Redis for all contestants."""

import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
import redis
from sqlalchemy import make_url

from migrations.run import upgrade
from orchestration.database import open_engine
from tasks.embedded import EmbeddedBroker
from tests.support.postgres import Postgres, running

ROOT = Path(__file__).parents[1]
_COMMITS = 100
PEERS = ROOT / ".venv-bench" / "bin"


@dataclass(frozen=True)
class Places:
    """What all contestants share; each bout gets a fresh database and an empty Redis."""

    home: Path
    server: Postgres
    template: str
    redis_url: str
    redis: "redis.Redis"
    administrator: "psycopg.Connection[Any]"

    @contextmanager
    def database(self, *, laid: bool) -> Iterator[str]:
        """Yield the URL of a fresh database, with Atalaia's tables or with nothing in it."""
        with self.server.database(self.template if laid else "template0") as url:
            yield url

    def ask(self, query: str, *values: object) -> Any:
        """Return the first column of the first row that the server answers."""
        row = self.administrator.execute(query, values).fetchone()
        return row[0] if row else None

    def _commit_ms(self) -> float:
        """Return the milliseconds that an insert with its commit takes, the median of many."""
        taken = []
        with (
            self.database(laid=False) as url,
            psycopg.connect(plain(url), autocommit=True) as connection,
        ):
            connection.execute("CREATE TABLE line (no integer)")
            for number in range(_COMMITS):
                began = time.perf_counter()
                connection.execute("INSERT INTO line VALUES (%s)", [number])
                taken.append(time.perf_counter() - began)
        return round(median(taken) * 1000, 2)

    def conditions(self) -> dict[str, Any]:
        """Return what the figures depend on besides the programs."""
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes")
        return {
            "processors": os.cpu_count(),
            "processor": _processor(),
            "commit_ms": self._commit_ms(),
            "load_average_before": round(os.getloadavg()[0], 2),
            "postgresql": {name: self.ask(f"SHOW {name}") for name in names},
            "redis": _version(self.redis),
        }


def plain(url: str) -> str:
    """Return a database's URL as libpq and psycopg want it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@contextmanager
def open_places(redis_url: str | None) -> Iterator[Places]:
    """Open the Redis given, which each bout empties, and the PostgreSQL of the tests.

    What is not given is started: the embedded broker, and PostgreSQL with its usual durability.
    """
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atalaia-bench-")))
        broker_url = redis_url
        if broker_url is None:
            broker = EmbeddedBroker(home / "broker")
            broker_url = broker.start()
            stack.callback(broker.stop)
        server = stack.enter_context(
            running(os.environ.get("ATALAIA_TEST_POSTGRES_URL"), durable=True)
        )
        client = stack.enter_context(redis.Redis.from_url(broker_url))
        url = server.url.render_as_string(hide_password=False)
        administrator = stack.enter_context(psycopg.connect(plain(url), autocommit=True))
        template = server.make_template(_lay)
        yield Places(home, server, template, broker_url, client, administrator)


def _lay(url: str) -> None:
    engine = open_engine(url)
    upgrade(engine)
    engine.dispose()


def _processor() -> str:
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(client: "redis.Redis") -> str:
    told: Any = client.info("server")
    saved: Any = client.config_get("append*")
    name = "valkey" if "valkey_version" in told else "redis"
    version = told.get("valkey_version", told["redis_version"])
    appends = f"{saved.get('appendonly')}, {saved.get('appendfsync')}"
    return f"{name} {version} (append-only file: {appends})"
