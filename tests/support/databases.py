"""A fresh database of any kind, with the schema and no rows."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mariadb import Mariadb
from tests.support.postgres import Postgres

EVERY = ("sqlite", "postgres", "mariadb")
CONCURRENT = ("postgres", "mariadb")
"""Those that let many write at once."""
USUAL = ("sqlite", "postgres")
"""Where a test takes long and another database would show no more."""


@contextmanager
def fresh_database(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Yield the URL of a database of the kind ``request.param``, for one user at a time."""
    kind: str = request.param
    if kind == "sqlite":
        path = folder / "atalaia.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    server: Postgres | Mariadb = request.getfixturevalue(kind)
    with server.database(request.getfixturevalue(f"{kind}_template")) as url:
        yield url
