"""Following one saga: a picture that changes on a terminal, line by line through a pipe."""

import time
from uuid import UUID

from rich.console import Console
from rich.live import Live

from models.states import SAGA_TERMINAL, SagaState
from orchestration.store import Store
from tasks.printing import saga_story, terminal, timeline_cells
from web.schema import saga_shown

_PAUSE_SECONDS = 0.3
_LINES_BESIDES = 16
"""Rows of the terminal that the timeline cannot have."""


def follow(store: Store, saga_id: UUID) -> SagaState:
    """Show a saga until it has ended; return how."""
    console = terminal()
    return _draw(console, store, saga_id) if console.is_terminal else _list(console, store, saga_id)


def _draw(console: Console, store: Store, saga_id: UUID) -> SagaState:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            saga = saga_shown(store, saga_id)
            room = max(console.height - _LINES_BESIDES - len(saga.steps), 3)
            over = saga.state in SAGA_TERMINAL
            live.update(saga_story(saga, last=None if over else room), refresh=True)
            if over:
                return saga.state
            time.sleep(_PAUSE_SECONDS)


def _list(console: Console, store: Store, saga_id: UUID) -> SagaState:
    shown = set()
    console.print(f"following saga {saga_id}", soft_wrap=True)
    while True:
        saga = saga_shown(store, saga_id)
        for entry in saga.timeline:
            line = "  ".join(filter(None, timeline_cells(saga, entry)))
            if line not in shown:
                shown.add(line)
                console.print(line, soft_wrap=True)
        if saga.state in SAGA_TERMINAL:
            console.print(saga.state)
            return saga.state
        time.sleep(_PAUSE_SECONDS)
