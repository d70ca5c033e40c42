"""Many seeds, one after another, with a view of how far it is: what `make simulate` runs."""

import argparse
import os
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tasks.proof.coverage import Coverage, of_rows, reachable
from tasks.proof.directed import directed
from tasks.proof.progress import be_quick, be_quiet, keep, progress
from tasks.proof.regression import Case, shrink
from tasks.proof.simulate import Simulation

WIDTH = 160
"""Columns of a table that goes into a file."""
BLOCK = 10
"""How many runs are handed to a process at a time."""
Run = int | Case
"""A seed, or a run in full."""


@dataclass
class Tally:
    """What some seeds have shown."""

    sagas: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    violations: list[tuple[Run, str]] = field(default_factory=list)
    """(run, what was wrong)"""
    seconds: float = 0.0
    """Of processor time."""

    def add(self, other: "Tally") -> None:
        """Add what other seeds have shown."""
        self.sagas += other.sagas
        self.coverage.add(other.coverage.counts)
        self.violations += other.violations
        self.seconds += other.seconds


def run(runs: Iterable[Run]) -> Tally:
    """Run seeds and cases in this process."""
    be_quiet()
    be_quick()
    simulation, tally, began = Simulation(), Tally(), time.process_time()
    for one in runs:
        outcome = one.run(simulation) if isinstance(one, Case) else simulation.run(one)
        tally.sagas += len(outcome.sagas)
        tally.coverage.add(outcome.faults.cells)
        tally.coverage.add(of_rows(outcome.record.rows))
        tally.violations += [(one, str(found)) for found in outcome.violations]
    tally.seconds = time.process_time() - began
    return tally


def keep_smallest(run: Run, directory: Path) -> Path:
    """Make a failing run small and keep it as a file; return the file."""
    simulation = Simulation()
    outcome = run.run(simulation) if isinstance(run, Case) else simulation.run(run)
    case = shrink(simulation, outcome) if outcome.violations else Case.of(outcome)
    return keep(case, directory, _name(run))


def _name(run: Run) -> str:
    return f"directed {run.shows}" if isinstance(run, Case) else f"seed {run}"


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign and return the exit status."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--fresh", type=int, default=0, help="how many seeds from a random one on")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--brief", action="store_true", help="without the coverage table")
    parser.add_argument("--keep", type=Path, default=Path(".simulation"), help="for failing runs")
    options = parser.parse_args(arguments)
    be_quiet()
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    runs: list[Run] = [*directed(), *range(options.first, options.first + options.seeds)]
    if options.fresh:
        first = secrets.randbelow(1_000_000_000)
        console.print(f"fresh seeds: --first {first} --seeds {options.fresh}", highlight=False)
        runs += range(first, first + options.fresh)
    tally = _run_with_progress(console, runs, options.processes)
    if not options.brief:
        _show_coverage(console, tally.coverage)
    return tell(console, tally, options.keep)


def tell(console: Console, tally: Tally, directory: Path) -> int:
    """Show what the runs have shown, and return the exit status."""
    for one, text in tally.violations[:20]:
        console.print(f"{_name(one)}: {text}", soft_wrap=True, highlight=False)
    failing = {_name(one): one for one, _ in tally.violations}
    for name, one in list(failing.items())[:3]:
        console.print(f"{name} is kept small in {keep_smallest(one, directory)}", soft_wrap=True)
    _show_missing(console, tally.coverage)
    cells = len(reachable())
    covered = cells - len(tally.coverage.missing)
    sys.stdout.write(
        f"simulate: {tally.sagas} sagas, {len(tally.violations)} violations, "
        f"{covered} of {cells} cells covered\n"
    )
    return int(bool(tally.violations) or covered < cells or bool(tally.coverage.strangers))


def _run_with_progress(console: Console, runs: Sequence[Run], processes: int) -> Tally:
    """Run in some processes, a few runs at a time."""
    tally, began = Tally(), time.monotonic()
    blocks = [runs[first : first + BLOCK] for first in range(0, len(runs), BLOCK)]
    with progress(console) as bar, ProcessPoolExecutor(processes) as pool:
        task = bar.add_task("simulate", total=len(runs))
        for block, part in zip(blocks, pool.map(run, blocks), strict=True):
            tally.add(part)
            rate = tally.sagas / (time.monotonic() - began) * 60
            told = f"{rate:,.0f} sagas a minute, {len(tally.violations)} violations"
            bar.update(task, advance=len(block), description=told)
    rate = tally.sagas / max(tally.seconds, 0.001) * 60
    console.print(f"{rate:,.0f} sagas a minute of one core", highlight=False)
    return tally


def _show_coverage(console: Console, coverage: Coverage) -> None:
    """Show how often each fault struck at each boundary, and what each row was told."""
    grids: dict[str, dict[str, dict[str, int]]] = {
        "fault": defaultdict(dict), "partner and broker": defaultdict(dict),
        "row": defaultdict(dict),
    }  # fmt: skip
    for cell in sorted(reachable() | set(coverage.counts)):
        count = coverage.counts[cell]
        if cell.startswith("row "):
            row, _, answer = cell.removeprefix("row ").partition(": ")
            grids["row"][row][answer] = count
        elif "@" in cell:
            kind, _, point = cell.rpartition(" ")[2].partition("@")
            grids["fault"][f"{cell.rpartition(' ')[0]} {point}"][kind] = count
        else:
            role, _, kind = cell.rpartition(" ")
            grids["partner and broker"][kind][role] = count
    for title, grid in grids.items():
        columns = sorted({name for counts in grid.values() for name in counts})
        table = Table(title, *columns, pad_edge=False)
        for name, counts in sorted(grid.items(), key=lambda pair: _natural(pair[0])):
            table.add_row(name, *(_shown(counts.get(column)) for column in columns))
        console.print(table)


def _natural(name: str) -> tuple[int, str]:
    digits = "".join(character for character in name if character.isdigit())
    return (int(digits), name) if name[:1].isdigit() else (0, name)


def _shown(count: int | None) -> str:
    if count is None:
        return ""
    return str(count) if count else "[red]never[/red]"


def _show_missing(console: Console, coverage: Coverage) -> None:
    for cell in coverage.missing:
        console.print(f"never reached: {cell}", highlight=False)
    for cell in coverage.strangers:
        console.print(f"reached, and not expected: {cell}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
