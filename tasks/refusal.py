"""What a person is told when a command cannot be done: one line, and the exit status.

Status 2: the command was refused and nothing was written. Status 1: it was understood and failed.
Nobody is shown a traceback, or a password.
"""

from typing import Any

from pydantic import ValidationError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from typer import TyperException

from orchestration.definition import explain
from orchestration.errors import AtalaiaError
from orchestration.settings import settings

REFUSED = 2
FAILED = 1

_NO_TABLE_OR_COLUMN = frozenset({"42P01", "42703", 1146, 1054})
"""The codes of PostgreSQL, and of MariaDB and MySQL."""
_PORTS = {"postgresql": 5432}


def told(error: Exception) -> tuple[str, int]:
    """Return the line for the person and the exit status."""
    match error:
        case TyperException():
            return _of_usage(error), error.exit_code
        case AtalaiaError():
            return str(error), REFUSED
        case ValidationError():
            asked = error.title.endswith("Request")
            return explain(error) if asked else f"{error.title}: {explain(error)}", REFUSED
        case SQLAlchemyError():
            return of_database(error), REFUSED
        case TimeoutError():
            return str(error), FAILED
        case OSError() if error.filename:
            return f"{error.filename}: {error.strerror}", REFUSED
        case _:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            return f"something broke: {what} (`atalaia --debug …` shows where)", FAILED


def _of_usage(error: TyperException) -> str:
    text = " ".join(error.format_message().split())
    return text.replace("Value error, ", "").removesuffix(".")


def of_database(error: SQLAlchemyError) -> str:
    """Return what is wrong with the database, and what to do or which setting to look at."""
    original = error.orig if isinstance(error, DBAPIError) else None
    code, said = _told_by(original)
    first = (said or str(original or error)).strip().partition("\n")[0]
    if first.startswith(("no such table", "no such column")):
        return "the database is not migrated; run `atalaia migrate`"
    if code in _NO_TABLE_OR_COLUMN:
        return "the database is not migrated; run `atalaia migrate`"
    if first == "database is locked":
        return f"the database at {place(settings().database)} is busy: another writer holds it"
    where = f"the database at {place(settings().database)}"
    setting = "ATALAIA_DATABASE_URL" if settings().database_url else "ATALAIA_HOME"
    return f"{where} cannot be used (see {setting}): {first}"


def _told_by(original: Any) -> tuple[Any, str]:
    """Return the code of a driver's error, if it has one, and what PyMySQL gives beside it."""
    match getattr(original, "args", ()):
        case (int(code), str(said)):
            return code, said
        case _:
            return getattr(original, "sqlstate", None), ""


def place(url: str) -> str:
    """Return where a database is, without any secret."""
    parsed = make_url(url)
    port = parsed.port or _PORTS.get(parsed.get_backend_name(), 3306)
    host = f"{parsed.host}:{port}/" if parsed.host else ""
    return f"{host}{parsed.database or ''}"
