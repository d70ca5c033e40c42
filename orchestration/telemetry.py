"""Structured logs with the ids of what they are about. Secrets and payloads are never logged.

Everything goes through the standard library's logging: its locks survive a fork, which a worker's
parent does at any time, also while another thread of it writes a line. Nothing else is loaded for
it; a library for logs, with what it colours them by, would be a fifteenth of a worker's memory.
"""

import json as js
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from orchestration import tracing

_OURS = logging.getLogger("atalaia")
_RED, _YELLOW = 31, 33
_COLOURS = {logging.WARNING: _YELLOW, logging.ERROR: _RED, logging.CRITICAL: _RED}


class Said:
    """What a line says: an event and its fields. As text, for whoever formats lines by himself."""

    def __init__(self, event: str, fields: Mapping[str, Any]) -> None:
        self.event = event
        self.fields = fields

    def __str__(self) -> str:
        return " ".join([self.event, *_pairs(self.fields)])


class Log:
    """A logger that is bound to what it is about. Fields are given by name, with each line."""

    def __init__(self, **bound: Any) -> None:
        self.bound = bound

    def bind(self, **more: Any) -> "Log":
        """Return a logger that is bound to more."""
        return Log(**self.bound | more)

    def debug(self, event: str, /, **fields: Any) -> None:
        """Write a line for whoever looks for a mistake."""
        self._write(logging.DEBUG, event, **fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Write a line about what goes as it should."""
        self._write(logging.INFO, event, **fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Write a line about what does not, and will be settled."""
        self._write(logging.WARNING, event, **fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """Write a line about what somebody has to look at."""
        self._write(logging.ERROR, event, **fields)

    def critical(self, event: str, /, **fields: Any) -> None:
        """Write a line about the end."""
        self._write(logging.CRITICAL, event, **fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """Write a line about the exception that is being handled, with its traceback."""
        self._write(logging.ERROR, event, **{"exc_info": True, **fields})

    def _write(self, level: int, event: str, /, exc_info: Any = None, **fields: Any) -> None:
        if _OURS.isEnabledFor(level):
            _OURS.log(level, Said(event, self.bound | fields), exc_info=exc_info)


def log_for(saga_id: UUID | str, path: str, attempt: int) -> Log:
    """Return a logger bound to a saga, a step and an attempt."""
    return Log(saga=str(saga_id), step=path, attempt=attempt)


def log_of(part: str) -> Log:
    """Return the logger of one part of the system."""
    return Log(part=part)


def configure_logs(*, json: bool = False, level: int = logging.INFO) -> None:
    """Write every log line of this process to stderr once, for people or as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if json else _Plain(coloured=sys.stderr.isatty()))
    logging.basicConfig(level=level, handlers=[handler], force=True)


class _Json(logging.Formatter):
    """A JSON document in each line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        event, logger, fields = _parts(record)
        line = {**fields, "event": event, **({"logger": logger} if logger else {})}
        line |= {"level": record.levelname.lower(), "timestamp": _time(record), **tracing.ids()}
        if trouble := _trouble(self, record):
            line["exception"] = trouble
        return js.dumps(line, default=repr)


class _Plain(logging.Formatter):
    """Lines for people; a traceback without the values, which may be anybody's secrets."""

    def __init__(self, *, coloured: bool) -> None:
        super().__init__()
        self.coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback below it."""
        event, logger, fields = _parts(record)
        level = f"{record.levelname.lower():<9}"
        if self.coloured and (colour := _COLOURS.get(record.levelno)):
            level = f"\x1b[{colour}m{level}\x1b[0m"
        words = [f"[{logger}]"] if logger else []
        words += _pairs(fields | tracing.ids())
        line = f"{_time(record)} [{level}] {event:<30} {' '.join(words)}"
        return "\n".join(part for part in (line, _trouble(self, record)) if part)


def _parts(record: logging.LogRecord) -> tuple[str, str | None, dict[str, Any]]:
    """Return a line's event, its logger where it is none of ours, and its fields."""
    said = record.msg
    if isinstance(said, Said):
        return said.event, None, dict(said.fields)
    return record.getMessage(), record.name, {}


def _pairs(fields: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_shown(fields[name])}" for name in sorted(fields)]


def _shown(value: Any) -> str:
    """Return a value; one that could be taken for two, or for more than a line, in quotes."""
    text = value if isinstance(value, str) else repr(value)
    return repr(text) if isinstance(value, str) and set(text) & set(" \t\r\n=\"'") else text


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _trouble(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)
