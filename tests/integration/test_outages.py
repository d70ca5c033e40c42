"""A server that is away, that only lets itself be read, or that is held up by somebody."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from models import Step as StepRow
from models.states import SagaState
from orchestration import Answer, Applied, Step, Workflow
from orchestration.database import open_engine
from tasks.agent import Call, agent
from tests.support import databases
from tests.support.bench import Bench
from tests.support.core import Core, line
from tests.support.mariadb import Mariadb
from tests.support.postgres import Postgres
from tests.support.races import blocked, everything

T = TypeVar("T")


@pytest.fixture(params=databases.CONCURRENT)
def server(request: pytest.FixtureRequest) -> Postgres | Mariadb:
    found: Postgres | Mariadb = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def url(request: pytest.FixtureRequest, server: Postgres | Mariadb) -> Iterator[str]:
    if isinstance(server, Postgres):
        with server.database(request.getfixturevalue("postgres_template")) as url:
            yield url
        return
    template = request.getfixturevalue("mariadb_template")
    with server.database(template) as root, server.owned(root) as url:
        yield url


@pytest.fixture
def core(url: str) -> Iterator[Core]:
    engine = open_engine(url)
    yield Core(engine, line("a"))
    engine.dispose()


OUTAGES: dict[str, Callable[[Any, str], AbstractContextManager[None]]] = {
    "away": lambda server, url: server.away(url),
    "read-only": lambda server, url: server.read_only(url),
}


@pytest.mark.proves("D-18", "D-08", "INV-7")
@pytest.mark.parametrize("outage", OUTAGES)
def test_nothing_is_granted_decided_or_lost_while_the_database_takes_no_writes(
    core: Core, server: Postgres | Mariadb, url: str, outage: str
) -> None:
    waits, held = core.start(), core.start()
    work = core.take(held, "a")
    core.news()
    before = everything(core)
    with OUTAGES[outage](server, url):
        core.now += timedelta(minutes=30)
        for attempt in (
            lambda: core.grant(waits, "a", 1),
            lambda: core.report(work),
            lambda: core.leases.renew(work, "here"),
            core.start,
            core.supervisor.sweep,
        ):
            with pytest.raises(DBAPIError):
                attempt()
        assert core.news() == []
    assert everything(core) == before
    core.supervisor.sweep()
    assert core.states(held) == {"a": "unknown"}
    assert sorted(core.news()) == [("book", "a", 1), ("book.probe", "a", 1)]
    core.done(waits, "a")
    core.report(work)
    assert [core.saga(saga).state for saga in (waits, held)] == [SagaState.COMPLETED] * 2


@pytest.mark.proves("D-26", "SUP-12")
def test_a_transaction_that_stays_open_for_an_hour_holds_up_its_own_saga_only(core: Core) -> None:
    held, free, new = core.start(), core.start(), core.start()
    for saga in (held, free):
        core.take(saga, "a")
    with core.engine.connect().execution_options(isolation_level="REPEATABLE READ") as idle:
        state = select(StepRow.state).where(StepRow.saga_id == new)
        assert idle.execute(state).scalar_one() == "dispatched"
        core.store.lock_saga(idle, held)
        before = core.step(held, "a")
        core.later(hours=1).supervisor.sweep()
        assert blocked(core) == 0
        assert core.step(held, "a") == before
        assert core.states(free) == {"a": "unknown"}
        core.done(new, "a")
        assert core.saga(new).state == SagaState.COMPLETED
        assert idle.execute(state).scalar_one() == "dispatched"
    core.supervisor.sweep()
    assert core.states(held) == {"a": "unknown"}
    assert core.step(held, "a").failure_count == 1


on_call: list[Callable[[], str | None]] = []


@agent("outage.act", queue="outage", idempotent=True, key_retention=timedelta(hours=24))
def act(call: Call[None]) -> str:
    return on_call[-1]() or "done"


@act.probe
def ask(call: Call[None]) -> Answer:
    return Applied("done")


class Heals:
    """A clock by which the outage is over at the first pause, or is over just when all time is."""

    def __init__(self, outage: ExitStack, *, in_time: bool) -> None:
        self.outage = outage
        self.in_time = in_time
        self.failed = False

    def watch(self, write: Callable[..., T]) -> Callable[..., T]:
        """Return the same write; from its first failure on all time is over."""

        def watched(*given: Any, **named: Any) -> T:
            try:
                return write(*given, **named)
            except DBAPIError:
                self.failed = True
                raise

        return watched

    def monotonic(self) -> float:
        if self.in_time or not self.failed:
            return 0.0
        self.outage.close()
        return 1e9

    def sleep(self, seconds: float) -> None:
        del seconds
        self.outage.close()


@pytest.fixture
def bench(url: str) -> Iterator[Bench]:
    engine = open_engine(url)
    step = Step("act", agent="outage.act", pivot=True)
    yield Bench(engine, Workflow("act", version=1, steps=step), holds=True)
    engine.dispose()


@pytest.mark.proves("D-08")
@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("in_time", [True, False])
def test_a_good_result_that_the_database_did_not_take_is_never_taken_for_a_bad_one(
    bench: Bench,
    server: Postgres | Mariadb,
    url: str,
    outage: str,
    in_time: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        clock = bench.envelope.clock = Heals(stack, in_time=in_time)
        for name in ("handle", "handle_unlocked"):
            watched = clock.watch(getattr(bench.scheduler, name))
            monkeypatch.setattr(bench.scheduler, name, watched)
        on_call.append(lambda: stack.enter_context(OUTAGES[outage](server, url)))
        handle = bench.scheduler.start("act")
        with nullcontext() if in_time else pytest.raises(DBAPIError):
            bench.deliver(bench.sent[0])
    bench.holds = False
    for _ in range(3):
        bench.pass_time(timedelta(minutes=10))
    assert handle.state() is SagaState.COMPLETED
    assert bench.step(handle.saga_id, "act").result == "done"
    assert bench.incidents(handle.saga_id) == []
    assert bool(bench.journal(handle.saga_id, "act", "probe")) is not in_time


NARROWER = {
    "postgresql": ("ALTER TABLE steps ALTER COLUMN result TYPE jsonb", "what no jsonb holds: \0"),
    "mysql": ("ALTER TABLE steps MODIFY result VARCHAR(10)", "what no short column holds"),
}


@pytest.mark.proves("D-08")
def test_a_result_that_the_database_can_never_hold_is_a_bad_one(bench: Bench) -> None:
    change, result = NARROWER[bench.store.engine.dialect.name]
    with bench.store.engine.begin() as connection:
        connection.execute(text(change))
    on_call.append(lambda: result)
    handle = bench.scheduler.start("act")
    bench.deliver(bench.sent[0])
    (incident,) = bench.incidents(handle.saga_id)
    assert incident.kind == "invalid_result"
    assert "the database refuses the result" in incident.message


@pytest.mark.proves("D-08")
@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_a_result_that_fits_into_no_packet_of_mariadb_is_a_bad_one(bench: Bench) -> None:
    on_call.append(lambda: "x" * 2**24)
    handle = bench.scheduler.start("act")
    bench.deliver(bench.sent[0])
    (incident,) = bench.incidents(handle.saga_id)
    assert incident.kind == "invalid_result"
    assert "longer than" in incident.message
