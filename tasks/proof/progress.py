"""What the two long commands have in common: a bar, silence in the logs, and files for findings."""

import gc
import logging
import re
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tasks.proof.regression import Case, dump


def progress(console: Console) -> Progress:
    """Return a bar that tells how far it is, and how long it has taken and will take."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    return Progress(*columns, console=console)


def be_quiet() -> None:
    """Let this process log nothing but what is critical; the journals say the same."""
    logging.getLogger("atalaia").setLevel(logging.CRITICAL)


def be_quick() -> None:
    """Let this process look for garbage seldom: what a run makes is gone with the run."""
    gc.set_threshold(100_000, 50, 100)


def keep(case: Case, directory: Path, name: str) -> Path:
    """Write a run into a file that is called after ``name``; return the file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.json"
    path.write_text(dump(case), encoding="utf-8")
    return path
