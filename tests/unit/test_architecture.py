"""The rules that hold the tree together, each checked on the sources themselves."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import median, quantiles

import pytest

import orchestration

ROOT = Path(__file__).parents[2]
ROOMS = ("models", "orchestration", "tasks", "web", "migrations", "examples")

MODULE_MAX = 400
FUNCTION_MAX = 45
FUNCTION_MEDIAN = 8
FUNCTION_P90 = 25

# Whoever asks for the time or for chance there, is asked by everybody else.
MAY_ASK_THE_CLOCK = {"orchestration/ports.py", "tasks/app.py"}
MAY_ROLL_DICE = {"orchestration/ports.py", "tasks/app.py"}
MAY_HOLD_STATE = {
    "orchestration/failpoint.py",
    "orchestration/metrics.py",
    "orchestration/registry.py",
    "tasks/app.py",
}
MAY_WRITE_SQL = {
    "orchestration/database.py",
    "orchestration/direct.py",
    "orchestration/due.py",
    "orchestration/present.py",
    "orchestration/retention.py",
    "orchestration/roster.py",
    "orchestration/starting.py",
    "orchestration/statement.py",
    "orchestration/store.py",
    "orchestration/taking.py",
    "orchestration/views.py",
    "orchestration/writer.py",
    # A simulated world is the database's other end: it loses commits, and reads everything at last.
    "tasks/proof/database.py",
    "tasks/proof/record.py",
}

CLOCKS = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "time.time"}
STATEMENTS = {
    f"sqlalchemy.{name}"
    for name in ("select", "insert", "update", "delete", "func", "text", "literal_column")
}
EXECUTIONS = {"execute", "exec_driver_sql", "scalar", "scalars"}
VAGUE_MODULES = {"utils", "util", "helpers", "helper", "common", "manager", "core", "misc"}
# What the glossary calls by another name. Only names that we define count, not ones that we call.
OTHER_WORDS = {"job", "jobs", "activity", "activities", "rollback", "execution", "participant"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sources(*rooms: str) -> list[Path]:
    """Return the product's modules, or those of some rooms."""
    return sorted(path for room in rooms or ROOMS for path in (ROOT / room).rglob("*.py"))


def own(*rooms: str) -> list[Path]:
    """Return the modules under the rules for decisions: examples stand for the world outside."""
    return [p for p in sources(*rooms) if p.relative_to(ROOT).parts[0] != "examples"]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of the body, without the docstring."""
    documented = ast.get_docstring(function) is not None and len(function.body) > 1
    first = function.body[1 if documented else 0]
    return (function.end_lineno or first.lineno) - first.lineno + 1


def places(
    paths: Iterable[Path],
    wrong: Callable[[ast.AST], bool],
    besides: Collection[str] = (),
) -> list[str]:
    """Return where the sources have a wrong node, other than in some modules."""
    return [
        f"{name_of(path)}:{getattr(node, 'lineno', 1)} {ast.unparse(node)[:60]}"
        for path in paths
        if name_of(path) not in besides
        for node in ast.walk(parsed(path))
        if wrong(node)
    ]


def dotted(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""


def imported(node: ast.AST) -> set[str]:
    """Return what an import statement brings in, with the outermost package of where from."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        package = (node.module or "").partition(".")[0]
        return {package, *(f"{package}.{alias.name}" for alias in node.names)}
    return set()


def defined(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each class, function, argument and variable."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_imports_keep_their_contracts() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [program, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_stay_readable_in_one_sitting() -> None:
    lines = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in sources()}
    assert {name: count for name, count in lines.items() if count > MODULE_MAX} == {}


def test_functions_stay_short() -> None:
    lengths = {
        f"{name_of(path)}:{function.lineno} {function.name}": length(function)
        for path in sources()
        if "versions" not in path.parts  # a migration is a list of columns
        for function in functions(path)
    }
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_MAX} == {}
    assert median(lengths.values()) <= FUNCTION_MEDIAN
    assert quantiles(lengths.values(), n=10)[-1] <= FUNCTION_P90


@pytest.mark.proves("D-16")
def test_only_the_ports_ask_the_clock() -> None:
    assert places(own(), lambda node: dotted(node) in CLOCKS, besides=MAY_ASK_THE_CLOCK) == []


def test_only_the_ports_roll_dice() -> None:
    assert places(own(), lambda node: "random" in imported(node), besides=MAY_ROLL_DICE) == []


def test_only_the_store_its_kin_and_the_views_write_sql() -> None:
    def writes_sql(node: ast.AST) -> bool:
        executes = isinstance(node, ast.Attribute) and node.attr in EXECUTIONS
        return executes or bool(imported(node) & STATEMENTS)

    rooms = own("orchestration", "tasks", "web")
    redis = {"tasks/channel.py"}  # What is executed there is no SQL.
    assert places(rooms, writes_sql, besides=MAY_WRITE_SQL | redis) == []


