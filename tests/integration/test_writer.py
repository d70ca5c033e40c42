"""Every write names the attempt and the state that it was decided on, or it does not happen."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, update
from sqlalchemy.exc import IntegrityError

from models import Attempt, Incident, JournalEntry, Saga, Step
from models.states import AttemptState, SagaState, StepState
from orchestration.decide import decide
from orchestration.definition import Step as PlannedStep
from orchestration.definition import Workflow, parallel, sequence
from orchestration.events import (
    CloseIncidents,
    Decision,
    Lost,
    MoveSaga,
    MoveStep,
    OpenIncident,
    Refuse,
)
from orchestration.snapshot import SagaSnapshot
from orchestration.statement import MOST_PARTS, StaleWriteError
from orchestration.writer import apply
from tests.support.core import Core, line


@pytest.fixture
def core(engine: Engine) -> Core:
    return Core(engine, line("a", "b"))


Decided = tuple[SagaSnapshot, list[Decision]]


def write(core: Core, saga: SagaSnapshot, decisions: Sequence[Decision]) -> None:
    with core.store.transaction() as connection:
        apply(connection, saga, decisions, actor="test", now=core.now)


def read(core: Core, saga: Any) -> SagaSnapshot:
    with core.store.transaction() as connection:
        locked = core.store.lock_saga(connection, saga)
    assert locked is not None
    return locked.saga


def add(core: Core, saga: Any, *decisions: Decision) -> None:
    write(core, read(core, saga), decisions)


def decided(core: Core, saga: Any) -> Decided:
    """What the loss of the first attempt leads to, as seen now."""
    seen = read(core, saga)
    return seen, decide(core.definition(), seen, Lost(path="a", attempt=1, why="killed"), core.now)


def everything(core: Core, saga: Any) -> list[Any]:
    return [core.rows(entity) for entity in (Saga, Step, Attempt, Incident, JournalEntry)]


@pytest.mark.proves("W-3", "INV-5", "COL-05")
@pytest.mark.parametrize("changed", [{"attempt": 7}, {"state": "unknown"}])
def test_a_step_that_is_not_what_it_was_is_not_written(core: Core, changed: dict[str, Any]) -> None:
    saga = core.start()
    core.take(saga, "a")
    decisions = decided(core, saga)
    extra = {"deadline_at": None, "node_id": None} if "state" in changed else {}
    with core.store.transaction() as connection:
        table: Any = Step.__table__
        connection.execute(update(table).where(table.c.path == "a").values(changed | extra))
    before = everything(core, saga)
    with pytest.raises(StaleWriteError):
        write(core, *decisions)
    assert everything(core, saga) == before


@pytest.mark.proves("INV-5")
def test_an_attempt_that_has_ended_is_not_ended_again(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    decisions = decided(core, saga)
    with core.store.transaction() as connection:
        table: Any = Attempt.__table__
        connection.execute(update(table).values(state=AttemptState.SUCCEEDED, ended_at=core.now))
    before = everything(core, saga)
    with pytest.raises(StaleWriteError):
        write(core, *decisions)
    assert everything(core, saga) == before


@pytest.mark.proves("INV-14")
def test_a_saga_that_is_not_what_it_was_is_not_written(core: Core) -> None:
    saga = core.start()
    seen = read(core, saga)
    halted = replace(seen, state=SagaState.HALTED)
    move: Decision = MoveSaga(before=seen, after=halted, verb="halt", why="a test")
    write(core, seen, [move])
    with pytest.raises(StaleWriteError):
        write(core, seen, [move])


@pytest.mark.proves("D-10", "D-11")
def test_what_lost_a_race_is_decided_again_on_the_rows_as_they_are_then(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    stale = decided(core, saga)
    core.scheduler.lost(saga, "a", 1, "killed")
    with pytest.raises(StaleWriteError):
        write(core, *stale)
    core.scheduler.lost(saga, "a", 1, "killed again")
    assert core.step(saga, "a").failure_count == 1


@pytest.mark.proves("INV-10", "CT-05")
def test_an_incident_is_open_once_for_each_path_and_kind(core: Core) -> None:
    saga = core.start()
    alarm = OpenIncident(path="a", kind="stuck", message="first")
    add(core, saga, alarm, OpenIncident(path="a", kind="stuck", message="second"))
    add(core, saga, alarm, OpenIncident(path="b", kind="stuck", message="other"))
    assert sorted((row.path, row.message) for row in core.rows(Incident)) == [
        ("a", "first"),
        ("b", "other"),
    ]
    add(core, saga, CloseIncidents(path="a", resolution="retry", by="ada", reason="looked"))
    (closed,) = [row for row in core.rows(Incident) if row.resolved_at is not None]
    assert (closed.path, closed.resolution, closed.resolved_by) == ("a", "retry", "ada")
    add(core, saga, alarm)
    assert core.incidents(saga) == ["stuck", "stuck"]


def test_only_the_kind_that_is_named_is_closed(core: Core) -> None:
    saga = core.start()
    for kind in ("unserved", "stuck"):
        add(core, saga, OpenIncident(path="a", kind=kind, message=""))
    close = CloseIncidents(path="a", resolution="x", by="y", reason="z", kind="unserved")
    add(core, saga, close)
    assert core.incidents(saga) == ["stuck"]


def test_closing_what_is_not_open_is_not_journaled(core: Core) -> None:
    saga = core.start()
    before = core.rows(JournalEntry)
    add(core, saga, CloseIncidents(path="a", resolution="x", by="y", reason="z"))
    assert core.rows(JournalEntry) == before


@pytest.mark.proves("ORCH-02", "CT-08", "CT-05")
def test_a_decision_is_journaled_with_its_row_its_reason_and_who_took_it(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    write(core, *decided(core, saga))
    (entry,) = [row for row in core.rows(JournalEntry) if row.verb == "probe"]
    assert (entry.path, entry.attempt, entry.actor, entry.row) == ("a", 1, "test", "0")
    assert (entry.from_state, entry.to_state) == ("leased", "unknown")
    assert entry.reason == "killed; asks the remote before anything else"


def test_a_quiet_move_is_told_by_its_attempt_only(core: Core) -> None:
    saga = core.start()
    core.done(saga, "a")
    assert [row.verb for row in core.rows(JournalEntry) if row.path == "a"] == []
    assert core.attempts(saga, "a") == [(1, "succeeded")]


@pytest.mark.proves("W-4")
def test_evidence_is_journaled_and_kept_with_its_attempt(core: Core) -> None:
    saga = core.start()
    core.take(saga, "a")
    refusal = Refuse(
        path="a", attempt=1, name="stale_attempt", evidence={"result": 7}, to_attempt=True
    )
    add(core, saga, refusal)
    (attempt,) = core.rows(Attempt)
    assert attempt.late == {"result": 7, "name": "stale_attempt", "at": core.now.isoformat()}
    assert attempt.state == AttemptState.OPEN
    (entry,) = [row for row in core.rows(JournalEntry) if row.verb == "refuse"]
    assert (entry.reason, entry.details) == ("stale_attempt", {"result": 7})


# --- what the database itself refuses ------------------------------------------------------------


@pytest.mark.proves("COL-04", "INV-6", "SAS-05")
@pytest.mark.parametrize(
    "changes",
    [
        {"state": "sleeping"},
        {"direction": "sideways"},
        {"wake_at": None},
        {"state": "leased"},
        {"state": "succeeded", "wake_at": None},
        {"inquiry": "probe"},
    ],
)
def test_a_step_row_that_contradicts_itself_is_refused(core: Core, changes: dict[str, Any]) -> None:
    core.start()
    table: Any = Step.__table__
    dispatched = table.c.state == StepState.DISPATCHED
    with pytest.raises(IntegrityError), core.store.transaction() as connection:
        connection.execute(update(table).where(dispatched).values(changes))


@pytest.mark.parametrize(
    "changes", [{"state": "paused"}, {"state": "completed"}, {"state": "compensating"}]
)
def test_a_saga_row_that_contradicts_itself_is_refused(core: Core, changes: dict[str, Any]) -> None:
    core.start()
    table: Any = Saga.__table__
    with pytest.raises(IntegrityError), core.store.transaction() as connection:
        connection.execute(update(table).values(changes))


def test_a_move_writes_only_what_it_changes(core: Core) -> None:
    """What another transaction has written into other columns stays."""
    saga = core.start()
    core.take(saga, "a")
    seen, decisions = decided(core, saga)
    moves = [d for d in decisions if isinstance(d, MoveStep)]
    with core.store.transaction() as connection:
        table: Any = Step.__table__
        connection.execute(update(table).where(table.c.path == "a").values(queue="elsewhere"))
    write(core, seen, moves)
    assert core.step(saga, "a").queue == "elsewhere"


def test_many_changes_of_one_event_are_written_in_statements_of_bounded_size(
    engine: Engine,
) -> None:
    width = 3 * MOST_PARTS + 1
    names = [f"s{number}" for number in range(width)]
    plan = sequence(booking("first"), parallel(*map(booking, names)))
    core = Core(engine, Workflow("wide", version=1, steps=plan))
    told: list[str] = []

    def listen(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        told.append(statement)

    event.listen(engine, "before_cursor_execute", listen)
    saga = core.scheduler.start("wide", {}).saga_id
    core.done(saga, "first")
    event.remove(engine, "before_cursor_execute", listen)
    assert set(core.states(saga).values()) == {"succeeded", "dispatched"}
    assert max(statement.count("RETURNING 1)") for statement in told) <= MOST_PARTS
    core.done(saga, *names)
    assert core.saga(saga).state == SagaState.COMPLETED


def booking(name: str) -> PlannedStep:
    return PlannedStep(name, agent="book")
