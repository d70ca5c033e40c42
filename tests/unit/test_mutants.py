"""The list of mutants is in order: each can be applied, and each has its killers."""

import ast
from pathlib import Path

import pytest

from tests.mutants.mutations import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
AT_LEAST = 25


def test_there_are_enough_mutants_and_each_has_a_name_of_its_own() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= AT_LEAST


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_applied_and_is_code(mutant: Mutant) -> None:
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        text = texts.get(edit.file) or (ROOT / edit.file).read_text(encoding="utf-8")
        assert text.count(edit.old) == 1, f"{edit.file} no longer has it once: {edit.old!r}"
        texts[edit.file] = text.replace(edit.old, edit.new)
        assert texts[edit.file] != text
    for file, text in texts.items():
        ast.parse(text, file)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_killers_of_a_mutant_are_there(mutant: Mutant) -> None:
    assert mutant.killers
    for killer in mutant.killers:
        file, _, test = killer.partition("::")
        body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        tests = {node.name for node in body if isinstance(node, ast.FunctionDef)}
        assert not test or test in tests, f"there is no test {killer}"
