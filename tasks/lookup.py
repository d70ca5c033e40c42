"""What a command is about: the database, a saga named by a part of its id, an input. Only reads.

A refused command leaves no trace, so a SQLite file that is not there is not made by looking at it.
"""

import getpass
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

from sqlalchemy.engine import make_url

from orchestration import views
from orchestration.database import open_engine
from orchestration.errors import ConfigurationError, InputError, NotFoundError, RefusedError
from orchestration.events import UNSET, Remedy
from orchestration.settings import Settings
from orchestration.store import Store

SHORTEST_PART = 8
LONGEST_LINE = 200
_DIGITS = 32


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite URL; ``None`` for another database or one in memory."""
    parsed = make_url(url)
    in_memory = parsed.database in {None, "", ":memory:"}
    return None if parsed.get_backend_name() != "sqlite" or in_memory else Path(parsed.database)  # type: ignore[arg-type]


def existing_store(settings: Settings) -> Store:
    """Return the rows; raise ``ConfigurationError`` if their database was never made."""
    engine = open_engine(settings.database)
    file = sqlite_file(settings.database)
    if file is not None and not file.is_file():
        raise ConfigurationError(f"there is no database at {file}; run `atalaia migrate`")
    return Store(engine)


def find_saga(store: Store, text: str) -> UUID:
    """Return the saga whose id is ``text``, or begins or ends with it.

    Raises ``InputError`` for what cannot be a part of an id, and for one that fits several sagas;
    ``NotFoundError`` if it fits none.
    """
    part = text.strip().lower().replace("-", "")
    if not SHORTEST_PART <= len(part) <= _DIGITS or set(part) - set("0123456789abcdef"):
        raise InputError(
            f"{text!r} is not a saga's id: give all of it, or at least {SHORTEST_PART} digits of "
            "its beginning or its end"
        )
    with store.reading() as connection:
        if len(part) == _DIGITS:
            views.saga_state(connection, UUID(part))
            return UUID(part)
        found = views.find_sagas(connection, part)
    if not found:
        raise NotFoundError(f"there is no saga {text}")
    if len(found) > 1:
        these = " and ".join(map(str, found))
        raise InputError(f"{text!r} fits more than one saga ({these}, …); give more of the id")
    return found[0]


def find_question(store: Store, incident_id: int) -> Any:
    """Return an incident's row; raise ``NotFoundError``, or ``RefusedError`` if it is answered."""
    with store.reading() as connection:
        row = views.incident(connection, incident_id)
    if row.resolved_at is not None:
        by = f" by {row.resolved_by}" if row.resolved_by else ""
        raise RefusedError(f"incident {incident_id} is resolved already: {row.resolution}{by}")
    return row


def person(given: str | None) -> str:
    """Return who decides: the one who is named, or the user of this shell."""
    if given is not None:
        return one_line(given, "--by")
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return f"uid {os.getuid()}@{socket.gethostname()}"


def one_line(text: str, option: str, *, may_be_empty: bool = False) -> str:
    """Return ``text`` if it is a line that can be kept; raise ``InputError`` if not."""
    text = text.strip()
    if not (text or may_be_empty):
        raise InputError(f"{option} may not be empty")
    if len(text) > LONGEST_LINE or not text.isprintable():
        raise InputError(f"{option} must be one line of at most {LONGEST_LINE} characters")
    return text


def read_result(text: str | None, remedy: str) -> Any:
    """Return the result that an operator gives with a remedy, or ``UNSET``."""
    if text is None:
        return UNSET
    if remedy != Remedy.SUCCEEDED:
        raise InputError(f"--result goes with the remedy succeeded only, not with {remedy}")
    return parse_json(text, "--result")


def read_input(text: str | None, file: str | None) -> Any:
    """Return the JSON given as text, in a file, or (``-``) on standard input; ``None`` if none is.

    Raises ``InputError`` that says where it stops being JSON.
    """
    if text is not None and file is not None:
        raise InputError("give the input once: either --input or --input-file")
    if text is not None and text != "-":
        return parse_json(text, "--input")
    if text is None and file is None:
        return None
    source = "standard input" if "-" in {text, file} else str(file)
    try:
        raw = sys.stdin.buffer.read() if source != file else Path(source).read_bytes()
        return parse_json(raw.decode(), source)
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}") from None


def parse_json(text: str, source: str) -> Any:
    """Return what ``text`` holds; raise ``InputError`` with the position of the mistake."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"{source} is not JSON: {error.msg} at {where}") from None
    except ValueError as error:
        raise InputError(f"{source} is not JSON: {error}") from None
    except RecursionError:
        raise InputError(f"{source} is not usable: it is nested too deeply") from None
