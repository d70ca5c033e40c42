"""Temporal's development server with a file database: not what Temporal is in production."""

from benchmarks.contestants.base import Contestant, module
from benchmarks.places import PEERS

_SERVER = "server start-dev --headless --ip 127.0.0.1 --port {port} --log-level error"

CONTESTANT = Contestant(
    name="temporal_dev",
    about="Temporal's development server (SQLite file), two worker processes",
    peer=True,
    database=False,
    environment={"BENCH_TEMPORAL": "127.0.0.1:{port}"},
    servers=[[str(PEERS / "temporal"), *_SERVER.split(), "--db-filename", "{fresh}/temporal.db"]],
    workers=[module("temporal_dev", "worker"), module("temporal_dev", "worker")],
    client=module("temporal_dev", "client"),
)
