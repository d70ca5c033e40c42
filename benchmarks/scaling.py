"""Simulate what gives out first when more steps a second are asked for: a queueing network.

Usage: ``python -m benchmarks.scaling [--json FILE]``, less than a minute. The service times are
those that ``python -m benchmarks.costs`` measured and ``benchmarks/costs.json`` keeps. Arrivals are
Poisson, service times exponential, flushes of the log are shared by all who wait (group commit).
Prints for each case how busy each station is, the latencies, and which gives out first at what
rate; before that, how far the simulation is off where the machine was measured.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.network import STEPS, Costs, Load, Machines, Simulation

WIDTH = 160

# --- the cases -----------------------------------------------------------------------------------

CALL = 0.2
"""Seconds of a call to a remote service, in every case."""


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    about: str
    shape: str
    machines: Machines
    load: Load


def cases() -> list[Case]:
    """Return the cases of the document."""
    small = Machines(database_cores=2, worker_cores=2, children=40)
    middle = Machines(database_cores=4, worker_cores=8, children=350)
    shard = Machines(database_cores=8, worker_cores=16, children=900)
    large = Machines(database_cores=32, worker_cores=64, children=3_500)
    more = replace(large, brokers=4)
    at, quarter = Load(rate=10_000, call=CALL, seconds=4.0), Load(rate=2_500, call=CALL)
    failing, often = replace(quarter, retried=0.05), replace(shard, batch=1_000)
    return [
        Case("100/s", "messages", small, Load(rate=100, call=CALL, seconds=60.0)),
        Case("1,000/s", "messages", middle, Load(rate=1_000, call=CALL)),
        Case("2,500/s, a shard", "messages", shard, quarter),
        Case("the same, 5 % fail once", "messages", shard, failing),
        Case("the same, sweeps of 1,000", "messages", often, failing),
        Case("2,500/s, a shard, inline", "inline", shard, quarter),
        Case("10,000/s in one", "messages", large, at),
        Case("10,000/s in one, 4 brokers", "messages", more, at),
        Case("10,000/s in one, inline", "inline", large, at),
    ]


@dataclass(frozen=True)
class Seen:
    """What ``make bench`` gave on the idle machine; see docs/performance.md."""

    processor: float
    """Seconds for 1,000 steps, of everything together."""
    rate: float
    alone_ms: float


SEEN = {"messages": Seen(3.6, 426, 13.8), "inline": Seen(2.14, 763, 8.1)}
IDLE = Machines(
    database_cores=1, worker_cores=1, children=2, shared=2, flush_seconds=0.00018
)  # fmt: skip


def compared() -> list[dict[str, Any]]:
    """Return what the idle machine did, and what the simulation says of it.

    Its processor seconds are put in, divided as they are in the costs; what is compared comes out:
    how long a saga takes alone, and how many steps a second there are of as many as go.
    """
    told = []
    for shape, seen in SEEN.items():
        costs = Costs.read(shape)
        costs = costs.times(seen.processor * STEPS / 1000 / costs.processor)
        alone = Simulation(costs, IDLE, Load(under_way=1, chance=False)).run()
        many = Simulation(costs, IDLE, Load(under_way=20)).run()
        for what, said, was in (
            ("one at a time, p50 ms", alone["latency_p50_ms"], seen.alone_ms),
            ("as many as go, steps/s", many["steps_per_second"], seen.rate),
        ):
            told.append({"what": f"{shape}: {what}", "simulated": said, "seen": was})
    return told


# --- telling -------------------------------------------------------------------------------------


def main() -> int:
    """Simulate and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures")
    wanted = parser.parse_args()
    beside = compared()
    found = [(case, Simulation(Costs.read(case.shape), case.machines, case.load).run())
             for case in cases()]  # fmt: skip
    _show_beside(beside)
    _show(found)
    if wanted.json:
        told = {"compared": beside, "cases": [asdict(case) | seen for case, seen in found]}
        wanted.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0


def _show_beside(beside: Sequence[dict[str, Any]]) -> None:
    table = Table("on the idle machine", "simulated", "seen", "off")
    for one in beside:
        said, seen = one["simulated"], one["seen"]
        table.add_row(one["what"], f"{said:,.1f}", f"{seen:,.1f}", f"{said / seen - 1:+.0%}")
    Console(width=WIDTH).print(table)


def _show(found: Sequence[tuple[Case, dict[str, Any]]]) -> None:
    used = list(found[0][1]["utilisation"])
    table = Table(
        "steps", *used, "steps/s", "p50 ms", "p95 ms", "commits / flush", "first", "at steps/s"
    )
    for case, seen in found:
        table.add_row(
            case.about,
            *(f"{seen['utilisation'][name]:.0%}" for name in used),
            f"{seen['steps_per_second']:,.0f}",
            f"{seen['latency_p50_ms']:,.0f}",
            f"{seen['latency_p95_ms']:,.0f}",
            f"{seen['commits_per_flush']:,.1f}",
            seen["first"],
            f"{seen['gives_out_at']:,.0f}",
        )
    Console(width=WIDTH).print(table)


if __name__ == "__main__":
    sys.exit(main())
