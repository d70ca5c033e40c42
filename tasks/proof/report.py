"""What a proof says: for people, and as one document."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tasks.printing import plain, timeline_table
from tasks.proof.findings import Finding
from tasks.proof.prove import Proof

FIRST, LAST = 40, 8
"""How much of a long timeline is shown."""
_CRASHES = {0: "without a crash", 1: "with one crash", 2: "with two crashes"}


def proof_document(proof: Proof) -> dict[str, Any]:
    """Return a proof as JSON."""
    workflow = proof.subject.plan.workflow
    return {
        "workflow": workflow.name,
        "version": workflow.version,
        "partner": "own" if proof.subject.own else "model",
        "runs": proof.runs,
        "schedules": {str(crashes): count for crashes, count in proof.by_crashes.items()},
        "sagas_in_storms": proof.storms,
        "waiting_for_a_person": proof.halted,
        "findings": [finding.document() for finding in proof.findings],
    }


def proof_story(proof: Proof) -> RenderableType:
    """Return a proof for people; its last line is for machines, too."""
    findings = [
        part
        for number, finding in enumerate(proof.findings, start=1)
        for part in _finding(finding, number)
    ]
    return Group(*_head(proof), *findings, *_end(proof))


def _head(proof: Proof) -> Iterator[RenderableType]:
    workflow = proof.subject.plan.workflow
    steps = len(workflow.by_name)
    partner = "your agents and your partner" if proof.subject.own else "partners of the model"
    yield Text.assemble(
        "proving ", (workflow.name, "bold"), f" version {workflow.version}: {steps} steps, "
        f"{partner}",
    )  # fmt: skip
    yield Text(f"tried {_tried(proof)}", style="dim")


def _tried(proof: Proof) -> str:
    parts = [
        f"{count:,} {_CRASHES.get(crashes, f'with {crashes} crashes')}"
        for crashes, count in sorted(proof.by_crashes.items())
    ]
    total = proof.by_crashes.total()
    storms = f", and {proof.storms:,} sagas in storms" if proof.storms else ""
    return f"{total:,} schedule{'s' * (total != 1)} ({', '.join(parts)}){storms}"


def _finding(finding: Finding, number: int) -> Iterator[RenderableType]:
    yield Text()
    yield Text(f"finding {number}: {finding.headline}", style="bold red")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    when = finding.crash or ["nothing has to go wrong for it"]
    rows = [("and" if number else "when", line) for number, line in enumerate(when)]
    rows = rows if finding.timeline else []
    rows += [("then", finding.effect)] if finding.effect else []
    rows += [("why", finding.explanation), ("change", finding.remedy)]
    for name, text in rows:
        table.add_row(name, Text(plain(text)))
    yield Padding(table, (0, 0, 0, 2), expand=False)
    if finding.saga is not None:
        lines = finding.timeline
        cut = len(lines) > FIRST + LAST
        yield timeline_table(finding.saga, lines[:FIRST] + lines[-LAST:] if cut else lines)
        if cut:
            left_out = len(lines) - FIRST - LAST
            yield Text(f"{left_out} lines in the middle are left out; --json has all", style="dim")


def _end(proof: Proof) -> Iterator[RenderableType]:
    yield Text()
    if not proof.wire:
        text = "no reply was lost and no request was late: the partner does not use world.request()"
        yield Text(text, style="yellow")
    if not proof.findings:
        yield Text("every one ended well: no effect is left behind, doubled or missing")
        if proof.halted:
            yield Text(f"{proof.halted:,} of them stopped with a question to a person")
    name, count = proof.subject.plan.workflow.name, len(proof.findings)
    yield Text(f"prove: {name}: {proof.runs} runs, {count} finding{'s' * (count != 1)}")
