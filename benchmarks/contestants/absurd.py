"""Absurd on PostgreSQL: two worker processes."""

from benchmarks.contestants.base import Contestant, module
from benchmarks.places import PEERS

_ABSURDCTL = str(PEERS / "absurdctl")

CONTESTANT = Contestant(
    name="absurd",
    about="Absurd, two worker processes",
    peer=True,
    environment={"PGDATABASE": "{plain}"},
    preparations=[[_ABSURDCTL, "init"], [_ABSURDCTL, "create-queue", "bench"]],
    workers=[module("absurd", "worker"), module("absurd", "worker")],
    client=module("absurd", "client"),
)
