"""Atalaia on PostgreSQL and Redis, in the shapes that its workers may have.

The supervisor's worker, with beat in it, is part of it: its memory and its processor seconds count.
The processes are those that `atalaia up` starts.
"""

from benchmarks.contestants.base import Command, Contestant, module

_ENVIRONMENT = {
    "ATALAIA_HOME": "{fresh}",
    "ATALAIA_DATABASE_URL": "{url}",
    "ATALAIA_BROKER_URL": "{redis}",
    "ATALAIA_AGENTS": "benchmarks.programs.atalaia",
    "ATALAIA_WORKFLOWS": "benchmarks.programs.atalaia",
}


def worker(node: str, pool: str, concurrency: int, queue: str = "noop") -> Command:
    words = (
        f"worker -n {node}@bench -P {pool} -c {concurrency} -Q {queue} "
        "--without-mingle --without-gossip"
    )
    return ["{python}", "-m", "tasks.program", *words.split()]


def _shape(
    name: str, about: str, *workers: Command, inline: bool = False, together: int = 1
) -> Contestant:
    return Contestant(
        name=name,
        about=about,
        servers=[worker("supervisor", "threads", 1, "supervisor --with-beat")],
        workers=workers,
        client=module("atalaia_client", *(["-inline"] if inline else [])),
        environment=_ENVIRONMENT,
        laid=True,
        redis=True,
        together=together,
    )


_PREFORK = worker("one", "prefork", 2)
PREFORK = _shape("atalaia_prefork", "Atalaia, one prefork worker of 2", _PREFORK)
SOLO = _shape(
    "atalaia_solo",
    "Atalaia, two solo workers",
    worker("one", "solo", 1),
    worker("two", "solo", 1),
)
THREADS = _shape(
    "atalaia_threads",
    "Atalaia, two workers of 2 threads",
    worker("one", "threads", 2),
    worker("two", "threads", 2),
)
TOGETHER = _shape(
    "atalaia_together",
    "Atalaia, prefork, 20 starts in one transaction",
    _PREFORK,
    together=20,
)
INLINE = _shape(
    "atalaia_inline",
    "Atalaia, prefork, inline steps",
    _PREFORK,
    inline=True,
)
INLINE_SOLO = _shape(
    "atalaia_inline_solo",
    "Atalaia, two solo workers, inline steps",
    worker("one", "solo", 1),
    worker("two", "solo", 1),
    inline=True,
)
INLINE_THREADS = _shape(
    "atalaia_inline_threads",
    "Atalaia, two workers of 4 threads, inline steps",
    worker("one", "threads", 4),
    worker("two", "threads", 4),
    inline=True,
)
INLINE_FOUR = _shape(
    "atalaia_inline_four",
    "Atalaia, one prefork worker of 4, inline steps",
    worker("one", "prefork", 4),
    inline=True,
)
SHAPES = (PREFORK, SOLO, THREADS, TOGETHER, INLINE, INLINE_SOLO, INLINE_THREADS, INLINE_FOUR)
QUICK = (PREFORK, INLINE)
