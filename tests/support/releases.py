"""Two releases of one code base, in two folders, whose agents write down what they do.

The second one holds version 1 and version 2 of the workflow, as a deploy should; the third has
dropped version 1. An effect is a line in a file that all of them share.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from models import Attempt
from models.states import SagaState
from orchestration.definition import Workflow
from orchestration.handle import Handle
from tests.support.workers import ROOT, Process, Rig

SERVICE = "parcels"
NAP_SECONDS = 0.05
_AGENTS = """
import json, os, time
from tasks.agent import Call, agent
from orchestration.signals import Absent, Applied

def effects():
    with open("{book}") as book:
        return [json.loads(line) for line in book]

def act(call, undone=False):
    line = {{"saga": call.saga_id, "step": call.step, "by": "{release}", "key": call.key}}
    with open("{book}", "a") as book:
        book.write(json.dumps(line) + "\\n")
    time.sleep({nap})
    while os.path.exists("{book}." + call.step):
        time.sleep({nap})

def find(call):
    done = any(effect["key"] == call.key for effect in effects())
    return Applied(None) if done else Absent()

def undo(call, result):
    act(call)
"""
_AGENT = """
{name} = agent("parcels.{name}", queue="parcels", idempotent=True)(act_{name})
{name}.probe(find)
{name}.compensation(undo)
"""
_STEP = (
    'Step("{name}", agent="parcels.{name}", timeout=float(os.environ.get("PARCEL_TIMEOUT", 60)))'
)
_VERSIONS = {1: ("pick", "send"), 2: ("pick", "wrap", "send")}


@dataclass(frozen=True)
class Release:
    """One state of the code. ``versions`` are those of the workflow that it still knows."""

    name: str
    versions: tuple[int, ...]
    directory: Path
    book: Path

    @property
    def env(self) -> dict[str, str]:
        """What a worker of this release is started with."""
        return {
            "ATALAIA_AGENTS": "parcels",
            "ATALAIA_WORKFLOWS": "parcels",
            "PYTHONPATH": f"{self.directory}:{ROOT}",
        }

    def gate(self, step: str) -> Path:
        """Return the file that holds a step, once it has had its effect, while it is there."""
        return self.book.with_name(f"{self.book.name}.{step}")

    def write(self) -> "Release":
        """Write the code down."""
        self.directory.mkdir(parents=True)
        self.book.touch()
        steps = dict.fromkeys(step for version in self.versions for step in _VERSIONS[version])
        text = _AGENTS.format(book=self.book, release=self.name, nap=NAP_SECONDS)
        for name in steps:
            text += f"\ndef act_{name}(call: Call[None]) -> None:\n    act(call)\n"
            text += _AGENT.format(name=name)
        text += "\nfrom orchestration import Step, Workflow, sequence\n"
        for version in self.versions:
            plan = ", ".join(_STEP.format(name=name) for name in _VERSIONS[version])
            plan = f'Workflow("parcel", version={version}, steps=sequence({plan}))'
            text += f"parcel_{version} = {plan}\n"
        (self.directory / "parcels.py").write_text(text)
        return self


def releases(directory: Path) -> tuple[Release, Release, Release]:
    """Return the release before, the one after it, and the one that has dropped version 1."""
    book = directory / "book.jsonl"
    old, new, hasty = (
        Release(name, versions, directory / name, book).write()
        for name, versions in (("old", (1,)), ("new", (1, 2)), ("hasty", (2,)))
    )
    return old, new, hasty


def effects(release: Release) -> Counter[tuple[str, str, str]]:
    """Return what was done, as (saga, step, release), and how often."""
    lines = map(json.loads, release.book.read_text().splitlines())
    return Counter((line["saga"], line["step"], line["by"]) for line in lines)


class Fleet:
    """Workers of several releases, and sagas of both versions of their workflow."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.rig = rig
        self.old, self.new, self.hasty = releases(directory / "code")

    def worker(
        self, release: Release, number: int, *, more: Mapping[str, str] | None = None, **how: Any
    ) -> Process:
        """Start a worker of a release; ``more`` is what it finds in its environment besides."""
        self.rig.env_more = release.env | dict(more or {})
        return self.rig.worker(f"{release.name}{number}", services=[SERVICE], **how)

    def start(self, version: int) -> Handle:
        """Start a saga as an app of either release does."""
        with self.rig.store.reading() as connection:
            row = self.rig.store.find_definition(connection, "parcel", version)
        assert row is not None
        return self.rig.scheduler.start(Workflow.from_document(row.document["workflow"]))

    def check(self, release: Release) -> str:
        """Return what `atalaia check` of a release says."""
        self.rig.env_more = release.env
        words = [str(Path(sys.executable).with_name("atalaia")), "check"]
        done = subprocess.run(words, env=self.rig.env, capture_output=True, text=True, check=False)
        return str(done.stdout + done.stderr)

    def refused(self, handle: Handle, step: str) -> list[str]:
        """Return why messages of a step were refused."""
        return [entry.reason for entry in self.rig.journal(handle.saga_id, step, "refuse")]

    def done(self, handle: Handle, step: str) -> bool:
        """Tell whether a step has had its effect."""
        return any(key[:2] == (str(handle.saga_id), step) for key in effects(self.old))

    def attempts(self, handle: Handle) -> list[Any]:
        with self.rig.store.reading() as connection:
            query = select(Attempt.__table__).where(Attempt.saga_id == handle.saga_id)
            return list(connection.execute(query))

    def assert_done_once(self, handle: Handle, *steps: str, by: tuple[str, ...]) -> None:
        """Assert that each step was run once, and by a worker of the releases that may."""
        assert handle.wait(30).state is SagaState.COMPLETED
        attempts = self.attempts(handle)
        assert [(a.path, a.no, a.state) for a in sorted(attempts, key=lambda a: a.granted_at)] == [
            (step, 1, "succeeded") for step in steps
        ]
        assert {a.node.partition("@")[0][:-1] for a in attempts} <= set(by)
        done = {key: n for key, n in effects(self.old).items() if key[0] == str(handle.saga_id)}
        assert sorted(done.values()) == [1] * len(steps)
        assert {step for _, step, _ in done} == set(steps)
        assert {release for *_, release in done} <= set(by)
        assert self.rig.open_incidents(handle.saga_id) == []


def told_to_end(worker: Process) -> Process:
    os.kill(worker.pid, signal.SIGTERM)
    return worker
