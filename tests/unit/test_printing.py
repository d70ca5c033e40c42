from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console

from models.states import SagaState, StepState
from tasks.findings import Finding, Level
from tasks.printing import (
    duration,
    finding_lists,
    finding_table,
    incident_table,
    plain,
    saga_story,
    saga_table,
)
from web.schema import IncidentShown, SagaShown, SagaSummary

START = datetime(2026, 11, 29, 10, 0, tzinfo=UTC)
SAGA = UUID("0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000")


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def printed(value: Any) -> str:
    console = Console(file=StringIO(), width=200, highlight=False, markup=False)
    console.print(value)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def step(path: str, state: str, **more: Any) -> dict[str, Any]:
    return {
        "path": path, "kind": "agent", "agent": f"{path}s.book", "queue": f"{path}s",
        "direction": "forward", "state": state, "attempt": 1, "failure_count": 0, "inquiry": None,
        "wake_at": after(60), "settled_at": None, "result": None, "error": None, **more,
    }  # fmt: skip


def saga(*steps: dict[str, Any], **more: Any) -> SagaShown:
    return SagaShown.model_validate(
        {
            "id": SAGA, "workflow": "trip", "key": "order-1", "state": "running", "version": 3,
            "created_at": START, "ended_at": None, "abort": None, "input": {"who": "Ada"},
            "deadline_at": after(3600), "results": {}, "steps": steps, "attempts": [],
            "incidents": [], "timeline": [], **more,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (59.994, "59.99 s"),
        (60, "1 min 0 s"),
        (3661, "1 h 1 min"),
        (49 * 3600, "2 d 1 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == text


def test_text_from_outside_cannot_speak_to_the_terminal() -> None:
    assert plain("a\x1b[31m\nb\x07") == "a\N{REPLACEMENT CHARACTER}[31m b\N{REPLACEMENT CHARACTER}"
    assert plain({"ö": 1}) == '{"ö": 1}'
    evil = saga(step("flight", "failed", error={"type": "E", "message": "[bold]\x1b]0;x\x07"}))
    assert "[bold]" in printed(saga_story(evil))
    assert "\x1b" not in printed(saga_story(evil))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (step("car", "waiting", attempt=0, wake_at=None), "· car waiting cars.book"),
        (step("car", "dispatched"), "waits for a worker on cars, is sent again at 10:01:00"),
        (step("car", "succeeded", result={"ref": 1}), '✔ car succeeded cars.book {"ref": 1}'),
        (
            step("car", "retrying", error={"type": "Busy", "message": "later"}),
            "tried again at 10:01:00; Busy: later",
        ),
        (step("car", "unknown", inquiry="close"), "close asked, looked at again at 10:01:00"),
        (step("car", "leased", direction="backward"), "leased (compensation)"),
        (
            step("car", "failed", error={"type": "Sold", "message": "out"}),
            "✘ car failed cars.book Sold: out",
        ),
        (step("car", "compensated", direction="backward"), "↩ car compensated cars.book"),
    ],
)
def test_a_step_is_told_in_one_line(given: dict[str, Any], line: str) -> None:
    assert line in " ".join(printed(saga_story(saga(given))).split())


def test_who_holds_a_lease_is_told_with_its_last_word() -> None:
    held = {
        "path": "car", "no": 1, "direction": "forward", "state": "open", "node": "w1@here",
        "pid": 7, "granted_at": after(2), "ended_at": None, "heartbeat_at": after(3),
        "details": {"page": 4}, "error": None, "late": None,
    }  # fmt: skip
    story = printed(saga_story(saga(step("car", "leased"), attempts=[held])))
    assert " leased 1 cars.book " in " ".join(story.split())
    assert 'w1@here pid 7 is at it since 10:00:02, said {"page": 4}' in story


def test_a_saga_is_told_from_its_head_to_its_timeline() -> None:
    entries = [
        {"at": after(1.5), "path": "car", "attempt": 1, "verb": "grant", "actor": "w1@here pid 7",
         "text": "action", "row": None},
        {"at": after(86_400), "path": "car", "attempt": 1, "verb": "expire", "actor": "supervisor",
         "text": "its node has gone silent", "row": "12"},
    ]  # fmt: skip
    incident = {
        "id": 4, "saga_id": SAGA, "workflow": "trip", "path": "car", "kind": "in_doubt",
        "message": "what now?", "opened_at": after(9), "resolved_at": None, "resolution": None,
        "resolved_by": None, "reason": None,
    }  # fmt: skip
    story = printed(
        saga_story(
            saga(
                step("car", "halted"),
                timeline=entries,
                incidents=[incident],
                state="halted",
                abort={"reason": "failed", "step": "car", "message": "sold out"},
            )
        )
    )
    lines = [" ".join(line.split()) for line in story.splitlines()]
    assert lines[0] == f"saga {SAGA} trip v3 halted"
    assert lines[1] == "started 2026-11-29 10:00:00 UTC, deadline 2026-11-29 11:00:00, key order-1"
    assert lines[2] == 'input {"who": "Ada"}'
    assert lines[3] == "turned back: step car failed: sold out"
    assert "! incident 4 car (in_doubt): what now?; see `atalaia resolve --help`" in lines
    assert "10:00:01.500 +1.50 s car #1 grant action w1@here pid 7" in lines
    assert any(line.startswith("11-30 10:00:00.000 +24 h 0 min car #1 expire") for line in lines)
    assert "its node has gone silent 12 supervisor" in " ".join(lines)


def test_only_the_last_of_the_timeline_is_kept_when_asked() -> None:
    entry = {"path": "car", "attempt": 1, "verb": "grant", "actor": "w", "row": None}
    many = [{**entry, "at": after(n), "text": f"number {n}"} for n in range(5)]
    story = printed(saga_story(saga(timeline=many), last=2))
    assert "number 2" not in story
    assert "number 3" in story


def test_lists_are_tables_and_empty_ones_say_so() -> None:
    one = SagaSummary(
        id=SAGA, workflow="trip", key=None, state=SagaState.COMPENSATED, created_at=START,
        ended_at=after(2), abort={"reason": "failed", "step": "car", "message": "sold out"},
    )  # fmt: skip
    assert "compensated   2026-11-29 10:00:00   2.00 s   sold out" in printed(saga_table([one]))
    assert printed(saga_table([])) == "no sagas\n"
    assert printed(incident_table([])) == "no incidents\n"


def test_an_incident_tells_how_it_was_answered() -> None:
    incident = IncidentShown(
        id=4, saga_id=SAGA, workflow="trip", path="car", kind="in_doubt", message="what now?",
        opened_at=START, resolved_at=after(9), resolution="skip", resolved_by="ada", reason="rain",
    )  # fmt: skip
    assert "skip by ada: rain" in printed(incident_table([incident]))


def test_what_is_wrong_stands_last_and_apart() -> None:
    findings = [
        Finding(level=Level.ERROR, about="database", text="away\nreally"),
        Finding(
            level=Level.NOTE, about="broker", text="full", setting="size", why="lost", remedy="grow"
        ),
        Finding(level=Level.OK, about="settings", text="fine"),
        Finding(level=Level.WARNING, about="nodes", text="none"),
    ]
    told = [line.split()[:2] for line in printed(finding_table(findings)).splitlines()]
    assert told == [
        ["ok", "settings"],
        ["note", "broker"],
        ["lost"],
        ["to", "do:"],
        ["warning", "nodes"],
        ["error", "database"],
        ["really"],
    ]
    assert {name: len(found) for name, found in finding_lists(findings).items()} == {
        "errors": 1,
        "warnings": 1,
        "notes": 1,
        "ok": 1,
    }
    assert finding_lists(findings)["notes"] == [
        {"about": "broker", "text": "full", "setting": "size", "why": "lost", "remedy": "grow"}
    ]
    assert finding_lists(findings)["ok"] == [{"about": "settings", "text": "fine"}]


def test_every_state_has_a_colour() -> None:
    from tasks.printing import _STYLES

    assert set(SagaState) <= set(_STYLES)
    coloured_as_a_saga_is = {StepState.HALTED, StepState.COMPENSATED}
    assert set(StepState) - coloured_as_a_saga_is <= set(_STYLES)
