"""A plain Celery chain on Redis: nothing is durable, nothing is fenced."""

from benchmarks.contestants.base import Command, Contestant, module


def worker() -> Command:
    """Return the command of one prefork worker of two children."""
    words = "-m celery -A benchmarks.programs.celery_chain worker -n one@bench -c 2 -Q chain"
    return ["{python}", *words.split(), "--without-mingle", "--without-gossip"]


CONTESTANT = Contestant(
    name="celery_chain",
    about="Celery chain on Redis, one prefork worker of 2 (not durable)",
    workers=[worker()],
    client=module("celery_chain"),
    database=False,
    redis=True,
)
