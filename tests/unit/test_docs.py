"""The documents say what the code does: charts, tables, names and links are compared with it."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import typer
from pydantic_core import PydanticUndefined

from models.states import ATTEMPT_MOVES, SAGA_MOVES, STEP_MOVES
from orchestration.contract import AgentContract
from orchestration.events import Remedy
from orchestration.ports import SilentDispatcher
from orchestration.settings import Settings
from orchestration.supervisor import Supervisor

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DECISIONS = DOCS / "decisions"
ARROW = re.compile(r"^ +(\[\*\]|\w+) --> (\[\*\]|\w+)(?: : (.+))?$", re.MULTILINE)
CHARTS: dict[str, Any] = {"Saga": SAGA_MOVES, "Step": STEP_MOVES, "Attempt": ATTEMPT_MOVES}
PARTS = ("Context", "Decision", "Consequences", "What would change our mind")
NO_TEST = "No test yet"
STATEMENTS = [
    f"{kind}-{number:02}"
    for kind, count in {"SAS": 15, "SUP": 12, "REC": 6, "CT": 14}.items()
    for number in range(1, count + 1)
] + [f"INV-{number}" for number in range(1, 15)]


# --- reading the documents -----------------------------------------------------------------------


def documents() -> list[Path]:
    return sorted([ROOT / "README.md", *DOCS.rglob("*.md")])


def section(document: str, heading: str) -> str:
    """Return what stands under a heading of level two."""
    text = (DOCS / document).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def table(text: str) -> list[list[str]]:
    """Return the cells of every table row in ``text``, without heads and rules."""
    lines = text.splitlines()
    rules = {number for number, line in enumerate(lines) if re.fullmatch(r"\|[-|]+\|", line)}
    heads = {number - 1 for number in rules}
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for number, line in enumerate(lines)
        if line.startswith("|") and number not in rules | heads
    ]


def rows(document: str) -> dict[str, list[str]]:
    """Return the tables of a document by their first cells, none of which may come twice."""
    found = table((DOCS / document).read_text(encoding="utf-8"))
    firsts = [cells[0] for cells in found]
    assert len(firsts) == len(set(firsts)), f"{document} has a row twice"
    return {cells[0]: cells for cells in found}


def ticked(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


# --- reading the tests ---------------------------------------------------------------------------


@cache
def marks() -> dict[str, set[str]]:
    """Return the tests by name, each with what it is marked to show."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] |= {word for mark in node.decorator_list for word in proves(mark)}
    return found


def proves(decorator: ast.expr) -> Iterator[str]:
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.proves":
        yield from (ast.literal_eval(argument) for argument in decorator.args)


def problems(statement: str, cell: str) -> Iterator[str]:
    """Yield what is wrong with the last cell of a row that is about ``statement``."""
    named = [name for name in ticked(cell) if name.startswith("test_")]
    for name in named:
        if name not in marks():
            yield f"{statement}: there is no test {name}"
        elif statement not in marks()[name]:
            yield f"{statement}: {name} is not marked to show it"
    if not named and any(statement in shown for shown in marks().values()):
        yield f"{statement}: there is a test, and the document does not name it"
    if not (named or len(cell) >= len(NO_TEST)):
        yield f"{statement}: neither a test nor a reason"


# --- the charts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", CHARTS)
def test_a_state_chart_has_every_legal_move_once_and_no_other(machine: str) -> None:
    legal: dict[StrEnum, frozenset[StrEnum]] = CHARTS[machine]
    arrows = ARROW.findall(section("state-machine.md", machine))
    moves = [(source, target) for source, target, _ in arrows if "[*]" not in {source, target}]
    assert sorted(moves) == sorted((str(a), str(b)) for a, after in legal.items() for b in after)
    assert [target for source, target, _ in arrows if source == "[*]"] == [str(next(iter(legal)))]
    ends = {source for source, target, _ in arrows if target == "[*]"}
    assert ends == {str(state) for state, after in legal.items() if not after}


@pytest.mark.parametrize("machine", CHARTS)
def test_every_arrow_of_a_chart_names_its_cause(machine: str) -> None:
    arrows = ARROW.findall(section("state-machine.md", machine))
    assert [(a, b) for a, b, cause in arrows if b != "[*]" and not cause] == []


# --- the tables ----------------------------------------------------------------------------------


def test_the_settings_table_has_every_setting_with_its_default() -> None:
    told = {cells[0]: cells[1] for cells in table(section("operations.md", "Settings"))}
    fields = Settings.model_fields
    assert list(told) == [f"`ATALAIA_{name.upper()}`" for name in fields]
    wrong = {
        name: (cell, field.default)
        for (name, field), cell in zip(fields.items(), told.values(), strict=True)
        if cell != default_of(field.default, cell)
    }
    assert wrong == {}


def default_of(default: Any, cell: str) -> str:
    """Return how a default is written; what depends on others is told in words."""
    if default is None or default is PydanticUndefined:
        return cell
    if isinstance(default, timedelta):
        days = default / timedelta(days=1)
        return f"{days:g} d" if days >= 1 else f"{default.total_seconds():g} s"
    text = ",".join(default) if isinstance(default, tuple) else str(default)
    return f"`{text.lower() if isinstance(default, bool) else text}`"


