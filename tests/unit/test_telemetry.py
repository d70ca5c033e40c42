"""A line of the log says what it is about, for people, for programs and for other formatters."""

import json
import logging
import re
from collections.abc import Iterator
from uuid import UUID

import pytest

from orchestration.telemetry import Log, configure_logs, log_for, log_of

TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_lines_for_people_tell_the_fields_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    log_for(UUID(int=7), "hotel", 2).warning("dropped", why="it was late", n=3, at="x")
    logging.getLogger("celery.beat").info("ringing %s", 1)
    ours, theirs = capsys.readouterr().err.splitlines()
    event, fields = (
        r"\[warning  \] dropped +",
        "at=x attempt=2 n=3 saga={} step=hotel why='it was late'",
    )
    assert re.fullmatch(f"{TIME} {event} {fields.format(UUID(int=7))}", ours)
    assert re.fullmatch(rf"{TIME} \[info     \] ringing 1 +\[celery\.beat\]", theirs)


def test_lines_for_programs_are_documents(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(json=True)
    log_of("node").bind(pid=7).error("is gone", lease=UUID(int=1))
    logging.getLogger("celery").critical("broke")
    ours, theirs = map(json.loads, capsys.readouterr().err.splitlines())
    assert re.fullmatch(TIME, ours.pop("timestamp"))
    assert ours == {
        "event": "is gone", "level": "error", "part": "node", "pid": 7,
        "lease": "UUID('00000000-0000-0000-0000-000000000001')",
    }  # fmt: skip
    assert (theirs["event"], theirs["logger"], theirs["level"]) == ("broke", "celery", "critical")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_traceback_tells_where_and_not_with_what(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    configure_logs(json=as_json)
    secret = "card 4111"
    try:
        int(secret[:4])
    except ValueError as error:
        log_of("agent").error("not decided", exc_info=error)
        log_of("agent").exception("nor here")
    said = capsys.readouterr().err
    assert said.count("ValueError") == 2
    assert said.count("test_a_traceback_tells_where") == 2
    assert "4111" not in said


def test_what_is_less_than_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(level=logging.WARNING)
    log = Log(part="x")
    for write in (log.debug, log.info, log.warning, log.error, log.critical):
        write("said")
    levels = re.findall(r"\[(\w+) *\]", capsys.readouterr().err)
    assert levels == ["warning", "error", "critical"]


def test_an_app_with_logging_of_its_own_is_told_the_fields_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_of("lease").warning("100 % refused", why="two words", attempt=1)
    assert caplog.messages == ["100 % refused attempt=1 part=lease why='two words'"]
    assert caplog.records[0].name == "atalaia"
