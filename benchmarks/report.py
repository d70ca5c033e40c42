"""What is told of a run: medians, ratios, a table, and one JSON object."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contestants import PEERS, SHAPES

Result = dict[str, Any]

OPENING = "<!-- figures -->"
CLOSING = "<!-- end of figures -->"

COLUMNS = {
    "sagas_per_second": "sagas/s",
    "steps_per_second": "steps/s",
    "drain_steps_per_second": "steps/s, drain",
    "starts_per_second": "starts/s",
    "cpu_seconds_per_1000_steps": "CPU s / 1,000 steps",
    "latency_p50_ms": "p50 ms",
    "latency_p95_ms": "p95 ms",
    "commits_per_saga": "commits / saga",
    "writing_transactions_per_saga": "writing / saga",
    "fsyncs_per_saga": "fsyncs / saga",
    "idle_memory_mb": "idle MB",
    "kill_to_done_s": "kill to done, s",
    "step_ran": "step ran",
}


def medians(bouts: Sequence[Mapping[str, float]]) -> Result:
    """Return the median of each figure over several bouts."""
    return {name: round(median(figures[name] for figures in bouts), 3) for name in bouts[0]}


def summary(results: Mapping[str, Result]) -> Result:
    """Return Atalaia's steps/s over those of each peer that was measured, for each shape.

    ``ratio`` is that of the best shape, which ``atalaia`` names; one whose client starts several
    sagas in one transaction is not taken, since the peers' clients start one in each.
    """
    rates = {
        name: result["steps_per_second"]
        for name, result in results.items()
        if "steps_per_second" in result
    }
    peers = [peer.name for peer in PEERS if peer.name in rates]
    by_shape = {
        shape.name: {peer: round(rates[shape.name] / rates[peer], 3) for peer in peers}
        for shape in SHAPES
        if shape.name in rates
    }
    alike = [shape.name for shape in SHAPES if shape.name in rates and shape.together == 1]
    best = max(alike, key=lambda name: rates[name], default=None)
    return {
        "ratio": by_shape[best] if best else {},
        "atalaia": best,
        "ratio_by_shape": by_shape,
        "not_measured": {
            name: result["not_measured"]
            for name, result in results.items()
            if "not_measured" in result
        },
    }


def cells(result: Result) -> list[str]:
    """Return the figures in the order of the columns; a dash stands for what there is not."""
    return [_cell(result.get(name), name in result) for name in COLUMNS]


def markdown(abouts: Mapping[str, str], results: Mapping[str, Result]) -> str:
    """Return the results as a table for a document."""
    lines = [
        "| | " + " | ".join(COLUMNS.values()) + " |",
        "|---|" + "--:|" * len(COLUMNS),
    ]
    for name, result in results.items():
        if "not_measured" in result:
            lines.append(f"| {abouts[name]} | not measured: {result['not_measured']} |")
        else:
            lines.append(f"| {abouts[name]} | " + " | ".join(cells(result)) + " |")
    return "\n".join(lines)


def document(text: str, told: str) -> str:
    """Return a document's text with ``told`` in place of what stood between the two marks."""
    before, opening, rest = text.partition(OPENING)
    _, closing, after = rest.partition(CLOSING)
    if not opening or not closing:
        raise ValueError(f"the document has to have {OPENING} and, below it, {CLOSING}")
    return f"{before}{opening}\n\n{told}\n\n{closing}{after}"


def circumstances(found: Mapping[str, Any], command: str) -> str:
    """Return a sentence about the machine and the run, to stand above the table."""
    where = found["conditions"]
    settings = ", ".join(f"{name} {value}" for name, value in where["postgresql"].items())
    return (
        f"`{command}` on {datetime.now(UTC).date()}: {where['processors']} processors "
        f"({where['processor']}), load average {where['load_average_before']} before and "
        f"{where['load_average_after']} after; PostgreSQL: {settings}; an insert with its commit "
        f"takes {where['commit_ms']} ms; {where['redis']}. Medians of {found['rounds']} rounds of "
        f"{found['sagas']} sagas."
    )


def show(abouts: Mapping[str, str], results: Mapping[str, Result]) -> None:
    """Print the results as a table with the contestants side by side."""
    measured = {name: result for name, result in results.items() if "not_measured" not in result}
    table = Table("", *(abouts[name] for name in measured))
    columns = zip(*(cells(result) for result in measured.values()), strict=True)
    for title, row in zip(COLUMNS.values(), columns, strict=False):
        table.add_row(title, *row)
    console = Console()
    console.print(table)
    for name, result in results.items():
        if "not_measured" in result:
            console.print(f"{abouts[name]}: not measured: {result['not_measured']}", markup=False)


def _cell(value: float | None, there: bool) -> str:  # noqa: FBT001
    if value is None:
        return "not in time" if there else "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"  # noqa: PLR2004
