"""What `atalaia check` asks the database: whether it keeps what it has committed.

Everything rests on that. A grant that was committed and is gone looks like a call that was never
made, and is made again: the one way in which a set-up can double or lose an effect.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import psutil

from tasks.findings import Finding, error, note, warning

LEAST_POSTGRESQL = 13
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
        yield note("database", f"{text}; it matters with `--pool threads` only")
        return
    why = "threads wait for a connection, and after 30 s their steps are left to the supervisor"
    remedy = f"set it to {most} or less, or start more workers"
    yield _wrong(text, "ATALAIA_CONCURRENCY", why, remedy)


def _wrong(text: str, setting: str, why: str, remedy: str) -> Finding:
    return warning("database", text, setting=setting, why=why, remedy=remedy)
