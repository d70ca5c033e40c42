"""How sagas look on a terminal. Takes the shapes that the web shows, too, and writes nothing else.

What comes from outside (an input, a partner's error) is text: neither markup nor control characters
in it reach the terminal as such.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import to_json
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from models.states import SAGA_TERMINAL, SagaState, StepState
from orchestration.handle import Handle, SagaResult
from tasks.findings import Finding, Level
from web.schema import (
    AttemptShown,
    IncidentShown,
    SagaReference,
    SagaShown,
    SagaSummary,
    StepShown,
    TimelineEntryShown,
)

_PIPE_WIDTH = 240
_SHORT_ID = 12
"""The end of a saga's id is random, so it is enough to find the saga by."""
_STYLES = {
    SagaState.RUNNING: "cyan",
    SagaState.COMPENSATING: "yellow",
    SagaState.HALTED: "bold red",
    SagaState.COMPLETED: "green",
    SagaState.COMPENSATED: "yellow",
    SagaState.CANCELLED: "yellow",
    StepState.WAITING: "dim",
    StepState.DISPATCHED: "cyan",
    StepState.LEASED: "cyan",
    StepState.RETRYING: "yellow",
    StepState.UNKNOWN: "magenta",
    StepState.SUCCEEDED: "green",
    StepState.FAILED: "red",
    StepState.SKIPPED: "dim",
    StepState.ABANDONED: "yellow",
}
_MARKS = {
    StepState.WAITING: "·",
    StepState.SUCCEEDED: "✔",
    StepState.FAILED: "✘",
    StepState.HALTED: "!",
    StepState.UNKNOWN: "?",
    StepState.SKIPPED: "-",
    StepState.ABANDONED: "-",
    StepState.COMPENSATED: "↩",
}
_UNDER_WAY = "▸"
_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


def terminal() -> Console:
    """Return standard output; what is piped is wide, so that no line is cut."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


def print_for_people(value: RenderableType) -> None:
    """Print something to look at."""
    terminal().print(value)


def print_json(value: Any) -> None:
    """Print JSON; instants are RFC 3339."""
    sys.stdout.write(to_json(value, indent=2).decode() + "\n")


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show on a terminal how far it is; yield what is told: of what, how many, of how many."""
    columns = (
        TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    console = Console(stderr=True)
    disabled = not sys.stderr.isatty()
    with Progress(*columns, console=console, transient=True, disable=disabled) as bars:
        task = bars.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total)

        yield show


