"""What ended long ago goes, whole and once; whatever may still come of a saga keeps all of it."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event, func, select, text, update

from models import Attempt, Incident, JournalEntry, Node, Saga, Step
from models.states import SagaState
from orchestration import retention, starting
from orchestration.contract import AgentContract
from orchestration.errors import LeaseLostError, NotFoundError
from orchestration.events import Done, Failed, FailureKind, Remedy
from orchestration.retention import Asked, Kept, Retention
from orchestration.settings import settings
from orchestration.signals import Absent
from orchestration.statement import Prepared
from orchestration.work import Work
from tasks.node import Keeper
from tests.support.core import Core, at_once, counted_commits, line
from tests.support.killed import KILLED
from tests.support.races import RacingCore, in_turn
from tests.support.waiting import eventually
from web.app import create_app

MONTH = timedelta(days=30)
TABLES = (Saga, Step, Attempt, JournalEntry, Incident)
BUSY = Failed(kind=FailureKind.LATER, type="Busy", message="no")
PROBED = AgentContract(
    name="book", queue="book", idempotent=True, key_retention=timedelta(days=40), probe=True,
    compensation=True, request_lifetime=timedelta(minutes=1),
)  # fmt: skip
PAST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def core(engine: Engine) -> Core:
    return retaining(Core(engine, line("a", "b")))


def retaining(core: Core) -> Core:
    core.supervisor.keep_ended = MONTH
    return core


def swept(core: Core) -> int:
    """Sweep once; return how many sagas went."""
    return core.supervisor.sweep().counts["past_retention"]


def kept(core: Core, saga: UUID) -> Kept | None:
    return core.supervisor.retention.judge([saga])[saga]


def completed(core: Core, **start: Any) -> UUID:
    saga = core.start(**start)
    core.done(saga, "a", "b")
    return saga


def sizes(core: Core) -> dict[str, int]:
    with core.store.reading() as connection:
        counts = {
            table.__tablename__: connection.scalar(
                select(func.count()).select_from(table.__table__)
            )
            for table in TABLES
        }
    return {name: int(count or 0) for name, count in counts.items()}


def owners(core: Core) -> set[frozenset[Any]]:
    """Return the sagas that each table holds rows of, but for incidents."""
    sagas = frozenset(row.id for row in core.rows(Saga))
    parts = (Step, Attempt, JournalEntry)
    return {sagas, *(frozenset(row.saga_id for row in core.rows(table)) for table in parts)}


# --- what goes -----------------------------------------------------------------------------------


def test_a_saga_goes_when_its_retention_is_over_and_not_a_moment_before(core: Core) -> None:
    saga = completed(core)
    core.later(days=30)
    core.now -= timedelta(microseconds=1)
    with counted_commits(core.engine) as commits:
        assert swept(core) == 0
    assert commits == []
    core.now += timedelta(microseconds=1)
    assert swept(core) == 1
    assert core.rows(Saga, id=saga) == []
    assert set(sizes(core).values()) == {0}


@pytest.mark.parametrize("end", ["completed", "cancelled", "compensated"])
def test_sagas_of_every_end_go_with_all_that_is_theirs_and_of_nobody_else(
    core: Core, end: str
) -> None:
    other = completed(core)
    before = sizes(core)
    saga = core.start()
    core.done(saga, "a")
    if end == "completed":
        core.done(saga, "b")
    else:
        if end == "cancelled":
            core.scheduler.cancel(saga, by="ada")
        else:
            failure = Failed(kind=FailureKind.PERMANENT, type="No", message="sold out")
            core.report(core.take(saga, "b"), failure)
        core.done(saga, "a")
    assert core.saga(saga).state == end
    core.supervisor.retention.purge([saga])  # Its processes may still live.
    assert core.rows(Saga, id=saga) != []
    core.later(hours=1)
    assert core.supervisor.retention.purge([saga]).sagas == 1
    assert sizes(core) == before
    assert core.saga(other).state == "completed"


def test_without_a_retention_nothing_ever_goes(engine: Engine) -> None:
    core = Core(engine, line("a", "b"))
    completed(core)
    core.later(days=3650)
    assert swept(core) == 0
    assert sizes(core)["sagas"] == 1


def test_a_sweep_deletes_a_bounded_number_those_that_ended_first(engine: Engine) -> None:
    core = retaining(Core(engine, line("a", "b"), batch=2))
    sagas = []
    for _ in range(5):
        core.later(minutes=1)
        sagas.append(completed(core))
    core.later(days=31)
    there = []
    for _ in range(3):
        assert swept(core) in {1, 2}
        there.append({row.id for row in core.rows(Saga)})
    assert there == [set(sagas[2:]), set(sagas[4:]), set()]


def test_sagas_that_are_kept_hold_up_nobody_and_are_looked_at_again(engine: Engine) -> None:
    core = retaining(Core(engine, line("a"), batch=2))
    held = [with_an_open_incident(core) for _ in range(4)]
    core.later(minutes=1)
    last = core.start()
    core.done(last, "a")
    core.later(days=31)
    assert [swept(core) for _ in range(3)] == [0, 0, 1]
    assert {row.id for row in core.rows(Saga)} == set(held)
    core.scheduler.resolve(held[0], "a~late", Remedy.ACKNOWLEDGE, by="ada", reason="seen")
    assert sum(swept(core) for _ in range(3)) == 1


def test_only_what_is_asked_for_goes_by_workflow_and_by_state(engine: Engine) -> None:
    core = Core(engine, line("a"), line("a", name="walk"))
    stay = core.scheduler.start("stay").saga_id
    walk = core.scheduler.start("walk").saga_id
    turned = core.scheduler.start("walk").saga_id
    core.done(stay, "a")
    core.done(walk, "a")
    core.scheduler.cancel(turned, by="ada")
    core.later(days=1)
    those = core.supervisor.retention
    asked = Asked(before=core.now, workflow="walk", states=frozenset({SagaState.COMPLETED}))
    assert those.count(asked) == 1
    assert [[place.id for place in page] for page in those.pages(asked)] == [[walk]]


def test_all_pages_together_are_all_that_ended_each_once(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 2)
    sagas = {completed(core) for _ in range(3)}
    core.later(minutes=1)
    sagas |= {completed(core) for _ in range(4)}
    core.start()
    pages = list(core.supervisor.retention.pages(Asked(before=core.now)))
    assert [len(page) for page in pages] == [2, 2, 2, 1]
    assert Counter(place.id for page in pages for place in page) == Counter(sagas)


# --- what is kept --------------------------------------------------------------------------------


def with_an_open_incident(core: Core) -> UUID:
    """Return a saga that ended, after which an effect turned up and was undone."""
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    core.report(work, BUSY)
    core.report(work, Done(result="room 7"))
    core.done(saga, "a~late")
    return saga


@pytest.mark.parametrize("stands", ["running", "compensating", "halted"])
def test_a_saga_that_has_not_ended_is_kept(core: Core, stands: str) -> None:
    saga = core.start()
    if stands == "compensating":
        core.done(saga, "a")
        core.scheduler.cancel(saga, by="ada")
    if stands == "halted":
        with core.store.transaction() as connection:
            connection.execute(update(Saga.__table__).values(state="halted"))
    assert core.saga(saga).state == stands
    core.now += timedelta(days=365)
    assert core.supervisor.retention.overdue(MONTH) is None
    assert core.supervisor.retention.purge([saga]).sagas == 0
    assert core.saga(saga).state == stands


def test_a_saga_with_an_open_incident_is_kept_until_somebody_answers(engine: Engine) -> None:
    core = retaining(Core(engine, line("a")))
    saga = with_an_open_incident(core)
    core.later(days=365)
    assert swept(core) == 0
    assert kept(core, saga) is Kept.INCIDENT
    core.scheduler.resolve(saga, "a~late", Remedy.ACKNOWLEDGE, by="ada", reason="seen")
    assert swept(core) == 1


def test_a_saga_whose_late_effect_is_being_undone_is_kept(engine: Engine) -> None:
    core = retaining(Core(engine, line("a")))
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    core.report(work, BUSY)
    core.report(work, Done(result="room 7"))
    core.scheduler.resolve(saga, "a~late", Remedy.ACKNOWLEDGE, by="ada", reason="seen")
    assert core.incidents(saga) == []
    core.later(days=365)
    assert swept(core) == 0
    assert kept(core, saga) is Kept.STEP
    core.done(saga, "a~late")
    core.later(minutes=10)
    assert swept(core) == 1


def test_a_saga_whose_late_effect_is_looked_out_for_is_kept_until_the_watch_is_over(
    engine: Engine,
) -> None:
    core = Core(engine, line("a"), contracts=[PROBED])
    saga = core.start()
    core.take(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    core.scheduler.lost(saga, "a", 1, "killed")
    absent(core, saga, "a")
    assert core.states(saga) == {"a": "failed", "a~late": "unknown"}
    assert core.saga(saga).state == "cancelled"
    core.now += timedelta(days=31)
    assert core.supervisor.retention.purge([saga]).kept == {Kept.STEP: 1}
    core.now += timedelta(days=10)
    absent(core, saga, "a~late")
    assert core.states(saga)["a~late"] == "skipped"
    assert core.supervisor.retention.purge([saga]).sagas == 1


def absent(core: Core, saga: UUID, path: str) -> None:
    """Have the partner say that it knows nothing until that has settled the step."""
    while core.states(saga)[path] == "unknown":
        core.leases.answer(saga, path, core.step(saga, path).inquiry_no, Absent())
        core.later(minutes=10).supervisor.sweep()


def test_a_saga_with_an_open_attempt_is_kept(core: Core) -> None:
    """No way leads there but a hand in the database; then a person has to look at it."""
    saga = completed(core)
    core.later(days=31)
    with core.store.transaction() as connection:
        changed = update(Attempt.__table__).where(Attempt.path == "a")
        connection.execute(changed.values(state="open", ended_at=None))
    assert swept(core) == 0
    assert kept(core, saga) is Kept.ATTEMPT


@pytest.mark.parametrize(
    ("contract", "until"),
    [
        (PROBED, timedelta(minutes=5, seconds=10) + timedelta(minutes=1)),
        (AgentContract(name="book", idempotent=True), timedelta(minutes=5, seconds=10)),
    ],
    ids=["the remote enforces a lifetime", "only our own process could still report"],
)
def test_a_saga_is_kept_until_every_request_of_its_attempts_is_dead_and_visible(
    engine: Engine, contract: AgentContract, until: timedelta
) -> None:
    core = Core(engine, line("a", pivot=True), contracts=[contract])
    saga = core.start()
    core.done(saga, "a")
    core.now += until - timedelta(microseconds=1)
    assert kept(core, saga) is Kept.HORIZON
    assert core.supervisor.retention.purge([saga]).kept == {Kept.HORIZON: 1}
    core.now += timedelta(microseconds=1)
    assert kept(core, saga) is None
    assert core.supervisor.retention.purge([saga]).sagas == 1


def test_an_effect_that_shows_between_the_look_and_the_lock_keeps_the_saga(
    engine: Engine,
) -> None:
    core = retaining(Core(engine, line("a")))
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    core.report(work, BUSY)
    core.later(days=31)
    those = core.supervisor.retention

    def look(sagas: Any) -> Any:
        verdicts = Retention.judge(those, sagas)
        core.report(work, Done(result="room 7"))
        return verdicts

    those.judge = look  # type: ignore[method-assign]
    assert those.purge([saga]).kept == {Kept.INCIDENT: 1}
    assert core.states(saga) == {"a": "failed", "a~late": "dispatched"}


# --- beside others -------------------------------------------------------------------------------


def test_two_purges_at_once_delete_each_saga_once(core: Core) -> None:
    sagas = [completed(core) for _ in range(20)]
    live = core.start()
    core.later(days=31)
    those = core.supervisor.retention
    done = at_once(lambda: those.purge(sagas), lambda: those.purge(sagas[::-1]))
    assert sum(one.sagas for one in done) <= 20, done
    those.purge(sagas)
    assert [row.id for row in core.rows(Saga)] == [live]


def test_a_purge_beside_running_work_hinders_nobody(core: Core) -> None:
    old = [completed(core) for _ in range(60)]
    core.later(days=31)
    new = [core.start() for _ in range(5)]
    those = core.supervisor.retention

    def work() -> None:
        for saga in new:
            core.done(saga, "a", "b")

    failures = [
        end
        for end in at_once(work, lambda: those.purge(old[:30]), lambda: those.purge(old[30:]))
        if isinstance(end, Exception)
    ]
    assert failures == []
    assert {row.id for row in core.rows(Saga)} == set(new)
    assert {row.state for row in core.rows(Saga)} == {"completed"}


@pytest.fixture
def racing(writers: Engine) -> RacingCore:
    return RacingCore(writers, line("a"))


def given_up(core: Core) -> tuple[UUID, Work]:
    """Return a saga that ended a month ago, and the work that it did not wait for."""
    saga = core.start(key="order-17")
    work = core.take(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    core.report(work, BUSY)
    core.later(days=31)
    return saga, work


def test_a_late_report_waits_for_the_purge_and_is_refused(racing: RacingCore) -> None:
    saga, work = given_up(racing)
    those = racing.supervisor.retention
    raced = in_turn(racing, lambda: those.purge([saga]), lambda: racing.report(work))
    assert raced.won.sagas == 1
    assert raced.lost is None
    assert set(sizes(racing).values()) == {0}


def test_a_purge_passes_by_a_saga_that_a_late_report_has_locked(racing: RacingCore) -> None:
    saga, work = given_up(racing)
    those = racing.supervisor.retention
    raced = in_turn(racing, lambda: racing.report(work), lambda: those.purge([saga]), blocks=False)
    assert (raced.won, raced.lost.sagas) == (None, 0)
    assert racing.states(saga) == {"a": "failed", "a~late": "dispatched"}


def test_a_message_that_comes_twice_waits_for_the_purge_and_is_refused(
    racing: RacingCore,
) -> None:
    saga, _ = given_up(racing)
    those = racing.supervisor.retention
    raced = in_turn(racing, lambda: those.purge([saga]), lambda: racing.grant(saga, "a", 1))
    assert raced.won.sagas == 1
    assert raced.lost is None
    assert set(sizes(racing).values()) == {0}


def test_a_start_under_the_key_waits_for_the_purge_and_starts_another_saga(
    racing: RacingCore,
) -> None:
    saga, _ = given_up(racing)
    those = racing.supervisor.retention
    raced = in_turn(racing, lambda: those.purge([saga]), lambda: racing.start(key="order-17"))
    assert raced.won.sagas == 1
    assert [row.id for row in racing.rows(Saga)] == [raced.lost]
    assert raced.lost != saga


# --- afterwards ----------------------------------------------------------------------------------


def test_a_key_lives_as_long_as_its_saga_and_then_starts_another(core: Core) -> None:
    first = completed(core, key="order-17", value=None)
    core.later(days=29)
    assert swept(core) == 0
    assert core.start(key="order-17") == first
    core.later(days=1)
    assert swept(core) == 1
    second = core.start(key="order-17")
    assert second != first
    assert core.start(key="order-17") == second


def test_a_start_whose_key_is_freed_as_it_looks_starts_a_saga(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    saga = completed(core, key="order-17")
    core.later(days=31)
    look = starting.saga_of_key
    gone: list[int] = []

    def purge_first(connection: Any, workflow: str, key: str) -> Any:
        if not gone:
            deletions = [
                text(f"DELETE FROM {one}") for one in ("attempts", "steps", "journal", "sagas")
            ]
            gone.extend(Prepared(one).change(connection) for one in deletions)
        return look(connection, workflow, key)

    monkeypatch.setattr("orchestration.scheduler.saga_of_key", purge_first)
    assert core.start(key="order-17") != saga
    assert gone[0] == 2


def test_whatever_still_comes_for_a_purged_saga_is_refused_without_a_trace(core: Core) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    core.report(work, BUSY)
    core.later(days=31)
    assert swept(core) == 1
    core.news()
    empty = sizes(core)
    core.report(work, Done(result="room 7"))
    assert core.grant(saga, "a", 2) is None
    assert core.leases.inquiry(saga, "a", 1, "probe") is None  # type: ignore[arg-type]
    core.leases.answer(saga, "a", 1, Absent())
    with pytest.raises(LeaseLostError):
        core.leases.renew(work, None)
    core.leases.give_back(core.node, saga, {"a"}, "its envelope failed")
    assert not core.scheduler.wake(saga, "a")
    assert not core.scheduler.crashed(saga, "a", 1)
    assert not core.scheduler.hasten(saga, "a")
    with pytest.raises(NotFoundError, match="there is no saga"):
        core.scheduler.cancel(saga, by="ada")
    assert (core.news(), sizes(core)) == ([], empty)


def test_a_success_that_is_reported_for_a_purged_saga_is_logged(
    core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    core.report(work, BUSY)
    core.later(days=31)
    assert swept(core) == 1
    core.report(work, Done(result="room 7"))
    (record,) = [one for one in caplog.records if "refused" in one.getMessage()]
    assert str(saga) in record.getMessage()
    assert "purged" in record.getMessage()
    assert record.levelname == "WARNING"


def test_the_web_says_that_a_purged_saga_is_not_there(core: Core) -> None:
    saga = completed(core)
    core.later(days=31)
    with TestClient(create_app(core.scheduler)) as client:
        assert client.get(f"/sagas/{saga}").status_code == 200
        assert swept(core) == 1
        for answer in (client.get(f"/sagas/{saga}"), client.post(f"/sagas/{saga}/cancel")):
            assert answer.status_code == 404
            assert answer.json() == {"detail": f"there is no saga {saga}"}


# --- workers -------------------------------------------------------------------------------------


def test_workers_that_ended_long_ago_go_with_the_sagas_and_others_stay(core: Core) -> None:
    ended, holding = core.join("ended"), core.join("holding")
    saga = core.start()
    core.take(saga, "a", holding)
    core.roster.end(ended.id)
    core.roster.end(holding.id)
    young = core.join("young")
    core.later(days=31)
    core.roster.end(young.id)
    those = core.supervisor.retention
    before = those.ended_before(MONTH)
    assert those.purge_nodes(before, 10) == 1
    assert set(core.nodes()) == {"holding", "worker", "young"}
    core.scheduler.lost(saga, "a", 1, "its node has ended")
    assert those.purge_nodes(before, 10) == 1
    assert core.nodes() == {"worker": True, "young": False}


def test_a_sweep_forgets_workers_when_there_is_a_saga_to_be_deleted(core: Core) -> None:
    core.roster.end(core.join("ended").id)
    completed(core)
    core.later(days=31)
    swept(core)
    assert [row.name for row in core.rows(Node)] == ["worker"]


def test_a_worker_that_was_silent_until_it_was_forgotten_enters_again_under_its_id(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = SimpleNamespace(
        scheduler=core.scheduler, roster=core.roster, supervisor=core.supervisor,
        settings=settings(), known=core.known,
    )  # fmt: skip
    monkeypatch.setattr("tasks.node.runtime", lambda: parts)
    keeper = Keeper(core.node, children=set)
    core.now += timedelta(days=31)
    core.supervisor.sweep_dead_nodes()
    assert core.supervisor.retention.purge_nodes(core.now, 10) == 1
    keeper.beat()
    assert core.nodes() == {"worker": True}
    saga = core.start()
    core.take(saga, "a", core.node)
    assert [held.saga_id for held in core.roster.held_by(core.node.id)] == [saga]
    (row,) = core.rows(Node)
    assert row.definitions == sorted(core.known)


# --- killed --------------------------------------------------------------------------------------


@pytest.fixture
def long_ago(engine: Engine, database_url: str) -> Core:
    core = Core(engine, line("a", "b"))
    core.now = datetime(2020, 1, 1, tzinfo=UTC)
    core.join("then")
    return core


def killed_at(core: Core, url: str, transaction: int, *words: str) -> None:
    """Run a purge that is killed before it commits its n-th transaction."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(transaction), "purge", "--yes", *words],
        env={"ATALAIA_DATABASE_URL": url, "PYTHONPATH": "."},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -9, done


