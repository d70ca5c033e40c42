"""What a worker's parent makes of a child that is gone."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from billiard.exceptions import WorkerLostError
from celery.signals import task_failure, task_unknown
from sqlalchemy import Engine

from models.states import Direction
from orchestration.recovery import CRASH_LIMIT
from orchestration.roster import release_of
from orchestration.signals import Absent, Unclear
from tasks.app import app
from tests.support.core import Core, line

ACTION, COMPENSATION, PROBE, CLOSE = (
    f"hotels.book{operation}" for operation in ("", ".compensation", ".probe", ".close")
)


@pytest.fixture
def core(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Core:
    core = Core(engine, line("a"))
    parts = SimpleNamespace(scheduler=core.scheduler, leases=core.leases, node=core.node)
    monkeypatch.setattr("tasks.node.runtime", lambda: parts)
    return core


def crash(task: str, saga: UUID, number: int) -> None:
    """Say what Celery says when a child died with a message."""
    error = WorkerLostError("signal 9")
    task_failure.send(
        sender=app.tasks[task], exception=error, args=[str(saga), "a", number], kwargs={}
    )


@pytest.mark.proves("D-25", "row 25")
def test_children_that_die_with_an_action_are_counted_until_it_is_put_aside(core: Core) -> None:
    saga = core.start()
    for crashes in range(CRASH_LIMIT):
        assert core.step(saga, "a").crash_count == crashes
        crash(ACTION, saga, 1)
    assert core.incidents(saga) == ["poison"]


@pytest.mark.proves("D-25", "row 25")
def test_children_that_die_with_a_compensation_are_counted_until_it_is_put_aside(
    core: Core,
) -> None:
    saga = core.start()
    work = core.take(saga, "a")
    core.scheduler.cancel(saga, by="ada")
    core.report(work)
    assert core.step(saga, "a").direction == Direction.BACKWARD
    for _ in range(CRASH_LIMIT):
        crash(COMPENSATION, saga, 2)
    assert core.incidents(saga) == ["poison"]


@pytest.mark.proves("D-25")
@pytest.mark.parametrize("question", [PROBE, CLOSE])
def test_a_child_that_dies_with_a_question_counts_against_no_attempt(
    core: Core, question: str
) -> None:
    """Questions have numbers of their own, which attempts have as well."""
    saga = core.start()
    core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.leases.answer(saga, "a", 1, Unclear("503"))
    core.later(seconds=5).supervisor.sweep()
    core.leases.answer(saga, "a", 2, Absent())
    core.later(minutes=1).supervisor.sweep()
    before = core.step(saga, "a")
    assert (before.state, before.attempt + 1) == ("dispatched", 2)
    for _ in range(CRASH_LIMIT):
        crash(question, saga, 2)
    assert core.step(saga, "a") == before
    core.take(saga, "a")


def test_a_task_that_failed_by_itself_is_no_crash(core: Core) -> None:
    saga = core.start()
    before = core.step(saga, "a")
    task_failure.send(
        sender=app.tasks[ACTION], exception=ValueError("no"), args=[str(saga), "a", 1], kwargs={}
    )
    assert core.step(saga, "a") == before


@pytest.mark.proves("D-22")
def test_a_message_for_an_unknown_agent_is_passed_on_and_a_strange_one_is_not(
    core: Core,
) -> None:
    saga = core.start()
    core.sent.clear()
    strange: list[Any] = [(("no saga",), {}, {}), "nonsense"]
    for payload in [((str(saga), "a", 1), {}, {}), *strange]:
        message = SimpleNamespace(payload=payload)
        task_unknown.send(sender=None, message=message, exc=KeyError(), name="hotels.book3", id="1")
    (passed_on,) = core.sent
    assert (passed_on.path, passed_on.queue) == ("a", release_of(["book"], core.known))
    assert core.refusals(saga) == ["unknown_definition"]