def test_the_recovery_table_has_the_rows_of_the_code_and_their_tests() -> None:
    told = rows("recovery-table.md")
    source = ast.parse((ROOT / "orchestration/recovery.py").read_text(encoding="utf-8"))
    strings = {n.value for n in ast.walk(source) if isinstance(n, ast.Constant)}
    coded = {s for s in strings if isinstance(s, str) and re.fullmatch(r"\d+b?", s)}
    assert set(told) == coded
    assert [line for row in told for line in problems(f"row {row}", told[row][-1])] == []
    assert [row for row, cells in told.items() if NO_TEST in cells[-1]] == []


def test_the_failure_table_has_every_failure_and_names_tests_that_exist() -> None:
    told = rows("failure-modes.md")
    assert list(told) == [f"D-{number:02}" for number in range(1, 31)]
    assert [line for row in told for line in problems(row, told[row][-1])] == []
    assert [row for row, cells in told.items() if NO_TEST in cells[-1] or "" in cells] == []
    assert {len(cells) for cells in told.values()} == {7}


def test_the_statements_stand_there_once_each_with_a_test_or_a_reason() -> None:
    told = rows("statements.md")
    assert list(told) == STATEMENTS
    assert [line for row in told for line in problems(row, told[row][-1])] == []
    assert [row for row, cells in told.items() if NO_TEST in cells[-1]] == []


def test_the_invariants_are_told_where_they_are_held() -> None:
    told = table(section("architecture.md", "Invariants"))
    assert [cells[0] for cells in told] == [row for row in STATEMENTS if row.startswith("INV")]


def test_the_incident_table_has_every_kind_that_the_code_opens() -> None:
    told = [ticked(cells[0])[0] for cells in table(section("operations.md", "Incidents"))]
    assert sorted(told) == sorted(set(kinds_of_incidents()))
    assert set(ticked(section("operations.md", "Incidents"))) >= {str(r) for r in Remedy}


def kinds_of_incidents() -> Iterator[str]:
    for path in (ROOT / "orchestration").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for given in given_kinds(node):
                strings = (n.value for n in ast.walk(given) if isinstance(n, ast.Constant))
                yield from (s for s in strings if isinstance(s, str))


def given_kinds(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in which a node names kinds of incidents."""
    if isinstance(node, ast.keyword) and node.arg == "alert":
        yield node.value
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in {"alert", "UNSERVED"}:
        yield node.value
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {"draft.alert", "draft.park"}:
        yield node.args[1]


def test_the_sweeps_are_told_in_their_order() -> None:
    nodes = section("architecture.md", "Nodes, the keeper, the sweeps")
    duties = list(Supervisor(Mock(), SilentDispatcher()).duties)
    told = [ticked(cells[0]) for cells in table(nodes)]
    assert [name for names in told for name in names if name in duties] == duties


def test_the_agent_contract_tells_every_property_of_an_agent() -> None:
    declared = table(section("agent-contract.md", "What is declared"))
    assert [ticked(cells[0])[0] for cells in declared] == list(AgentContract.__dataclass_fields__)


# --- names and links -----------------------------------------------------------------------------


def test_every_test_that_a_document_names_exists() -> None:
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    wrong = [
        (path.name, name)
        for path in documents()
        for name in re.findall(r"\btest_\w+(?:\.py)?\b(?!…)", path.read_text(encoding="utf-8"))
        if name not in marks() and name not in files and name != "test_row_"
    ]
    assert wrong == []


def test_every_link_leads_somewhere() -> None:
    wrong = [
        (path.relative_to(ROOT).as_posix(), link)
        for path in documents()
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
        if "://" not in link and not leads_somewhere(path, link)
    ]
    assert wrong == []


def leads_somewhere(path: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (path.parent / name).resolve() if name else path
    if not target.exists():
        return False
    return not anchor or anchor in anchors(target)


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached, ahead = set[Path](), [ROOT / "README.md"]
    while ahead:
        path = ahead.pop()
        if path in reached or path.suffix != ".md":
            continue
        reached.add(path)
        links = re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8"))
        ahead += [(path.parent / link).resolve() for link in links if "://" not in link]
    assert set(documents()) <= reached


def test_decisions_are_numbered_listed_and_have_all_their_parts() -> None:
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    assert len({page.name[:4] for page in pages}) == len(pages), "a number is used twice"
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in pages if f"]({page.name})" not in index] == []
    headings = re.compile(r"^## (.+)$", re.MULTILINE)
    parts = {page.name: headings.findall(page.read_text(encoding="utf-8")) for page in pages}
    assert {name: found for name, found in parts.items() if not set(PARTS) <= set(found)} == {}


def test_the_commands_that_documents_give_exist() -> None:
    from tasks.cli import app

    root = cast(Any, typer.main.get_command(app))
    commands = set(root.commands)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    wrong = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"(?:`|^|&& )atalaia ([a-z]+)", text, re.MULTILINE):
            wrong += [] if name in commands else [(path.name, f"atalaia {name}")]
        for name in re.findall(r"(?:`|^|&& )make ([a-z-]+)", text, re.MULTILINE):
            wrong += [] if name in targets else [(path.name, f"make {name}")]
    assert wrong == []
    told = ticked(" ".join(cells[0] for cells in table(section("operations.md", "Commands"))))
    assert {command.split()[1] for command in told} == commands


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200
