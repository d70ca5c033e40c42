"""Single statements against others that hold their rows: each does all of its work, or none of it.

They are what PostgreSQL is given for a report, a grant and a start. It looks at a row again when
somebody else has let go of it, and only at that row; what the statement reads otherwise is older.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, text

from models import Saga, Step
from orchestration.events import Done, Reported
from orchestration.work import Work
from tests.support.core import Core, line, postgres_engine
from tests.support.postgres import Postgres
from tests.support.races import blocked
from tests.support.waiting import eventually

A, B = "saga_id = :saga AND path = 'a'", "saga_id = :saga AND path = 'b'"
LATER = "wake_at = wake_at + interval '1 second'"
KEPT = {
    "the saga is locked": "SELECT 1 FROM sagas WHERE id = :saga FOR UPDATE",
    "the saga is looked at later": f"UPDATE sagas SET {LATER} WHERE id = :saga",
    "the step is looked at later": f"UPDATE steps SET {LATER} WHERE {A}",
}
REFUSED = {
    "the saga has another revision": "UPDATE sagas SET revision = revision + 1 WHERE id = :saga",
    "the step has another state": (
        "UPDATE steps SET state = 'retrying', node_id = NULL, pid = NULL, deadline_at = NULL"
        f" WHERE {A}"
    ),
    "the next step has another attempt": f"UPDATE steps SET attempt = attempt + 1 WHERE {B}",
    "the attempt is closed": (
        "UPDATE attempts SET state = 'expired', ended_at = now() WHERE saga_id = :saga"
    ),
}


@pytest.fixture
def engine(postgres: Postgres, postgres_template: str) -> Iterator[Engine]:
    with postgres_engine(postgres, postgres_template) as engine:
        yield engine


@pytest.fixture
def core(engine: Engine) -> Core:
    core = Core(engine, line("a", "b"))
    core.done(core.start(), "a", "b")  # From now on leases are taken as they are expected.
    return core


def against(
    core: Core, act: Callable[[], Any], sql: str, given: dict[str, Any], *, commits: bool = True
) -> Any:
    """Return what ``act`` returned that had to wait for what ``sql`` has locked."""
    with ThreadPoolExecutor(1) as thread, core.engine.connect() as other:
        other.execute(text(sql), given)
        acting = thread.submit(act)
        eventually(lambda: blocked(core) > 0, within=10, describe="it waits")
        (other.commit if commits else other.rollback)()
        return acting.result(10)


def report(core: Core, work: Work) -> bool:
    event = Reported(
        path=work.path, attempt=work.attempt, direction=work.direction,
        incarnation=work.step.incarnation, outcome=Done(result="late"),
    )  # fmt: skip
    assert work.seen is not None
    return core.scheduler.handle_unlocked(
        work.seen, work.definition, event, core, lambda *given: given[2]
    )


@pytest.mark.parametrize("sql", KEPT.values(), ids=KEPT)
def test_a_report_is_written_if_what_it_rests_on_is_what_it_was(core: Core, sql: str) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    assert against(core, lambda: report(core, work), sql, {"saga": saga})
    assert core.states(saga) == {"a": "succeeded", "b": "dispatched"}
    assert core.attempts(saga, "a") == [(1, "succeeded")]


@pytest.mark.parametrize("sql", REFUSED.values(), ids=REFUSED)
def test_of_a_report_that_lost_nothing_is_written(core: Core, sql: str) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.news()
    assert not against(core, lambda: report(core, work), sql, {"saga": saga})
    step = core.step(saga, "a")
    assert (step.state in {"leased", "retrying"}, step.result) == (True, None)
    assert core.step(saga, "b").state == "waiting"
    assert core.saga(saga).revision == (1 if "revision" in sql else 0)
    assert core.attempts(saga, "a") == [(1, "expired" if "expired" in sql else "open")]
    assert core.news() == []


@pytest.mark.parametrize("sql", REFUSED.values(), ids=REFUSED)
def test_what_another_takes_back_has_never_been(core: Core, sql: str) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    assert against(core, lambda: report(core, work), sql, {"saga": saga}, commits=False)
    assert core.states(saga) == {"a": "succeeded", "b": "dispatched"}


def test_a_lease_is_taken_of_a_step_that_is_only_looked_at_later(core: Core) -> None:
    saga = core.start()
    sql = f"UPDATE steps SET {LATER} WHERE {A}"
    work = against(core, lambda: core.grant(saga, "a", 1), sql, {"saga": saga})
    assert work is not None
    assert core.attempts(saga, "a") == [(1, "open")]
    assert core.step(saga, "a").deadline_at == core.now + work.time_left


def test_no_lease_is_taken_of_a_step_that_was_given_up(core: Core) -> None:
    saga = core.start()
    sql = f"UPDATE steps SET state = 'skipped', wake_at = NULL, settled_at = now() WHERE {A}"
    assert against(core, lambda: core.grant(saga, "a", 1), sql, {"saga": saga}) is None
    assert core.attempts(saga, "a") == []
    assert core.step(saga, "a").state == "skipped"


@pytest.mark.parametrize("width", [2, 40], ids=["in one statement", "in several"])
@pytest.mark.parametrize("commits", [True, False], ids=["kept", "taken back"])
def test_a_start_waits_for_another_of_its_key(engine: Engine, commits: bool, width: int) -> None:
    core = Core(engine, line(*(f"s{number:02}" for number in range(width))))
    taken = """
        INSERT INTO sagas
            (id, definition_id, workflow, key, input, state, created_at, deadline_at, wake_at)
        SELECT gen_random_uuid(), id, workflow, 'order 7', 'null', 'running', now(), now(), now()
        FROM definitions
    """
    saga = against(core, lambda: core.start(key="order 7"), taken, {}, commits=commits)
    assert [row.id for row in core.rows(Saga)] == [saga]
    assert len(core.rows(Step)) == (0 if commits else width)
