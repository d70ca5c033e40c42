"""Who is compared: Atalaia in its shapes, and its peers."""

from benchmarks.contestants import (
    absurd,
    atalaia,
    celery_chain,
    celery_sql,
    dbos_queue,
    temporal_dev,
)
from benchmarks.contestants.base import Contestant

PEERS: tuple[Contestant, ...] = (
    celery_chain.CONTESTANT,
    celery_sql.CONTESTANT,
    dbos_queue.CONTESTANT,
    absurd.CONTESTANT,
    temporal_dev.CONTESTANT,
)
SHAPES: tuple[Contestant, ...] = atalaia.SHAPES
QUICK: tuple[Contestant, ...] = (celery_chain.CONTESTANT, *atalaia.QUICK)
ALL: tuple[Contestant, ...] = (*PEERS, *SHAPES)
