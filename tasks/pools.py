"""Celery's pools, and what the others keep less well than prefork, the only one with processes."""

import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from celery.concurrency import ALIASES  # type: ignore[attr-defined]

from orchestration.errors import ConfigurationError
from tasks.findings import Finding, warning

REPLACE_WAITING = frozenset({"gevent", "eventlet"})
"""The pools for which Celery replaces the functions that wait, before anything else."""
WATCHED = frozenset({"prefork", "processes"})
"""The pools whose calls run in processes that can be seen to die, and killed."""
_OWN_TIME_OUTS = "give every request a time-out below its step's, or use prefork"
_UNWATCHED: Mapping[str, str] = {
    "threads": "a call that hangs keeps its thread until it ends by itself, and one that keeps the "
    "interpreter silences the whole worker",
    "gevent": "a call that computes or waits in C holds up all others and the worker's heartbeat; "
    "after ATALAIA_NODE_TIMEOUT all that the worker holds is taken back",
    "eventlet": "nobody has tried it with Atalaia",
    "solo": "a worker that runs a step hears nothing else until the step ends, even if it hangs",
}


def name_of(pool: type) -> str:
    """Return by which name Celery knows a pool; that of the class, if by none."""
    path = f"{pool.__module__}:{pool.__qualname__}"
    return next((name for name, known in ALIASES.items() if known == path), pool.__qualname__)


def weaknesses(pool: str, *, sqlite: bool) -> Iterator[Finding]:
    """Yield what a pool keeps less well than prefork does."""
    if pool in WATCHED:
        return
    text = f"the pool {pool} has no processes that could be watched or killed"
    why = _UNWATCHED.get(pool, "nobody has tried it with Atalaia")
    yield warning("pool", text, setting="pool", why=why, remedy=_OWN_TIME_OUTS)
    if pool == "gevent" and sqlite:
        text = "SQLite knows nothing of gevent"
        why = "one step that waits for its lock, up to 30 s, holds up all others of its worker"
        yield warning("pool", text, setting="pool", why=why, remedy="use PostgreSQL")


def configured(pool: str) -> Iterator[Finding]:
    """Yield what is wrong with a pool that is named in Celery's settings."""
    if pool in REPLACE_WAITING:
        text = f"worker_pool is {pool} in celeryconfig.py"
        why = "Celery then replaces the waiting functions too late, and every wait blocks all steps"
        remedy = f"leave worker_pool out, and start workers with --pool {pool}"
        yield warning("pool", text, setting="worker_pool", why=why, remedy=remedy)


def require(pool: str) -> None:
    """Raise ``ConfigurationError`` for a pool whose library is not installed."""
    if pool in REPLACE_WAITING and pool not in sys.modules and find_spec(pool) is None:
        extra = "atalaia[gevent]" if pool == "gevent" else pool
        msg = f"--pool {pool}: {pool} is not installed; `pip install '{extra}'` does it"
        raise ConfigurationError(msg)
