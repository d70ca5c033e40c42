"""Break the code in one way after another, and see that the tests notice each time.

    python -m tests.mutants.run [--jobs N] [--layers LAYER ...] [NAME ...]

Every mutant is applied to a copy of the tree. Its killers are run first, then the cheap layers in
order; the first test that fails has killed it. In the end those tests are run on the unbroken copy,
where they must pass: a test that always fails kills nothing.

With ``--layers`` each of them is asked on its own, with all its tests, and a table shows which
notices what. That takes hours where a layer is slow and notices little.

Each worker loads the libraries once and forks for every mutant, since loading them takes longer
than most tests do.
"""

import argparse
import compileall
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any, NoReturn

import pytest
from hypothesis import Phase, settings

from tests.mutants.mutations import MUTANTS, Edit, Mutant

ROOT = Path(__file__).parents[2]
ROOMS = ("models", "orchestration", "tasks", "web", "migrations", "examples", "tests")
CORE = (
    "database", "writer", "lease", "scheduler", "supervisor", "roster", "distrust", "outbox",
    "boundaries", "envelope", "node", "races", "retention",
)  # fmt: skip
LAYERS = {
    "unit": ("tests/unit", "--ignore=tests/unit/histories"),
    "histories": ("tests/unit/histories",),
    "integration": tuple(f"tests/integration/test_{name}.py" for name in CORE),
    "simulation": ("tests/simulation", "--ignore=tests/simulation/test_servers.py"),
}
# Tests that read the code, and would notice a mutant without running it; and one that asks for the
# name of the program that runs it.
OTHERS = tuple(
    f"--ignore=tests/unit/test_{name}.py" for name in ("architecture", "docs", "mutants", "cli")
)
PORTABLE = ("-x", "-k", "not postgres and not mariadb")
QUIET = ("-q", "-p", "no:cacheprovider", "-p", "xdist", "-p", "pytest_timeout", "--tb=line")
HEAVY = (
    "alembic.command", "hypothesis.stateful", "psycopg", "pydantic_settings", "redis",
    "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.sqlite",
)  # fmt: skip
PATIENCE_SECONDS = 300
KILLER_SECONDS = 20


class RunError(Exception):
    """The tests could not be run, so that nothing follows for the mutant."""


@dataclass(frozen=True)
class Fate:
    """What became of one mutant. Without killers and an error it survived."""

    mutant: Mutant
    seconds: float
    killers: tuple[str, ...] = ()
    """The first test of each layer that was asked, or only the first test of all."""
    error: str | None = None

    @property
    def layers(self) -> dict[str, str]:
        """The layers that have noticed it, each with its test."""
        return {layer_of(test): test for test in self.killers}


# --- a copy of the tree ---------------------------------------------------------------------------


def copy_tree(target: Path) -> None:
    """Copy the rooms of the working tree, as they stand."""
    for room in ROOMS:
        shutil.copytree(ROOT / room, target / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "celeryconfig.py"):
        shutil.copyfile(ROOT / name, target / name)
    # By content: an edit within one second, of the same length, would else go unnoticed.
    mode = PycInvalidationMode.CHECKED_HASH
    for room in ROOMS[:-1]:
        compileall.compile_dir(target / room, quiet=2, invalidation_mode=mode)


@contextmanager
def applied(copy: Path, edits: Sequence[Edit]) -> Iterator[None]:
    """Break the copy, and mend it again. Raises ``RunError`` if an edit does not apply."""
    before = {edit.file: (copy / edit.file).read_text(encoding="utf-8") for edit in edits}
    after = dict(before)
    for edit in edits:
        count = after[edit.file].count(edit.old)
        if count != 1:
            msg = f"it no longer applies: its text stands {count} times in {edit.file}"
            raise RunError(msg)
        after[edit.file] = after[edit.file].replace(edit.old, edit.new)
    try:
        for name, text in after.items():
            compile(text, name, "exec")
            (copy / name).write_text(text, encoding="utf-8")
        yield
    finally:
        for name, text in before.items():
            (copy / name).write_text(text, encoding="utf-8")


# --- running tests --------------------------------------------------------------------------------


class Witness:
    """A plugin that remembers which tests failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a test that failed, in whatever phase."""
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)


def run_tests(*arguments: str) -> list[str]:
    """Return the tests that fail. Raises ``RunError`` where they could not be run."""
    witness = Witness()
    code = pytest.main([*QUIET, *OTHERS, *arguments], plugins=[witness])
    fine = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}
    if code not in fine and not witness.failed:
        msg = f"pytest ended with {int(code)} on {' '.join(arguments)}"
        raise RunError(msg)
    return witness.failed


def hunt(mutant: Mutant, layers: Sequence[str]) -> list[str]:
    """Return the first test that notices the mutant, as a list of at most one."""
    failed = run_tests(*mutant.killers, *_where(mutant), "-o", f"timeout={KILLER_SECONDS}")
    for layer in layers:
        failed = failed or ask(mutant, layer)
    return failed


def ask(mutant: Mutant, layer: str) -> list[str]:
    """Return the first test of a layer that notices the mutant, as a list of at most one."""
    return run_tests(*LAYERS[layer], *_where(mutant))


def _where(mutant: Mutant) -> tuple[str, ...]:
    return ("-x", "-k", "not mariadb") if mutant.postgres else PORTABLE


