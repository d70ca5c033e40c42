"""A lease that is taken by the definition that a path had last, and when that is not done."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine

from models import Attempt, JournalEntry, Step
from orchestration.definition import Workflow, parallel
from orchestration.snapshot import StepSnapshot
from orchestration.work import Work
from tests.support.core import BOOK, Core, at_once, line, steps

MINUTE = timedelta(minutes=1)
IDS = ("saga_id", "id")


class Expecting(Core):
    """A core that has run a saga, and knows for which leases it had to read first."""

    def __init__(self, engine: Engine, *workflows: Workflow, **named: Any) -> None:
        super().__init__(engine, *workflows, **named)
        self.read_first: list[str] = []
        take = self.leases._take

        def counted(saga_id: UUID, step: StepSnapshot, *given: Any) -> bool:
            self.read_first.append(step.path)
            return take(saga_id, step, *given)

        self.leases._take = counted  # type: ignore[method-assign, assignment]
        self.done(self.start(), "a")
        self.read_first.clear()

    @property
    def at_once(self) -> bool:
        """Whether the last leases were all taken without reading first; forgets them."""
        found, self.read_first[:] = not self.read_first, []
        return found


@pytest.fixture
def core(engine: Engine) -> Expecting:
    return Expecting(engine, line("a", "b"))


def written(core: Core, saga: UUID) -> list[dict[str, Any]]:
    rows = [*core.rows(Step, saga_id=saga), *core.rows(Attempt, saga_id=saga)]
    return [{k: v for k, v in row._mapping.items() if k not in IDS} for row in rows]


# --- it is taken ---------------------------------------------------------------------------------


@pytest.mark.proves("SAS-05", "COL-02", "W-2")
@pytest.mark.parametrize("properties", [{}, {"heartbeat_timeout": MINUTE}], ids=["", "heartbeat"])
def test_it_is_the_lease_that_is_given_after_a_reading(
    engine: Engine, properties: dict[str, Any]
) -> None:
    core = Expecting(engine, line("a", "b", timeout=5 * MINUTE, **properties))
    expected, other = core.start({"n": 1}), core.start({"n": 1})
    work = core.take(expected, "a")
    assert core.at_once is core.store.reads_changes
    core.leases._expected.clear()
    same = core.take(other, "a")
    assert not core.at_once
    assert written(core, expected) == written(core, other)
    assert work.step == same.step
    assert (work.input, work.results, work.time_left) == (same.input, same.results, same.time_left)
    silence = properties.get("heartbeat_timeout", 5 * MINUTE)
    row = core.step(expected, "a")
    assert (row.wake_at, row.deadline_at) == (core.now + silence, core.now + 5 * MINUTE)


def test_what_was_read_with_it_is_decided_on(core: Expecting) -> None:
    saga = core.start()
    core.report(core.take(saga, "a"))
    work = core.take(saga, "b")
    assert work.results == {"a": None}
    core.report(work)
    assert core.saga(saga).state == "completed"


@pytest.mark.proves("COMP-01")
def test_a_step_that_is_undone_is_taken_so_too(core: Expecting) -> None:
    saga = core.start()
    core.done(saga, "a", result={"seat": "1A"})
    core.scheduler.cancel(saga, by="ada")
    core.at_once  # noqa: B018 - forgets what was before
    work = core.take(saga, "a")
    assert core.at_once is core.store.reads_changes
    assert (work.direction, work.attempt, work.own_result) == ("backward", 2, {"seat": "1A"})
    assert [row.direction for row in core.rows(Attempt, saga_id=saga, path="a", no=2)] == [
        "backward"
    ]


# --- it is not -----------------------------------------------------------------------------------


@pytest.mark.proves("GM-08")
def test_another_version_has_leases_of_its_own_length(engine: Engine) -> None:
    core = Expecting(engine, line("a"), line("a", version=2, timeout=2 * MINUTE))
    for turn in range(4):
        workflow = core.workflows[turn % 2]
        saga = core.scheduler.start(workflow).saga_id
        left = core.take(saga, "a").time_left
        assert left == workflow.by_name["a"].timeout, turn
    assert not core.at_once


@pytest.mark.proves("D-22")
def test_a_definition_that_is_no_longer_known_is_not_taken(core: Expecting) -> None:
    saga = core.start()
    before = core.step(saga, "a")
    assert core.leases.grant(saga, "a", 1, core.node, {"another definition"}) is None
    assert core.refusals(saga) == ["unknown_definition"]
    assert core.step(saga, "a") == before


@pytest.mark.proves("D-03", "D-05", "O-1", "IC-03")
def test_what_is_not_dispatched_for_the_message_is_not_taken(core: Expecting) -> None:
    saga = core.start()
    core.take(saga, "a")
    before = written(core, saga)
    assert [core.grant(saga, "a", number) for number in (1, 2)] == [None, None]
    assert core.refusals(saga) == ["duplicate_delivery", "not_dispatched"]
    assert written(core, saga) == before


def test_a_step_that_is_taken_after_all_is_no_longer_asked_about(core: Expecting) -> None:
    saga = core.start()
    for _ in range(2):
        core.now = core.step(saga, "a").wake_at
        core.scheduler.wake(saga, "a", unserved=True)
    assert core.incidents(saga) == ["unserved"]
    core.take(saga, "a")
    assert not core.at_once
    assert core.incidents(saga) == []


def test_what_depends_on_the_time_that_a_step_has_left_is_read_first(engine: Engine) -> None:
    core = Expecting(engine, line("a", timeout=5 * MINUTE, schedule_to_close=6 * MINUTE))
    saga = core.start()
    core.now += 2 * MINUTE
    assert core.take(saga, "a").time_left == 4 * MINUTE
    assert not core.at_once


@pytest.mark.proves("K-4", "INV-1")
def test_a_key_that_may_be_forgotten_is_not_sent(engine: Engine) -> None:
    forgetful = replace(BOOK, probe=False, key_retention=60 * MINUTE)
    core = Expecting(engine, contracts=(forgetful,))
    saga = core.start()
    core.take(saga, "a")
    core.scheduler.lost(saga, "a", 1, "killed")
    core.later(hours=1)
    assert core.step(saga, "a").dispatch_count == 1
    assert core.grant(saga, "a", 2) is None
    assert core.refusals(saga) == ["key_may_be_forgotten"]
    assert core.attempts(saga, "a") == [(1, "expired")]


@pytest.mark.proves("D-05", "SAS-13", "COL-02", "IC-03")
def test_one_of_many_that_expect_it_gets_the_lease(engine: Engine) -> None:
    core = Expecting(engine, Workflow("wide", version=1, steps=parallel(*steps(*"abcde"))))
    core.done(core.start(), *"abcde")
    core.at_once  # noqa: B018 - forgets what was before
    saga = core.start()
    for path in "abcde":
        taken = at_once(*[lambda path=path: core.grant(saga, path, 1)] * 4)
        assert [isinstance(work, Work) for work in taken].count(True) == 1, taken
        assert core.attempts(saga, path) == [(1, "open")]
    assert set(core.refusals(saga)) <= {"duplicate_delivery", "lost_the_race"}
    assert len(core.refusals(saga)) == 3 * 5


def test_a_refusal_leaves_one_entry(core: Expecting) -> None:
    saga = core.start()
    core.take(saga, "a")
    assert core.grant(saga, "a", 1) is None
    (entry,) = core.rows(JournalEntry, saga_id=saga)
    assert (entry.verb, entry.path, entry.attempt, entry.actor) == ("refuse", "a", 1, "worker")