def plain(value: Any) -> str:
    """Return ``value`` in one line that a terminal cannot misunderstand."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else " " if c.isspace() else _UNPRINTABLE for c in text)


def state_text(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, style=_STYLES.get(state, ""))  # type: ignore[call-overload]


def duration(length: timedelta) -> str:
    """Return a duration in at most two units: ``0.25 s``, ``3 min 20 s``, ``2 d 4 h``."""
    seconds = length.total_seconds()
    if seconds < 60:  # noqa: PLR2004 - seconds in a minute
        return f"{seconds:.2f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:  # noqa: PLR2004 - minutes in an hour
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"  # noqa: PLR2004


def instant(at: datetime) -> str:
    """Return an instant of UTC as people write it."""
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _table(*headers: str, **options: Any) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", **options)
    for header in headers:
        table.add_column(header, overflow="fold", no_wrap=header in {"saga", "state", "at (UTC)"})
    return table


# --- listings ----------------------------------------------------------------------------------


def saga_table(sagas: Sequence[SagaSummary]) -> RenderableType:
    """Return the list of sagas."""
    if not sagas:
        return "no sagas"
    table = _table("saga", "workflow", "key", "state", "at (UTC)", "took", "turned back because")
    for saga in sagas:
        took = duration(saga.ended_at - saga.created_at) if saga.ended_at else ""
        why = plain((saga.abort or {}).get("message", ""))
        table.add_row(
            Text(str(saga.id)), Text(plain(saga.workflow)), Text(plain(saga.key or "")),
            state_text(saga.state), instant(saga.created_at), took, Text(why),
        )  # fmt: skip
    return table


def incident_table(incidents: Sequence[IncidentShown]) -> RenderableType:
    """Return the list of incidents, with how each was resolved, if it was."""
    if not incidents:
        return "no incidents"
    table = _table("no", "at (UTC)", "saga", "step", "kind", "what", "answer")
    for incident in incidents:
        table.add_row(
            str(incident.id), instant(incident.opened_at), str(incident.saga_id)[-_SHORT_ID:],
            Text(plain(incident.path)), incident.kind, Text(plain(incident.message)),
            Text(_resolution(incident)),
        )  # fmt: skip
    return table


def _resolution(incident: IncidentShown) -> str:
    if incident.resolved_at is None:
        return "open"
    by = f" by {incident.resolved_by}" if incident.resolved_by else ""
    why = f": {incident.reason}" if incident.reason else ""
    return plain(f"{incident.resolution}{by}{why}")


def finding_table(findings: Iterable[Finding]) -> RenderableType:
    """Return what was looked at, what is wrong last."""
    table = Table(box=None, show_header=False, pad_edge=False)
    styles = {
        Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.ERROR: "bold red"
    }  # fmt: skip
    for finding in sorted(findings, key=lambda one: list(Level).index(one.level)):
        remedy = f"to do: {finding.remedy}" if finding.remedy else ""
        lines = [*finding.text.splitlines(), finding.why, remedy]
        text = Text("\n".join(plain(line) for line in lines if line))
        table.add_row(Text(finding.level, style=styles[finding.level]), finding.about, text)
    return table


def finding_lists(findings: Sequence[Finding]) -> dict[str, list[dict[str, str]]]:
    """Return the same as a document, by how bad it is."""
    names = {
        "errors": Level.ERROR, "warnings": Level.WARNING, "notes": Level.NOTE, "ok": Level.OK
    }  # fmt: skip
    told = ("about", "text", "setting", "why", "remedy")
    return {
        name: [
            {word: value for word in told if (value := getattr(finding, word))}
            for finding in findings
            if finding.level is level
        ]
        for name, level in names.items()
    }


def started_document(handle: Handle, end: SagaResult) -> dict[str, Any]:
    """Return what ``start --json`` says: as the web does, and how it stands or ended."""
    reference = SagaReference.to(handle.saga_id, end.state).model_dump(mode="json")
    more = {"created": handle.created, "results": end.results, "abort": end.abort}
    return reference | more


def end_lines(end: SagaResult) -> RenderableType:
    """Return how a saga ended: its state, and the results of its steps or why it turned back."""
    lines = [Text(f"{step}  {plain(result)}") for step, result in end.results.items()]
    why = [Text(f"turned back: {turned_back(end.abort)}")] if end.abort else []
    return Group(state_text(end.state), *why, *lines)


# --- one saga ----------------------------------------------------------------------------------


def saga_story(saga: SagaShown, *, last: int | None = None) -> RenderableType:
    """Return one saga: its head, a line for each step, incidents, and the timeline.

    ``last`` keeps only so many lines of the timeline.
    """
    parts: list[RenderableType] = [*_head(saga), _step_table(saga)]
    open_incidents = [one for one in saga.incidents if one.resolved_at is None]
    parts += [_incident_line(incident) for incident in open_incidents]
    entries = saga.timeline if last is None else saga.timeline[-last:]
    parts.append(timeline_table(saga, entries))
    return Group(*parts)


def _head(saga: SagaShown) -> Iterator[Text]:
    title = Text.assemble(
        ("saga ", "dim"), (str(saga.id), "bold"), "  ", f"{plain(saga.workflow)} v{saga.version}  ",
        state_text(saga.state),
    )  # fmt: skip
    yield title
    times = f"started {instant(saga.created_at)} UTC"
    if saga.ended_at:
        times += f", took {duration(saga.ended_at - saga.created_at)}"
    else:
        times += f", deadline {instant(saga.deadline_at)}"
    key = f", key {plain(saga.key)}" if saga.key else ""
    yield Text(times + key, style="dim")
    yield Text(f"input {plain(saga.input)}", style="dim")
    if saga.abort:
        yield Text(f"turned back: {turned_back(saga.abort)}", style="yellow")


def turned_back(abort: dict[str, Any]) -> str:
    """Return why a saga was turned back."""
    step = f"step {abort['step']} " if abort.get("step") else ""
    return plain(f"{step}{abort.get('reason', '')}: {abort.get('message', '')}")


def _step_table(saga: SagaShown) -> Table:
    table = _table("", "step", "state", "leases", "agent", "outcome")
    for step in saga.steps:
        style = _STYLES.get(step.state, "")
        leases = sum(attempt.path == step.path for attempt in saga.attempts)
        undoing = step.direction == "backward" and step.state is not StepState.COMPENSATED
        state = Text(f"{step.state}{' (compensation)' if undoing else ''}", style=style)
        table.add_row(
            Text(_MARKS.get(step.state, _UNDER_WAY), style=style), Text(plain(step.path)), state,
            str(leases or ""), Text(plain(step.agent)), Text(_outcome(step, saga)),
        )  # fmt: skip
    return table


def _outcome(step: StepShown, saga: SagaShown) -> str:
    """Say what came of a step, or what it waits for."""
    error = step.error or {}
    why = f"{error.get('type', '')}: {error.get('message', '')}" if error else ""
    at = f"{step.wake_at:%H:%M:%S}" if step.wake_at else ""
    match step.state:
        case StepState.SUCCEEDED:
            return plain(step.result) if step.result is not None else ""
        case StepState.DISPATCHED:
            return plain(f"waits for a worker on {step.queue}, is sent again at {at}")
        case StepState.LEASED:
            return _holder(step, saga.attempts)
        case StepState.RETRYING:
            return plain(f"tried again at {at}; {why}")
        case StepState.UNKNOWN:
            return plain(f"{step.inquiry or 'probe'} asked, looked at again at {at}; {why}")
        case _:
            return plain(why)


def _holder(step: StepShown, attempts: list[AttemptShown]) -> str:
    for attempt in attempts:
        if attempt.path == step.path and attempt.no == step.attempt:
            said = f", said {plain(attempt.details)}" if attempt.details is not None else ""
            since = f"{attempt.granted_at:%H:%M:%S}"
            return plain(f"{attempt.node} pid {attempt.pid} is at it since {since}{said}")
    return ""


def _incident_line(incident: IncidentShown) -> Text:
    step = f" {incident.path}" if incident.path else ""
    what = plain(f"incident {incident.id}{step} ({incident.kind}): {incident.message}")
    return Text(f"! {what}; see `atalaia resolve --help`", style="bold red")


def timeline_table(saga: SagaSummary, entries: Iterable[TimelineEntryShown]) -> Table:
    """Return who did what to a saga and why, a line for each entry."""
    table = _table("at (UTC)", "after", "step", "", "what", "why", "row", "who")
    for entry in entries:
        table.add_row(*(Text(cell) for cell in timeline_cells(saga, entry)))
    return table


def timeline_cells(saga: SagaSummary, entry: TimelineEntryShown) -> tuple[str, ...]:
    """Return when, how long after the start, step, attempt, verb, reason, table row and actor."""
    same_day = entry.at.date() == saga.created_at.date()
    at = f"{entry.at:%H:%M:%S.%f}" if same_day else f"{entry.at:%m-%d %H:%M:%S.%f}"
    return (
        at[:-3],
        f"+{duration(max(entry.at - saga.created_at, timedelta(0)))}",
        plain(entry.path or "saga"),
        f"#{entry.attempt}" if entry.attempt else "",
        plain(entry.verb),
        plain(entry.text),
        entry.row or "",
        plain(entry.actor),
    )


def ended(saga: SagaSummary) -> bool:
    """Tell whether nothing will ever happen to this saga again."""
    return saga.state in SAGA_TERMINAL
