"""DBOS on PostgreSQL: workflows from a queue, two worker processes."""

from benchmarks.contestants.base import Contestant, module

CONTESTANT = Contestant(
    name="dbos_queue",
    about="DBOS queue, two worker processes",
    peer=True,
    workers=[module("dbos_queue", "worker", "1"), module("dbos_queue", "worker", "2")],
    client=module("dbos_queue", "client"),
    preparations=[module("dbos_queue", "lay")],
)
