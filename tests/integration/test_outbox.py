"""A start inside somebody else's transaction shares that transaction's fate, messages included."""

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from models import Saga
from orchestration.errors import StartConflictError
from tests.support.core import Core, line


@pytest.fixture
def core(engine: Engine) -> Core:
    core = Core(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    return core


def orders(core: Core) -> int:
    with core.engine.begin() as connection:
        return int(connection.execute(text("SELECT count(*) FROM orders")).scalar_one())


def order(session: Session, number: int) -> None:
    session.execute(text("INSERT INTO orders VALUES (:n)"), {"n": number})


@pytest.mark.proves("COL-01", "SAS-03", "D-01")
def test_a_saga_is_committed_together_with_the_callers_row_and_then_sent(core: Core) -> None:
    with Session(core.engine) as session:
        order(session, 1)
        handle = core.scheduler.start("stay", session=session)
        assert core.news() == []
        session.commit()
    assert core.news() == [("book", "a", 1)]
    assert orders(core) == 1
    assert core.states(handle.saga_id) == {"a": "dispatched", "b": "waiting"}


@pytest.mark.proves("COL-01", "D-01")
def test_a_saga_is_rolled_back_together_with_the_callers_row_and_never_sent(core: Core) -> None:
    with Session(core.engine) as session:
        order(session, 1)
        core.scheduler.start("stay", session=session)
        session.rollback()
        order(session, 2)
        session.commit()
    assert core.news() == []
    assert core.rows(Saga) == []
    assert orders(core) == 1


def test_a_session_that_is_closed_without_a_commit_sends_nothing(core: Core) -> None:
    with Session(core.engine) as session:
        core.scheduler.start("stay", session=session)
    assert core.news() == []
    assert core.rows(Saga) == []


def test_the_release_of_a_savepoint_is_no_commit(core: Core) -> None:
    with Session(core.engine) as session:
        with session.begin_nested():
            core.scheduler.start("stay", session=session)
        assert core.news() == []
        session.commit()
    assert core.news() == [("book", "a", 1)]


def test_a_savepoint_that_is_rolled_back_leaves_the_rest(core: Core) -> None:
    """A message without a row may go out; the agent finds no step and drops it."""
    with Session(core.engine) as session:
        kept = core.scheduler.start("stay", session=session).saga_id
        savepoint = session.begin_nested()
        gone = core.scheduler.start("stay", session=session).saga_id
        savepoint.rollback()
        assert core.news() == []
        session.commit()
    assert [row.id for row in core.rows(Saga)] == [kept]
    assert ("book", "a", 1) in core.news()
    assert core.grant(gone, "a", 1) is None


def test_savepoints_within_savepoints_wait_for_the_outermost_commit(core: Core) -> None:
    with Session(core.engine) as session:
        with session.begin_nested():
            with session.begin_nested():
                core.scheduler.start("stay", session=session)
            assert core.news() == []
        assert core.news() == []
        session.commit()
    assert len(core.news()) == 1


def test_the_rollback_of_everything_forgets_what_savepoints_held(core: Core) -> None:
    with Session(core.engine) as session:
        with session.begin_nested():
            core.scheduler.start("stay", session=session)
        session.rollback()
        session.execute(text("SELECT 1"))
        session.commit()
    assert core.news() == []


def test_one_session_can_start_sagas_in_one_transaction_after_another(core: Core) -> None:
    with Session(core.engine) as session:
        for expected in (1, 2):
            for _ in range(expected):
                core.scheduler.start("stay", session=session)
            session.commit()
            assert len(core.news()) == expected


def test_a_session_in_a_with_block_sends_at_its_end(core: Core) -> None:
    with Session(core.engine) as session, session.begin():
        core.scheduler.start("stay", session=session)
        assert core.news() == []
    assert len(core.news()) == 1


def test_a_refused_start_leaves_the_callers_transaction_usable(core: Core) -> None:
    core.start({"n": 1}, key="7")
    core.news()
    with Session(core.engine) as session:
        order(session, 1)
        with pytest.raises(StartConflictError):
            core.scheduler.start("stay", {"n": 2}, key="7", session=session)
        session.commit()
    assert orders(core) == 1
    assert core.news() == []


def test_the_same_key_within_one_transaction_is_one_saga(core: Core) -> None:
    with Session(core.engine) as session:
        first = core.scheduler.start("stay", {"n": 1}, key="7", session=session)
        again = core.scheduler.start("stay", {"n": 1}, key="7", session=session)
        session.commit()
    assert first.saga_id == again.saga_id
    assert len(core.news()) == 1


def test_a_definition_that_was_rolled_back_is_stored_by_the_next_start(engine: Engine) -> None:
    core = Core(engine)
    new = line("x", name="new")
    core.registry.add_workflow(new)
    with Session(engine) as session:
        core.scheduler.start(new, session=session)
        session.rollback()
    handle = core.scheduler.start(new)
    assert core.states(handle.saga_id) == {"x": "dispatched"}