def forked(copy: Path, find: Callable[[], list[str]]) -> list[str]:
    """Call ``find`` in a child whose project is the copy; return what it returns."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _answer(copy, find, writer)
    os.close(writer)
    answer = b""
    with selectors.DefaultSelector() as selector, os.fdopen(reader, "rb") as pipe:
        selector.register(pipe, selectors.EVENT_READ)
        if selector.select(PATIENCE_SECONDS):
            answer = pipe.read()
        else:
            os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not answer:
        msg = f"the tests died, or had not ended after {PATIENCE_SECONDS} s"
        raise RunError(msg)
    found: dict[str, Any] = json.loads(answer)
    if found["error"]:
        raise RunError(found["error"])
    failed: list[str] = found["failed"]
    return failed


def _answer(copy: Path, find: Callable[[], list[str]], writer: int) -> NoReturn:
    """Write what ``find`` returns, as JSON, and end this process."""
    try:
        os.chdir(copy)
        sys.path[:] = [str(copy), *(p for p in sys.path if p and Path(p) != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        os.environ["PYTHONPATH"] = str(copy)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = tempfile.mkdtemp(dir=copy)
        output = os.open(copy / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        answer: dict[str, Any] = {"failed": find(), "error": None}
    except BaseException as error:  # noqa: BLE001 - whatever it was, the parent is told
        answer = {"failed": [], "error": str(error) or repr(error)}
    os.write(writer, json.dumps(answer).encode())
    os._exit(0)


# --- one worker -----------------------------------------------------------------------------------


class Worker:
    """One process with its own copy of the tree."""

    copy: Path

    @classmethod
    def prepare(cls, home: str) -> None:
        """Make the copy and load what all tests need."""
        cls.copy = Path(tempfile.mkdtemp(dir=home))
        copy_tree(cls.copy)
        for name in HEAVY:
            import_module(name)
        # A failure is enough here; the smallest one is not worth the minutes that it takes to find.
        settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    @classmethod
    def try_mutant(cls, mutant: Mutant, layers: Sequence[str]) -> Fate:
        """Apply one mutant and hunt it; with ``layers``, once in each of them."""
        started = time.monotonic()
        there = [name for name, paths in LAYERS.items() if (cls.copy / paths[0]).exists()]
        hunts = [partial(ask, mutant, layer) for layer in layers] or [partial(hunt, mutant, there)]
        killers: list[str] = []
        error = None
        try:
            with applied(cls.copy, mutant.edits):
                for one in hunts:
                    killers += forked(cls.copy, one)[:1]
        except (RunError, SyntaxError) as problem:
            error = str(problem)
        return Fate(mutant, time.monotonic() - started, tuple(killers), error)

    @classmethod
    def failing(cls, tests: Sequence[str]) -> list[str]:
        """Return those of some tests that fail without any mutant, too."""
        return forked(cls.copy, partial(run_tests, *tests)) if tests else []


# --- all of them ----------------------------------------------------------------------------------


def layer_of(test: str) -> str:
    """Return the layer that a test belongs to."""
    file = test.partition("::")[0]
    return Path(file).parent.name


def say(line: str) -> None:
    """Print a line at once, however long the next one takes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def tell(fate: Fate) -> None:
    """Print one line about one mutant."""
    if fate.error:
        became = f"ERROR: {fate.error}"
    elif fate.killers:
        became = "; ".join(f"killed by {layer}: {test}" for layer, test in fate.layers.items())
    else:
        became = f"SURVIVED: no test that was run shows that {fate.mutant.rule}"
    say(f"{fate.mutant.name:42} {fate.seconds:5.1f} s  {became}")


def tell_layers(fates: Sequence[Fate], layers: Sequence[str]) -> None:
    """Print which layer notices which mutant, and how many each of them notices."""
    say(" ".join([f"\n{'':43}", *(f"{layer:>11}" for layer in layers)]))
    for fate in fates:
        marks = ("killed" if layer in fate.layers else "-" for layer in layers)
        say(" ".join([f"{fate.mutant.name:43}", *(f"{mark:>11}" for mark in marks)]))
    counts = (sum(layer in fate.layers for fate in fates) for layer in layers)
    say(" ".join([f"{'killed':43}", *(f"{count:11}" for count in counts)]))


def try_all(mutants: Sequence[Mutant], jobs: int, layers: Sequence[str]) -> bool:
    """Try every mutant; tell whether each was killed by a test that is sound itself."""
    with (
        tempfile.TemporaryDirectory(prefix="atalaia-mutants-") as home,
        get_context("spawn").Pool(jobs, Worker.prepare, (home,)) as pool,
    ):
        fates = []
        for fate in pool.imap(partial(Worker.try_mutant, layers=layers), mutants):
            tell(fate)
            fates.append(fate)
        killers = sorted({test for fate in fates for test in fate.killers})
        broken = pool.apply(Worker.failing, (killers,))
    if layers:
        tell_layers(fates, layers)
    for test in broken:
        say(f"ERROR: it fails without any mutant, too: {test}")
    killed = sum(not fate.error and bool(set(fate.killers) - set(broken)) for fate in fates)
    count = sum(not fate.error for fate in fates)
    say(f"mutants: {count} applied, {killed} killed, {count - killed} survived")
    return killed == len(mutants)


def main() -> int:
    """Return the exit code: 0 if every mutant was killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument(
        "--layers",
        nargs="+",
        default=[],
        choices=["all", *LAYERS],
        help="ask each of these layers, and show which notices what",
    )
    given = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    strangers = sorted(set(given.names) - set(known))
    if strangers:
        parser.error(f"no mutant is called {', '.join(strangers)}")
    chosen = [known[name] for name in given.names] or list(MUTANTS)
    layers = list(LAYERS) if "all" in given.layers else given.layers
    return 0 if try_all(chosen, given.jobs, layers) else 1


if __name__ == "__main__":
    sys.exit(main())
