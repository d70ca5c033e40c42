"""Two releases of one code base, in two folders, whose agents write down what they do.

The second one holds version 1 and version 2 of the workflow, as a deploy should; the third has
dropped version 1. An effect is a line in a file that all of them share.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.workers import ROOT

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
            plan = ", ".join(f'Step("{s}", agent="parcels.{s}")' for s in _VERSIONS[version])
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
