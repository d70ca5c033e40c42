"""What a person sees of the demo: a live table on a terminal, plain lines anywhere else."""

import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

STATES = ("running", "compensating", "halted", "completed", "compensated", "cancelled")
COLOURS = {
    "running": "cyan",
    "compensating": "yellow",
    "halted": "red",
    "completed": "green",
    "compensated": "blue",
    "cancelled": "blue",
}
LINES_KEPT = 12
BAR = 40
LINE_SECONDS = 2.0
"""Without a terminal the counts are printed at most that often."""


class Board:
    """Shows how many sagas are in which state, how many agents were killed, and what happened."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.start = time.monotonic()
        self.counts: Mapping[str, int] = {}
        self.killed = 0
        self.rescued = 0
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._live: Live | None = None
        self._shown_at = 0.0
        self._shown: Mapping[str, int] = {}
        self._rest = ExitStack()

    def __enter__(self) -> Self:
        """Take the terminal, if there is one."""
        if self.console.is_terminal:
            live = Live(console=self.console, auto_refresh=False)
            self._live = self._rest.enter_context(live)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the terminal back, with the last picture left on it."""
        self._rest.close()
        self._live = None

    def say(self, line: str) -> None:
        """Show that something happened."""
        told = f"{time.monotonic() - self.start:5.1f} s  {line}"
        self.lines.append(told)
        if self._live is None:
            self._print(told)
        else:
            self._draw(self._live)

    def show(self, counts: Mapping[str, int]) -> None:
        """Show how many sagas are in each state."""
        self.counts = counts
        if self._live is not None:
            self._draw(self._live)
            return
        now = time.monotonic()
        if counts != self._shown and now - self._shown_at >= LINE_SECONDS:
            self._shown, self._shown_at = dict(counts), now
            told = ", ".join(f"{counts[s]} {s}" for s in STATES if counts.get(s))
            self._print(f"{now - self.start:5.1f} s  {told}")

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _draw(self, live: Live) -> None:
        table = Table(box=None, show_header=False, pad_edge=False)
        total = max(sum(self.counts.values()), 1)
        for state in STATES:
            count = self.counts.get(state, 0)
            bar = Text("█" * round(BAR * count / total), style=COLOURS[state])
            table.add_row(Text(state, style=COLOURS[state]), Text(f"{count:3}"), bar)
        for name, count in (("killed", self.killed), ("rescued", self.rescued)):
            table.add_row(Text(name, style="bold"), Text(f"{count:3}"), Text("▪ " * count))
        told = Text("\n".join(self.lines), no_wrap=True, overflow="ellipsis")
        live.update(Group(table, Text(), told), refresh=True)
