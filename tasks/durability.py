"""What `atalaia check` asks the database: whether it keeps what it has committed.

Everything rests on that. A grant that was committed and is gone looks like a call that was never
made, and is made again: the one way in which a set-up can double or lose an effect.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import psutil

from orchestration.mysql import LONGEST_DOCUMENT
from tasks.findings import Finding, error, note, warning

LEAST_POSTGRESQL = 13
LEAST_MYSQL = {"MariaDB": (10, 6), "MySQL": (8, 0, 17)}
"""The first ones that skip locked rows, and that compare texts by each of their characters."""
_SHORT_MILLISECONDS = 10_000
_FORGOTTEN = (
    "a crash of its machine loses commits: a step that was sent looks as if it was not, "
    "and may be done twice"
)
_AFTER = "; after a crash run `atalaia distrust` before the workers"
_MUST_BE_ON = {
    "fsync": f"{_FORGOTTEN}, or the tables are destroyed",
    "full_page_writes": "a crash of its machine can leave half-written pages: sagas are destroyed",
}
_CUTS = {
    "statement_timeout": "statements that wait for a lock",
    "transaction_timeout": "transactions that wait for a lock",
    "idle_in_transaction_session_timeout": "transactions of a busy worker",
    "lock_timeout": "whoever waits for a saga that another one writes",
}
_MYSQL_CUTS = {
    "max_statement_time": "statements that wait for a lock",
    "idle_transaction_timeout": "transactions of a busy worker",
    "idle_write_transaction_timeout": "transactions of a busy worker",
}
_PACKET = 4 * LONGEST_DOCUMENT
_OVER_A_NETWORK = {
    "9p", "afs", "afpfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gfs2", "glusterfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs",
    "webdav",
}  # fmt: skip
_UNPOOLED = {"prefork", "processes", "solo"}


class Mount(Protocol):
    """A part of the file system, as psutil tells it."""

    mountpoint: str
    fstype: str


def postgresql(found: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what in PostgreSQL's settings loses commits or cuts transactions."""
    version = int(found["server_version_num"]) // 10_000
    if version < LEAST_POSTGRESQL:
        text = f"PostgreSQL {version} is older than {LEAST_POSTGRESQL}"
        yield error("database", text, remedy=f"upgrade it to {LEAST_POSTGRESQL} or later")
    for name, why in _MUST_BE_ON.items():
        if found[name] == "off":
            yield _wrong(f"{name} is off", name, why, f"set {name} = on in postgresql.conf")
    commit = found["synchronous_commit"]
    standbys = found["synchronous_standby_names"]
    if commit == "off":
        remedy = f"set synchronous_commit = on for this database and its role{_AFTER}"
        yield _wrong("synchronous_commit is off", "synchronous_commit", _FORGOTTEN, remedy)
    elif commit == "local" and standbys:
        why = "a fail-over loses commits: a step that was sent may be done twice"
        remedy = "set synchronous_commit = on, or run `atalaia distrust` after each fail-over"
        yield _wrong("synchronous_commit is local", "synchronous_commit", why, remedy)
    for name, whom in _CUTS.items():
        milliseconds = int(found.get(name, "0"))
        if 0 < milliseconds < _SHORT_MILLISECONDS:
            text = f"{name} is {milliseconds / 1000:g} s"
            why = f"it cuts {whom}; only time is lost: what was cut is decided again"
            yield _wrong(text, name, why, "set it to 10 s or more, or to 0")


