"""The database has lost commits: what it says was never sent may have been, and is asked about."""

from uuid import UUID

import pytest
from sqlalchemy import Engine

from models.states import SagaState
from orchestration.contract import AgentContract
from orchestration.definition import Step, Workflow, sequence
from orchestration.errors import RefusedError
from orchestration.events import Failed, FailureKind, Remedy
from orchestration.signals import Absent, Applied, Closed
from tests.support.core import Core, line, steps

BLIND = AgentContract(name="book", queue="book", close=True, compensation=True)


@pytest.mark.proves("D-17", "INV-1")
def test_what_may_have_been_sent_in_lost_commits_is_asked_about_first(engine: Engine) -> None:
    core = Core(engine, line("a", "b", "c"))
    saga = core.start()
    core.news()
    assert core.scheduler.distrust(by="ada", reason="restored last night's backup") == 1
    assert core.news() == [("book.probe", "a", 1)]
    core.leases.answer(saga, "a", 1, Applied({"seat": 7}))
    # The next step may have been sent as well: it is asked about in its turn, not sent.
    assert core.news() == [("book.probe", "b", 1)]
    core.leases.answer(saga, "b", 1, Absent())
    core.now = core.step(saga, "b").wake_at
    core.supervisor.sweep()
    core.done(saga, "b")
    core.leases.answer(saga, "c", 1, Applied())
    assert core.saga(saga).state == SagaState.COMPLETED
    assert core.step(saga, "a").result == {"seat": 7}
    assert core.step(saga, "a").attempt == 1  # its message is refused from now on
    assert core.scheduler.distrust(by="ada", reason="again") == 0


@pytest.mark.proves("D-17")
def test_without_a_probe_the_key_is_closed_before_anything_is_sent(engine: Engine) -> None:
    core = Core(engine, line("a"), contracts=(BLIND,))
    saga = core.start()
    core.news()
    core.scheduler.distrust(by="ada", reason="fail-over")
    assert core.news() == [("book.close", "a", 1)]
    assert core.step(saga, "a").state == "unknown"


@pytest.mark.proves("D-17", "INV-3")
def test_a_saga_that_turns_back_asks_also_about_steps_that_were_never_reached(
    engine: Engine,
) -> None:
    core = Core(engine, line("a", "b"))
    saga = core.start()
    core.scheduler.distrust(by="ada", reason="fail-over")
    core.news()
    core.scheduler.cancel(saga, by="ada")
    assert sorted(core.news()) == [("book.close", "a", 2), ("book.close", "b", 1)]
    assert core.saga(saga).state == SagaState.COMPENSATING


@pytest.mark.proves("D-17", "D-21")
def test_a_pivot_that_may_have_been_sent_cannot_be_cancelled(engine: Engine) -> None:
    workflow = Workflow("pay", version=1, steps=sequence(*steps("a"), *steps("b", pivot=True)))
    core = Core(engine, workflow)
    saga = core.start()
    core.scheduler.distrust(by="ada", reason="fail-over")
    with pytest.raises(RefusedError, match="past its pivot 'b'"):
        core.scheduler.cancel(saga, by="ada")


def _paying(engine: Engine) -> Core:
    """A core whose sagas look something up, pay (the pivot), and tell the customer."""
    contracts = (
        AgentContract(name="look", queue="book", effect=False),
        AgentContract(name="pay", queue="book", probe=True, close=True),
        AgentContract(name="tell", queue="book", idempotent=True, probe=True),
    )
    tree = sequence(
        Step("a", agent="look"), Step("b", agent="pay", pivot=True), Step("c", agent="tell")
    )
    return Core(engine, Workflow("pay", version=1, steps=tree), contracts=contracts)


def _turned_back(core: Core) -> UUID:
    """A saga that fails before its pivot, when all that may have been sent is in doubt."""
    saga = core.start()
    core.scheduler.distrust(by="ada", reason="fail-over")
    failed = Failed(kind=FailureKind.PERMANENT, type="Full", message="there is none")
    core.report(core.take(saga, "a"), failed)
    assert core.saga(saga).state == SagaState.COMPENSATING
    core.leases.answer(saga, "b", 1, Closed())
    core.news()
    return saga


@pytest.mark.proves("D-17", "INV-3")
def test_a_saga_that_turns_back_does_not_do_what_stands_after_its_pivot(engine: Engine) -> None:
    core = _paying(engine)
    saga = _turned_back(core)
    core.leases.answer(saga, "c", 1, Absent())
    assert core.news() == []
    assert core.states(saga) == {"a": "failed", "b": "failed", "c": "halted"}
    core.scheduler.resolve(saga, "c", Remedy.FAILED, by="ada", reason="it was never sent")
    assert core.saga(saga).state == SagaState.COMPENSATED


@pytest.mark.proves("D-17", "INV-3")
def test_an_effect_after_the_pivot_of_a_saga_that_turns_back_waits_for_a_hand(
    engine: Engine,
) -> None:
    core = _paying(engine)
    saga = _turned_back(core)
    core.leases.answer(saga, "c", 1, Applied())
    assert core.saga(saga).state == SagaState.HALTED
    assert core.incidents(saga) == ["manual_compensation"]
    core.scheduler.resolve(saga, "c", Remedy.COMPENSATED, by="ada", reason="told him by phone")
    assert core.saga(saga).state == SagaState.COMPENSATED


@pytest.mark.proves("D-17")
def test_what_is_in_doubt_without_a_question_is_undone_when_its_turn_comes_too_late(
    engine: Engine,
) -> None:
    barrier = AgentContract(
        name="book", queue="book", compensation=True, compensation_closes_key=True
    )
    core = Core(engine, line("a", "b"), contracts=(barrier,))
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.distrust(by="ada", reason="fail-over")
    core.report(work)
    # An agent that can neither be asked nor repeated safely: what it may have done is undone.
    assert core.news()[-1] == ("book.compensation", "b", 1)
    core.done(saga, "b")
    core.done(saga, "a")
    assert core.saga(saga).state == SagaState.COMPENSATED
