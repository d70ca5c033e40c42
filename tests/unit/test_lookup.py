import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestration.errors import ConfigurationError, InputError
from orchestration.events import UNSET
from orchestration.settings import Settings
from tasks.lookup import (
    existing_store,
    find_saga,
    one_line,
    parse_json,
    person,
    read_input,
    read_result,
    sqlite_file,
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": }', "at line 1, column 7"),
        ('{\n"a": 1,\n}', "at line 3, column 1"),
        ("", "at line 1, column 1"),
        ("[NaN]", "NaN is not a JSON number"),
        ("-Infinity", "-Infinity is not a JSON number"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "is not JSON"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(text: str, told: str) -> None:
    with pytest.raises(InputError, match=r"^here is not") as caught:
        parse_json(text, "here")
    assert told in str(caught.value)


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(raw: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(raw)))

    return give


def test_an_input_comes_as_text_from_a_file_or_from_standard_input(
    tmp_path: Path, stdin: Any
) -> None:
    (tmp_path / "input.json").write_text('{"a": "é"}', encoding="utf-8")
    assert read_input(None, None) is None
    assert read_input('{"a": 1}', None) == {"a": 1}
    assert read_input(None, str(tmp_path / "input.json")) == {"a": "é"}
    for arguments in (("-", None), (None, "-")):
        stdin(b"[2]")
        assert read_input(*arguments) == [2]


def test_an_input_that_cannot_be_read_is_refused(tmp_path: Path, stdin: Any) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_input(None, str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="Is a directory"):
        read_input(None, str(tmp_path))
    with pytest.raises(InputError, match="either --input or --input-file"):
        read_input("{}", "-")
    stdin(b'"\xff"')
    with pytest.raises(InputError, match="standard input is not UTF-8 at byte 1"):
        read_input("-", None)


@pytest.mark.parametrize("text", ["", "  ", "a\nb", "a\0b", "\x1b[31m", "x" * 201])
def test_a_line_that_cannot_be_kept_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--reason"):
        one_line(text, "--reason")


def test_a_line_is_kept_without_its_margins() -> None:
    assert one_line("  Öl fehlt ", "--reason") == "Öl fehlt"
    assert one_line(" ", "--reason", may_be_empty=True) == ""


def test_somebody_always_decides() -> None:
    assert person("ada") == "ada"
    assert "@" in person(None)
    with pytest.raises(InputError, match="--by"):
        person("")


def test_a_result_goes_with_succeeded_only() -> None:
    assert read_result(None, "retry") is UNSET
    assert read_result("null", "succeeded") is None
    with pytest.raises(InputError, match="not with retry"):
        read_result("1", "retry")


def test_a_database_that_was_never_made_is_not_made_by_looking(tmp_path: Path) -> None:
    given = Settings(home=tmp_path, database_url=None)
    with pytest.raises(ConfigurationError, match="run `atalaia migrate`"):
        existing_store(given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:////x/y.db", Path("/x/y.db")),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("postgresql://h/d", None),
    ],
)
def test_only_sqlite_in_a_file_has_a_file(url: str, file: Path | None) -> None:
    assert sqlite_file(url) == file


@pytest.mark.parametrize("text", ["", "1234567", "0123456g", "0" * 33, "order-17"])
def test_what_cannot_be_part_of_an_id_is_refused_before_any_look(text: str) -> None:
    with pytest.raises(InputError, match="is not a saga's id"):
        find_saga(None, text)  # type: ignore[arg-type]
