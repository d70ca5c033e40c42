"""The database has lost commits: what it says was never sent may have been, and is asked about."""

import pytest
from sqlalchemy import Engine

from models.states import SagaState
from orchestration.contract import AgentContract
from orchestration.definition import Workflow, sequence
from orchestration.errors import RefusedError
from orchestration.signals import Absent, Applied
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
