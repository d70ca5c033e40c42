"""Many seeds, one after another, with a view of how far it is: what `make simulate` runs."""

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tasks.proof.coverage import Coverage, of_rows, reachable
from tasks.proof.regression import Case, dump, shrink
from tasks.proof.simulate import Simulation

CRITICAL = 50


@dataclass
class Tally:
    """What some seeds have shown."""

    sagas: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    violations: list[tuple[int, str]] = field(default_factory=list)
    """(seed, what was wrong)"""
    seconds: float = 0.0
    """Of processor time."""

    def add(self, other: "Tally") -> None:
        """Add what other seeds have shown."""
        self.sagas += other.sagas
        self.coverage.add(other.coverage.counts)
        self.violations += other.violations
        self.seconds += other.seconds


def run_seeds(seeds: Iterable[int]) -> Tally:
    """Run seeds in this process."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    simulation, tally, began = Simulation(), Tally(), time.process_time()
    for seed in seeds:
        outcome = simulation.run(seed)
        tally.sagas += len(outcome.sagas)
        tally.coverage.add(outcome.faults.cells)
        tally.coverage.add(of_rows(outcome.record.rows))
        tally.violations += [(seed, str(found)) for found in outcome.violations]
    tally.seconds = time.process_time() - began
    return tally


def keep_smallest(seed: int, directory: Path) -> Path:
    """Make a failing seed small and keep it as a file; return the file."""
    simulation = Simulation()
    outcome = simulation.run(seed)
    case = shrink(simulation, outcome) if outcome.violations else Case.of(outcome)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"seed-{seed}.json"
    path.write_text(dump(case), encoding="utf-8")
    return path


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign and return the exit status."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, default=Path(".simulation"), help="for failing runs")
    options = parser.parse_args(arguments)
    console = Console()
    seeds = range(options.first, options.first + options.seeds)
    tally = _run_with_progress(console, seeds, options.processes)
    _show_coverage(console, tally.coverage)
    for seed, text in tally.violations[:20]:
        console.print(f"seed {seed}: {text}", soft_wrap=True, highlight=False)
    for seed in sorted({seed for seed, _ in tally.violations})[:3]:
        console.print(f"seed {seed} is kept small in {keep_smallest(seed, options.keep)}")
    _show_missing(console, tally.coverage)
    cells = len(reachable())
    covered = cells - len(tally.coverage.missing)
    sys.stdout.write(
        f"simulate: {tally.sagas} sagas, {len(tally.violations)} violations, "
        f"{covered} of {cells} cells covered\n"
    )
    return int(bool(tally.violations) or covered < cells or bool(tally.coverage.strangers))


def _run_with_progress(console: Console, seeds: range, processes: int) -> Tally:
    """Run the seeds in some processes, a few at a time."""
    tally, began = Tally(), time.monotonic()
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    blocks = [seeds[first : first + 10] for first in range(0, len(seeds), 10)]
    with Progress(*columns, console=console) as progress, ProcessPoolExecutor(processes) as pool:
        bar = progress.add_task("simulate", total=len(seeds))
        for block, part in zip(blocks, pool.map(run_seeds, blocks), strict=True):
            tally.add(part)
            rate = tally.sagas / (time.monotonic() - began) * 60
            told = f"{rate:,.0f} sagas a minute, {len(tally.violations)} violations"
            progress.update(bar, advance=len(block), description=told)
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