def test_a_purge_that_is_killed_midway_leaves_whole_sagas_only(
    long_ago: Core, database_url: str
) -> None:
    for _ in range(retention.AT_ONCE + 10):
        completed(long_ago)
    killed_at(long_ago, database_url, 2)
    assert len(owners(long_ago)) == 1
    assert sizes(long_ago)["sagas"] == 10

    def purged() -> bool:
        """The server may not know for a moment that the killed one is gone."""
        ids = [row.id for row in long_ago.rows(Saga)]
        long_ago.now = datetime(2021, 1, 1, tzinfo=UTC)
        long_ago.supervisor.retention.purge(ids)
        return not long_ago.rows(Saga)

    eventually(purged, within=20, describe="a second purge takes the rest")
    assert set(sizes(long_ago).values()) == {0}


# --- indexes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "index"),
    [
        (lambda those: those.overdue(MONTH), "ix_sagas_ended"),
        (lambda those: those.page(Asked(before=PAST), retention.FIRST, 50), "ix_sagas_ended"),
        (lambda those: those.count(Asked(before=PAST)), "ix_sagas_ended"),
        (lambda those: those.purge_nodes(PAST, 1), "ix_steps_held_by_node"),
    ],
)
@pytest.mark.parametrize("writers", ["postgres"], indirect=True)
def test_what_is_looked_for_is_found_by_an_index(
    racing: RacingCore, look: Callable[[Retention], Any], index: str
) -> None:
    assert index in plans(racing, lambda: look(racing.supervisor.retention), "SELECT")


