"""A plain Celery chain on Redis: nothing is durable, nothing is fenced.

Beat is part of it, with an empty schedule: whoever has workflows has something to ring for, too.
"""

from benchmarks.contestants.base import Command, Contestant, module

_CELERY = "{python} -m celery -A benchmarks.programs.celery_chain"


def worker() -> Command:
    """Return the command of one prefork worker of two children."""
    words = f"{_CELERY} worker -n one@bench -c 2 -Q chain --without-mingle --without-gossip"
    return words.split()


def beat() -> Command:
    """Return the command of beat, which has an empty schedule."""
    return f"{_CELERY} beat --pidfile= --schedule={{fresh}}/beat-schedule".split()


CONTESTANT = Contestant(
    name="celery_chain",
    about="Celery chain on Redis, one prefork worker of 2 (not durable)",
    workers=[worker()],
    servers=[beat()],
    client=module("celery_chain"),
    database=False,
    redis=True,
)