def test_only_who_shows_metrics_knows_prometheus_and_nobody_knows_opentelemetry() -> None:
    shown_by = {"tasks/metrics.py", "web/app.py", "web/metrics.py"}
    watching = {"opentelemetry", "prometheus_client"}
    assert places(own(), lambda node: bool(imported(node) & watching), besides=shown_by) == []


def test_a_worker_needs_no_opentelemetry_and_loads_only_what_it_uses() -> None:
    """What its agents load is theirs; the travel agents' httpx brings rich along."""
    unused = {"alembic", "fastapi", "jsonschema", "prometheus_client", "rich", "sqlalchemy.orm"}
    program = (
        "import sys; sys.modules['opentelemetry'] = None; import tasks.app; "
        f"print({unused} & set(sys.modules))"
    )
    env = os.environ | {"ATALAIA_AGENTS": "", "ATALAIA_WORKFLOWS": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("setting", "url", "unused"),
    [
        ("BROKER_URL", "amqp://127.0.0.1", {"redis"}),
        ("DATABASE_URL", "sqlite://", {"psycopg", "sqlalchemy.dialects.mysql"}),
        ("DATABASE_URL", "postgresql://127.0.0.1/x", {"pymysql", "sqlalchemy.dialects.mysql"}),
    ],
)
def test_a_worker_loads_the_client_of_its_own_services_only(
    setting: str, url: str, unused: set[str], tmp_path: Path
) -> None:
    program = (
        "import sys; from tasks.app import app, runtime; runtime(); app.connection().transport; "
        f"print({unused} & set(sys.modules))"
    )
    env = os.environ | {"ATALAIA_HOME": str(tmp_path), f"ATALAIA_{setting}": url}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == "set()\n"


def test_a_worker_loads_nothing_of_celery_that_it_does_not_run() -> None:
    """What the whole command line loads, and Flower with it, is a sixth of a worker's memory."""
    program = (
        "import sys; from tasks.program import run\n"
        "try: run('worker', ['--help'])\n"
        "except SystemExit: print({'celery.bin.celery', 'prompt_toolkit', 'flower', 'tornado'} "
        "& set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "--concurrency" in done.stdout
    assert "--with-beat" in done.stdout, "what Atalaia adds to it"
    assert done.stdout.endswith("set()\n")


def test_garbage_is_looked_for_only_when_a_worker_has_been_loaded_and_is_shared() -> None:
    program = (
        "import gc; gc.disable(); import tasks.app; print(gc.isenabled()); "
        "tasks.app.tasks.node._share_memory(); print(gc.isenabled(), gc.get_freeze_count() > 1000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True", "True"]


def test_beat_loads_neither_the_database_nor_any_agent() -> None:
    program = (
        "import sys; import tasks.beat; tasks.beat.app.conf.beat_schedule; "
        "print(sorted({'sqlalchemy', 'tasks.app', 'orchestration.registry'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_every_public_name_is_there() -> None:
    assert all(getattr(orchestration, name) is not None for name in orchestration.__all__)
    assert not hasattr(orchestration, "Scheduler")


def test_rows_hold_no_statements() -> None:
    conditions_of_partial_indexes = {"sqlalchemy.text"}
    statements = STATEMENTS - conditions_of_partial_indexes
    assert places(own("models"), lambda node: bool(imported(node) & statements)) == []


def test_modules_hold_no_state() -> None:
    def is_state(node: ast.AST) -> bool:
        if isinstance(node, ast.Module):
            changeable.update(statement for statement in node.body if _is_changeable(statement))
        return isinstance(node, ast.Global) or node in changeable

    changeable: set[ast.AST] = set()
    assert places(own(), is_state, besides=MAY_HOLD_STATE) == []


def _is_changeable(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    constant = all(name.isupper() or name.startswith("__") for name in names)
    return not constant and isinstance(node.value, ast.Dict | ast.List | ast.Set)


def test_names_use_the_words_of_the_glossary() -> None:
    found = [
        f"{name_of(path)}:{line} {name}"
        for path in sources()
        for line, name in [(1, path.stem), *defined(path)]
        if words(name) & OTHER_WORDS or (line == 1 and name in VAGUE_MODULES)
    ]
    assert found == []


def test_nothing_is_left_for_later_in_a_comment() -> None:
    later = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [name_of(path) for path in sources() if later.search(path.read_text("utf-8"))] == []


def test_a_unit_test_file_is_named_for_its_module() -> None:
    modules = {path.stem for path in sources()}
    files = (ROOT / "tests/unit").rglob("test_*.py")
    strangers = {f.name for f in files if f.stem.removeprefix("test_") not in modules}
    assert strangers == {
        "test_architecture.py",
        "test_compose.py",
        "test_deploy.py",
        "test_docs.py",
        "test_mutants.py",
    }


def test_tests_wait_for_signals_and_never_sleep() -> None:
    sleeps = {"time.sleep", "asyncio.sleep"}
    tests = (ROOT / "tests").rglob("*.py")
    the_one_place = {"tests/support/waiting.py"}
    assert places(tests, lambda node: dotted(node) in sleeps, besides=the_one_place) == []
