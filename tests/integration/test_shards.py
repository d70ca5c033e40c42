"""Two databases run one load: each saga in one of them, each database with its own supervisor."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from sqlalchemy import Engine, event, func, make_url, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from models import Saga
from models.states import SagaState
from orchestration.database import open_engine
from orchestration.errors import NotFoundError, StartConflictError
from orchestration.shards import Shards
from tasks.shards import open_shard
from tests.support import databases, envelope_agents
from tests.support.bench import Bench

NAMES = ("east", "west")
KEYS = [f"order-{number}" for number in range(40)]
MINUTE = timedelta(minutes=1)


@pytest.fixture(params=databases.EVERY)
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Engine]]:
    """Two databases of a kind."""
    with ExitStack() as stack:
        found = []
        for name in NAMES:
            (folder := tmp_path / name).mkdir()
            url = stack.enter_context(databases.fresh_database(request, folder))
            found.append(open_engine(url))
            stack.callback(found[-1].dispose)
        yield found


@pytest.fixture
def benches(engines: list[Engine]) -> dict[str, Bench]:
    """Of each database its scheduler, its worker and its supervisor; messages are held back."""
    envelope_agents.EFFECTS.clear()
    plain = envelope_agents.plain
    return {n: Bench(e, plain, holds=True) for n, e in zip(NAMES, engines, strict=True)}


@pytest.fixture
def shards(benches: dict[str, Bench]) -> Shards:
    return Shards({name: bench.scheduler for name, bench in benches.items()})


def drained(bench: Bench) -> None:
    """Let its worker run whatever there is a message for."""
    while bench.sent:
        bench.deliver(bench.sent.pop())


def counted(bench: Bench) -> int:
    with bench.store.reading() as connection:
        return connection.execute(select(func.count()).select_from(Saga.__table__)).scalar_one()


def test_two_databases_run_one_load_each_with_its_own_supervisor(
    shards: Shards, benches: dict[str, Bench]
) -> None:
    handles = {key: shards.start("plain", {}, key=key) for key in KEYS}
    assert {name: counted(bench) for name, bench in benches.items()} == Counter(
        shards.home(key) for key in KEYS
    )
    for bench in benches.values():
        bench.sent.clear()  # The brokers lose every message.
    benches["east"].pass_time(MINUTE)
    assert benches["east"].sent
    assert not benches["west"].sent
    benches["west"].pass_time(MINUTE)
    for bench in benches.values():
        drained(bench)
    assert {handle.state() for handle in handles.values()} == {SagaState.COMPLETED}
    assert len(envelope_agents.EFFECTS) == len(KEYS)
    assert {tuple(done) for done in envelope_agents.EFFECTS.values()} == {("done",)}


@pytest.mark.parametrize("gone", NAMES)
def test_one_shard_that_is_away_keeps_no_other_waiting(
    gone: str, shards: Shards, benches: dict[str, Bench]
) -> None:
    def away(dialect: Any, *_: object) -> None:
        raise dialect.loaded_dbapi.OperationalError("it is away")

    (there,) = set(NAMES) - {gone}
    engine = benches[gone].store.engine
    event.listen(engine, "do_connect", away)
    engine.dispose()
    handle = shards.start("plain", {}, key=at_home_on(there, shards))
    drained(benches[there])
    assert handle.state() is SagaState.COMPLETED
    assert shards.of_saga(handle.saga_id) == there
    with pytest.raises(OperationalError, match="it is away"):
        shards.start("plain", {}, key=at_home_on(gone, shards))
    with pytest.raises(OperationalError, match="it is away"):
        shards.of_saga(uuid4())


def at_home_on(name: str, shards: Shards) -> str:
    return next(key for key in KEYS if shards.home(key) == name)


def test_a_start_that_is_repeated_finds_its_saga(shards: Shards) -> None:
    first = shards.start("plain", {"amount": 1}, key="order-1")
    again = shards.start("plain", {"amount": 1}, key="order-1")
    assert (again.saga_id, again.created) == (first.saga_id, False)
    with pytest.raises(StartConflictError):
        shards.start("plain", {"amount": 2}, key="order-1")


def test_a_saga_is_found_where_it_is_also_if_its_start_was_in_a_callers_transaction(
    shards: Shards,
) -> None:
    for name in NAMES:
        with Session(shards[name].store.engine) as session, session.begin():
            handle = shards[name].start("plain", {}, session=session)
        assert shards.of_saga(handle.saga_id) == name
    with pytest.raises(NotFoundError, match="on east, west"):
        shards.of_saga(uuid4())


def test_each_shard_rings_at_a_broker_of_its_own(
    benches: dict[str, Bench], valkey_url: str
) -> None:
    urls = {name: make_url(valkey_url).set(database=str(no)) for no, name in enumerate(NAMES, 1)}
    opened = {
        name: open_shard(
            bench.store.engine.url.render_as_string(hide_password=False),
            urls[name].render_as_string(hide_password=False),
        )
        for name, bench in benches.items()
    }
    shards = Shards(opened)
    for key in KEYS:
        shards.start("plain", {}, key=key)
    for name, url in urls.items():
        opened[name].store.engine.dispose()
        with redis.Redis.from_url(url.render_as_string(hide_password=False)) as client:
            waiting = client.llen("plain")
            client.flushdb()
        assert waiting == Counter(shards.home(key) for key in KEYS)[name]