def mysql(found: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what in MariaDB's or MySQL's settings loses commits, cuts or refuses transactions."""
    yield from _wrong_server(found)
    name = "innodb_flush_log_at_trx_commit"
    if found[name] != "1":
        yield _wrong(f"{name} is {found[name]}", name, _FORGOTTEN, f"set {name} = 1{_AFTER}")
    if found["log_bin"] == "ON":
        yield from _wrong_log(found)
    if found["innodb_doublewrite"] in {"OFF", "0", "DETECT_ONLY"}:
        text = f"innodb_doublewrite is {found['innodb_doublewrite']}"
        why = _MUST_BE_ON["full_page_writes"]
        yield _wrong(text, "innodb_doublewrite", why, "set innodb_doublewrite = ON")
    if (most := int(found["max_allowed_packet"])) < _PACKET:
        why = "a long result cannot be stored or read: its step is asked about for ever"
        remedy = f"set max_allowed_packet = {_PACKET} or more"
        text = f"max_allowed_packet is {most}"
        yield _wrong(text, "max_allowed_packet", why, remedy)
    for name, whom in _MYSQL_CUTS.items():
        seconds = float(found.get(name, "0"))
        if 0 < seconds < _SHORT_MILLISECONDS / 1000:
            why = f"it cuts {whom}; only time is lost: what was cut is decided again"
            yield _wrong(f"{name} is {seconds:g} s", name, why, "set it to 10 or more, or to 0")


def _wrong_server(found: Mapping[str, str]) -> Iterator[Finding]:
    """Yield whether it is a server, with tables, on which transactions do not hold as they must."""
    name = "MariaDB" if "mariadb" in found["version"].lower() else "MySQL"
    version = tuple(int(part) for part in re.findall(r"\d+", found["version"])[:3])
    least = LEAST_MYSQL[name]
    if version < least:
        dotted = ".".join(map(str, least))
        text = f"{name} {found['version']} is older than {dotted}"
        yield error("database", text, remedy=f"upgrade it to {dotted} or later")
    if others := set(found["engines"].split()) - {"InnoDB"}:
        text = f"tables are kept by {', '.join(sorted(others))}, which knows no transactions"
        yield error("database", text, remedy="ALTER TABLE … ENGINE = InnoDB for each of them")
    if found.get("wsrep_on") == "ON":
        why = (
            "locks hold on one node only: writes to another one are refused when they are committed"
        )
        remedy = "have all of Atalaia use one node, and run `atalaia distrust` when it has changed"
        yield _wrong("it is a Galera cluster", "wsrep_on", why, remedy)


def _wrong_log(found: Mapping[str, str]) -> Iterator[Finding]:
    if found["sync_binlog"] != "1":
        text = f"log_bin is on and sync_binlog is {found['sync_binlog']}"
        yield _wrong(text, "sync_binlog", _FORGOTTEN, f"set sync_binlog = 1{_AFTER}")
    if found["binlog_format"] == "STATEMENT":
        text = "binlog_format is STATEMENT, with which no transaction of ours is accepted"
        yield error("database", text, remedy="set binlog_format = ROW, or MIXED")


def connections(most: int, concurrency: int, each: int) -> Iterator[Finding]:
    """Yield whether a server lets in too few for one worker and one process with threads."""
    needed = concurrency + 1 + each
    if most < needed:
        text = f"max_connections is {most}; a worker and a web app open up to {needed}"
        why = "whoever is not let in fails, and the steps are left to the supervisor"
        remedy = f"set it to {needed} or more, and so many more for each further worker"
        yield _wrong(text, "max_connections", why, remedy)


def sqlite(found: Mapping[str, str], file: Path | None, mounts: list[Any]) -> Iterator[Finding]:
    """Yield what in SQLite's set-up loses commits."""
    if file is None:
        yield _wrong(
            "it is in memory", "database_url", "it ends with its process", "name a file in the URL"
        )
        return
    if found["journal_mode"] != "wal":
        why = (
            "its folder does not allow WAL: readers and writers shut each other out, and steps wait"
        )
        remedy = "put the file on a local disk"
        yield _wrong(f"journal_mode is {found['journal_mode']}", "journal_mode", why, remedy)
    if int(found["synchronous"]) < 2:  # noqa: PLR2004 - SQLite's own number for FULL
        remedy = "set it to FULL, which is what Atalaia asks for"
        yield _wrong("synchronous is not FULL", "synchronous", _FORGOTTEN, remedy)
    if kind := network_file_system(file, mounts):
        why = "locks do not hold over a network: the file, and the sagas in it, may be destroyed"
        remedy = "put it on a local disk, or use PostgreSQL"
        yield _wrong(f"{file} is on {kind}", "ATALAIA_DATABASE_URL", why, remedy)


def network_file_system(file: Path, mounts: list[Any]) -> str | None:
    """Return the kind of file system that ``file`` is on if it is one over a network."""
    inside = [mount for mount in mounts if file.resolve().is_relative_to(mount.mountpoint)]
    if not inside:
        return None
    nearest: Mount = max(inside, key=lambda mount: len(mount.mountpoint))
    kind = nearest.fstype.lower()
    return kind if kind in _OVER_A_NETWORK else None


def mounted() -> list[Any]:
    """Return the parts of this machine's file system."""
    return list(psutil.disk_partitions(all=True))


def pool(worker_pool: str, concurrency: int, most: int) -> Iterator[Finding]:
    """Yield whether steps that run in one process may have to wait for a connection."""
    if concurrency <= most:
        return
    text = f"ATALAIA_CONCURRENCY is {concurrency}, and a process opens {most} connections at most"
    if worker_pool in _UNPOOLED:
        yield note("database", f"{text}; it matters with `--pool threads` and `gevent` only")
        return
    why = "threads wait for a connection, and after 30 s their steps are left to the supervisor"
    remedy = f"set it to {most} or less, or start more workers"
    yield _wrong(text, "ATALAIA_CONCURRENCY", why, remedy)


def _wrong(text: str, setting: str, why: str, remedy: str) -> Finding:
    return warning("database", text, setting=setting, why=why, remedy=remedy)