@pytest.mark.parametrize("writers", ["postgres"], indirect=True)
def test_a_saga_is_judged_and_deleted_by_indexes_only(racing: RacingCore) -> None:
    saga, _ = given_up(racing)
    those = racing.supervisor.retention
    assert "Seq Scan" not in plans(racing, lambda: those.judge([saga]), "SELECT")
    assert "Seq Scan" not in plans(racing, lambda: those.purge([saga]), "DELETE")


@pytest.mark.parametrize("table", ["steps", "incidents", "journal"])
@pytest.mark.parametrize("writers", ["postgres"], indirect=True)
def test_a_deleted_saga_is_looked_for_by_an_index_in_what_refers_to_it(
    racing: RacingCore, table: str
) -> None:
    """The server itself looks, once for each saga, so EXPLAIN has to be asked separately."""
    asked = f"SELECT 1 FROM {table} WHERE saga_id = '{UUID(int=7)}' FOR KEY SHARE"
    with racing.engine.begin() as connection:
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        plan = "\n".join(row[0] for row in connection.execute(text(f"EXPLAIN {asked}")))
    assert "Seq Scan" not in plan, plan


def plans(core: Core, act: Callable[[], Any], kind: str) -> str:
    """Return how PostgreSQL runs each statement of a kind, where it may choose an index."""
    asked: list[tuple[str, Any]] = []

    def listen(connection: Any, cursor: Any, statement: str, given: Any, *rest: Any) -> None:
        if statement.startswith(kind) and "clock_timestamp" not in statement:
            asked.append((statement, given))

    event.listen(core.engine, "before_cursor_execute", listen)
    act()
    event.remove(core.engine, "before_cursor_execute", listen)
    told = ""
    with core.engine.begin() as connection:
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        for statement, given in asked:
            plan = connection.exec_driver_sql(f"EXPLAIN {statement}", given)
            told += "\n".join(row[0] for row in plan)
    assert told
    return told
