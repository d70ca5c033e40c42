"""The stations of the simulation behave as queueing theory says they must."""

from dataclasses import replace
from math import factorial
from random import Random
from statistics import mean
from typing import Any

import pytest
from simpy import Environment

from benchmarks.network import Costs, Load, Machines, Simulation, bounds_of
from benchmarks.queueing import Log, Station, Time

CHEAP = Costs(
    worker=0.003, client=0.0, database=0.0007, broker=0.0003, log_bytes=9_000.0, commits=7,
    messages=3, sweep=0.001, row=0.001,
)  # fmt: skip
ROOMY = Machines(database_cores=4, worker_cores=4, children=50)


def time_in_station(servers: int, load: float, customers: int = 40_000) -> float:
    """Return the mean time that a Poisson customer spends there; the mean service takes one."""
    world, dice, spent = Environment(), Random(7), []
    station = Station(world, servers)

    def customer() -> Time:
        began = world.now
        yield from station.serve(dice.expovariate(1.0))
        spent.append(world.now - began)

    def arrivals() -> Time:
        for _ in range(customers):
            yield world.timeout(dice.expovariate(load * servers))
            world.process(customer())

    world.process(arrivals())
    world.run()
    return mean(spent)


def waits(servers: int, offered: float) -> float:
    """Return Erlang's C: how likely a customer has to wait."""
    full = offered**servers / factorial(servers) / (1 - offered / servers)
    return full / (sum(offered**k / factorial(k) for k in range(servers)) + full)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.8])
def test_one_server_keeps_its_customers_as_long_as_the_theory_says(load: float) -> None:
    assert time_in_station(1, load) == pytest.approx(1 / (1 - load), rel=0.08)


@pytest.mark.parametrize(("servers", "load"), [(2, 0.7), (4, 0.8), (16, 0.9)])
def test_many_servers_keep_their_customers_as_long_as_erlang_says(
    servers: int, load: float
) -> None:
    expected = 1 + waits(servers, servers * load) / (servers * (1 - load))
    assert time_in_station(servers, load) == pytest.approx(expected, rel=0.06)


def flushes(arrivals: list[float]) -> tuple[Log, list[float]]:
    """Return a log with flushes of one second, and when each of those commits ended."""
    world, ended = Environment(), []
    log = Log(world, flush_seconds=1.0, bandwidth=1e9)

    def commits(at: float) -> Time:
        yield world.timeout(at)
        yield from log.commit(1)
        ended.append(round(world.now, 3))

    for at in arrivals:
        world.process(commits(at))
    world.run()
    return log, ended


def test_commits_that_come_during_a_flush_share_the_next_one() -> None:
    log, ended = flushes([0.0, 0.1, 0.5, 0.9, 5.0])
    assert ended == [1.0, 2.0, 2.0, 2.0, 6.0]
    assert (log.flushes, log.commits) == (3, 5)


def seen(machines: Machines, load: Load, costs: Costs = CHEAP) -> dict[str, Any]:
    told = Simulation(costs, machines, load).run()
    used: dict[str, Any] = told["utilisation"]
    return used | {name: value for name, value in told.items() if name != "utilisation"}


def test_each_station_is_as_busy_as_the_utilisation_law_says() -> None:
    used = seen(ROOMY, Load(rate=600, call=0.01, seconds=30))
    assert used["steps_per_second"] == pytest.approx(600, rel=0.03)
    assert used["workers"] == pytest.approx(200 * CHEAP.worker / 4, rel=0.05)
    assert used["database"] == pytest.approx(200 * CHEAP.database / 4, rel=0.05)
    assert used["broker"] == pytest.approx(200 * CHEAP.broker, rel=0.05)
    assert used["log"] == pytest.approx(200 * CHEAP.log_bytes / ROOMY.log_bandwidth, rel=0.05)


def test_what_has_too_little_gives_out_first_and_bounds_the_rate() -> None:
    for station, machines, costs in (
        ("workers", replace(ROOMY, worker_cores=1), CHEAP),
        ("database", replace(ROOMY, database_cores=1), replace(CHEAP, database=0.01)),
        ("children", replace(ROOMY, children=2), CHEAP),
        ("log", replace(ROOMY, log_bandwidth=1e6), CHEAP),
    ):
        bound = bounds_of(costs, machines, Load(call=0.001))[station]
        roomy = seen(machines, Load(rate=bound * 0.8, call=0.001, seconds=6), costs)
        assert roomy["first"] == station
        assert roomy["steps_per_second"] == pytest.approx(bound * 0.8, rel=0.08)
        full = seen(machines, Load(rate=bound * 1.5, call=0.001, seconds=6), costs)
        assert full["steps_per_second"] < bound * 1.05
        assert full["latency_p95_ms"] > 5 * roomy["latency_p95_ms"]


def test_steps_that_fail_wait_for_sweeps_which_take_so_many_and_no_more() -> None:
    few = replace(ROOMY, batch=10, interval=1.0)
    failing = Load(rate=300, call=0.001, retried=0.1, seconds=20)
    full = seen(few, failing)
    assert full["first"] == "sweeps"
    assert full["waiting_for_a_sweep"] > 100
    assert seen(replace(few, batch=100), failing)["waiting_for_a_sweep"] < 100


def test_one_saga_at_a_time_takes_the_sum_of_its_parts() -> None:
    found = seen(ROOMY, Load(under_way=1, chance=False, seconds=10))
    parts = CHEAP.worker + CHEAP.database + CHEAP.broker + 7 * ROOMY.flush_seconds
    assert found["latency_p50_ms"] == pytest.approx(parts * 1000, rel=0.05)
