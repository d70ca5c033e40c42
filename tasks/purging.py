"""What ``atalaia purge`` does: looks, asks, deletes a few sagas at a time, and says what it did."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import typer

from models.states import SAGA_TERMINAL, SagaState
from orchestration.errors import InputError, NotFoundError
from orchestration.ports import SilentDispatcher
from orchestration.registry import Registry
from orchestration.retention import Asked, Kept, Purged, Retention
from orchestration.scheduler import Scheduler
from orchestration.settings import Settings, age
from orchestration.store import Store
from tasks.export import ExportFile
from tasks.lookup import existing_store
from tasks.printing import print_json, progress_bar
from tasks.refusal import told

NODES_AT_ONCE = 1000


def age_of(older_than: str | None, given: Settings) -> timedelta:
    """Return how long ago a saga has to have ended; raise ``InputError``."""
    if older_than is None:
        if given.retention is None:
            raise InputError("ATALAIA_RETENTION is off, so --older-than has to say how old")
        return given.retention
    if older_than.isdecimal() and int(older_than):  # Whoever writes 30 means days.
        raise InputError(f"--older-than: {older_than!r} has no unit; write P{older_than}D for days")
    try:
        return age(older_than)
    except ValueError as error:
        raise InputError(f"--older-than: {error}") from None


@contextmanager
def opened(given: Settings) -> Iterator[Store]:
    """Yield the rows, and let go of their database afterwards."""
    store = existing_store(given)
    try:
        yield store
    finally:
        store.engine.dispose()


class Purging:
    """One run of the command. Raises ``NotFoundError`` for a workflow that nothing is stored of."""

    def __init__(
        self, store: Store, age: timedelta, *, workflow: str | None, states: Sequence[str]
    ) -> None:
        if workflow is not None:
            with store.reading() as connection:
                if store.find_definition(connection, workflow) is None:
                    raise NotFoundError(f"there is no workflow {workflow!r}")
        self.retention = Retention(Scheduler(store, SilentDispatcher(), Registry()))
        self.asked = Asked(
            before=self.retention.ended_before(age),
            workflow=workflow,
            states=frozenset(map(SagaState, states)) or SAGA_TERMINAL,
        )
        self.total = self.retention.count(self.asked)
        self.dry_run = False
        self.done = Purged()
        self.nodes = 0
        self.to: Path | None = None
        self.broke_off = ""

    def ask(self) -> None:
        """Ask the person at the terminal; end with status 1 on a no."""
        if not sys.stdin.isatty():
            raise InputError("nobody is there to say yes; give --yes, or --dry-run to look first")
        until = f"{self.asked.before:%Y-%m-%d %H:%M} UTC"
        question = f"Delete up to {self.total} saga(s) that ended before {until}?"
        if not typer.confirm(question, err=True):
            print("nothing was deleted", file=sys.stderr)
            raise typer.Exit(1)

    def look(self) -> None:
        """Judge every saga that is meant, and leave it where it is."""
        self.dry_run = True
        for sagas in self._pages("looked at"):
            verdicts = self.retention.judge(sagas).values()
            kept = [why for why in verdicts if why]
            self.done.kept.update(kept)
            self.done.sagas += len(verdicts) - len(kept)

    def delete(self, to: Path | None) -> None:
        """Delete what may go, after it was written to ``to``.

        An error after something was deleted is kept, to be told with what was done.
        """
        self.to = to
        everything = self.asked.workflow is None and self.asked.states == SAGA_TERMINAL
        try:
            with ExportFile(to) if to else nullcontext() as file:
                for sagas in self._pages("purged"):
                    self.done.add(self.retention.purge(sagas, file.write if file else None))
            if everything:
                self.nodes = self.retention.purge_nodes(self.asked.before, NODES_AT_ONCE)
        except Exception as error:
            if not self.done.sagas:
                raise
            self.broke_off = told(error)[0]

    def _pages(self, what: str) -> Iterator[list[UUID]]:
        number = 0
        with progress_bar() as show:
            for page in self.retention.pages(self.asked):
                yield [place.id for place in page]
                number += len(page)
                show(what, number, max(self.total, number))

    def tell(self, *, as_json: bool) -> None:
        """Say what was done; end with status 1 if it broke off."""
        document = self.document()
        if as_json:
            print_json(document)
        else:
            print(_sentence(document))
        if self.broke_off:
            print(f"atalaia: broke off: {self.broke_off}", file=sys.stderr)
            raise typer.Exit(1)

    def document(self) -> dict[str, Any]:
        """Return what was done, for ``--json``."""
        return {
            "before": self.asked.before,
            "dry_run": self.dry_run,
            "sagas": self.done.sagas,
            "kept": {str(why): self.done.kept[why] for why in Kept},
            "nodes": self.nodes,
            "to": None if self.to is None else str(self.to),
        }


def _sentence(document: dict[str, Any]) -> str:
    deleted = "would be deleted" if document["dry_run"] else "deleted"
    until = f"{document['before']:%Y-%m-%d %H:%M} UTC"
    parts = [f"{document['sagas']} saga(s) that ended before {until} {deleted}"]
    if document["to"]:
        parts[0] += f", written to {document['to']} before"
    reasons = [f"{number} {why.replace('_', ' ')}" for why, number in document["kept"].items()]
    kept = [reason for reason in reasons if not reason.startswith("0 ")]
    if kept:
        parts.append(f"kept: {', '.join(kept)}")
    if document["nodes"]:
        parts.append(f"{document['nodes']} ended worker(s) forgotten")
    return "; ".join(parts)
