"""The network that is simulated: one database with its workers, broker, log and supervisor."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import Any

from simpy import Environment, Event

from benchmarks.queueing import Log, Station, Time

KEPT = Path(__file__).with_name("costs.json")
STEPS = 3
"""In a sequence, as in the saga that was measured."""
WARM = 0.25
"""The share of a simulation that is not counted."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one saga of three steps asks for; seconds are processor seconds."""

    worker: float
    client: float
    database: float
    broker: float
    log_bytes: float
    commits: int
    messages: int
    sweep: float
    """Of one sweep that finds nothing, in the supervisor's process."""
    row: float
    """Of each row that a sweep acts on, in the supervisor's process."""

    @property
    def processor(self) -> float:
        """Processor seconds of everything together."""
        return self.worker + self.client + self.database + self.broker

    def times(self, factor: float) -> "Costs":
        """Return the same on a processor that takes so many times as long."""
        longer = ("worker", "client", "database", "broker", "sweep", "row")
        return replace(self, **{name: getattr(self, name) * factor for name in longer})

    @classmethod
    def read(cls, shape: str, kept: Path = KEPT) -> "Costs":
        """Return what was measured of ``messages`` between steps, or of ``inline`` ones."""
        found = json.loads(kept.read_text())
        each, sweep, messages = found[shape]["for_each_saga"], found["sweep"], shape == "messages"
        return cls(
            worker=each["workers"],
            client=each["client"],
            database=each["postgresql"],
            broker=each["redis"],
            log_bytes=each["wal_bytes"],
            commits=7 if messages else 5,
            messages=STEPS if messages else 1,
            sweep=(sweep["quiet_with_2000_live_process_ms"]) / 1000,
            row=(sweep["retry_row_process_ms"] + sweep["retry_row_postgresql_ms"]) / 1000,
        )


@dataclass(frozen=True, kw_only=True)
class Machines:
    """What one database has around it."""

    database_cores: int
    worker_cores: int
    children: int
    """Processes or threads that run steps."""
    flush_seconds: float = 0.001
    log_bandwidth: float = 200e6
    """Bytes a second of the disk that holds the log."""
    brokers: int = 1
    """Redis runs its commands on one core, so each is one server."""
    batch: int = 200
    interval: float = 2.0
    """Of the sweeps."""
    shared: int = 0
    """So many cores for everything together, in place of a machine for each part."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked for. Either steps a second arrive, or so many sagas are always under way."""

    rate: float = 0.0
    under_way: int = 0
    call: float = 0.0
    """Seconds that the partner takes for a step, on an average."""
    retried: float = 0.0
    """The share of attempts that fail, and are tried again by a sweep after a second."""
    chance: bool = True
    """Whether service times are exponential; otherwise they are what they are."""
    seconds: float = 20.0


class Simulation:
    """One database with its workers, broker and supervisor."""

    def __init__(self, costs: Costs, machines: Machines, load: Load, seed: int = 1) -> None:
        self.costs, self.machines, self.load = costs, machines, load
        self.dice = Random(seed)
        self.world = world = Environment()
        shared = Station(world, machines.shared) if machines.shared else None
        self.workers = shared or Station(world, machines.worker_cores)
        self.database = shared or Station(world, machines.database_cores)
        self.broker = shared or Station(world, machines.brokers)
        self.supervisor = shared or Station(world, 1)
        self.client = shared or Station(world, 10_000)
        self.children = Station(world, machines.children)
        self.log = Log(world, machines.flush_seconds, machines.log_bandwidth)
        self.due: list[Event] = []
        self.swept = 0
        self.latencies: list[float] = []
        self.steps = 0

    def run(self) -> dict[str, Any]:
        """Let it run, and return what was seen after it had warmed up."""
        self.world.process(self._supervise())
        if self.load.under_way:
            for _ in range(self.load.under_way):
                self.world.process(self._again_and_again())
        else:
            self.world.process(self._arrivals())
        warm = self.load.seconds * WARM
        self.world.run(until=warm)
        for station in self._stations().values():
            station.forget()
        self.latencies.clear()
        self.steps = self.swept = 0
        self.world.run(until=self.load.seconds)
        return self._seen(self.load.seconds - warm)

    def _seen(self, elapsed: float) -> dict[str, Any]:
        used = {name: one.utilisation(elapsed) for name, one in self._stations().items()}
        used["sweeps"] = self.swept / elapsed / self.machines.batch * self.machines.interval
        cuts = quantiles(self.latencies, n=20) if len(self.latencies) > 1 else [0.0] * 19
        bounds = bounds_of(self.costs, self.machines, self.load)
        first = min(bounds, key=lambda name: bounds[name])
        return {
            "utilisation": used,
            "steps_per_second": self.steps / elapsed,
            "latency_p50_ms": cuts[9] * 1000,
            "latency_p95_ms": cuts[18] * 1000,
            "commits_per_flush": self.log.commits / max(self.log.flushes, 1),
            "waiting_for_a_sweep": len(self.due),
            "first": first,
            "gives_out_at": bounds[first],
        }

    def _stations(self) -> dict[str, Station | Log]:
        told: dict[str, Station | Log] = {"children": self.children, "log": self.log}
        apart = {"workers": self.workers, "database": self.database, "broker": self.broker}
        return told | ({"cores": self.workers} if self.machines.shared else apart)

    def _long(self, mean: float) -> float:
        return self.dice.expovariate(1 / mean) if self.load.chance and mean else mean

    # --- the way of a saga -----------------------------------------------------------------------

    def _arrivals(self) -> Time:
        while True:
            yield self.world.timeout(self.dice.expovariate(self.load.rate / STEPS))
            self.world.process(self._saga())

    def _again_and_again(self) -> Time:
        while True:
            yield from self._saga()

    def _saga(self) -> Time:
        began = self.world.now
        yield from self.client.serve(self.costs.client)
        yield from self._commit()
        yield from self._message()
        if self.costs.messages == 1:
            yield from self._steps_in_a_row()
        else:
            for step in range(STEPS):
                yield from self._step(last=step == STEPS - 1)
        self.latencies.append(self.world.now - began)

    def _step(self, *, last: bool) -> Time:
        while True:
            with self.children.line.request() as child:
                yield child
                taken = self.world.now
                yield from self._message()
                yield from self._work()
                yield from self._commit()
                yield self.world.timeout(self._long(self.load.call))
                fails = self.dice.random() < self.load.retried
                yield from self._work()
                yield from self._commit()
                if not (last or fails):
                    yield from self._message()
                self.children.busy += self.world.now - taken
            self.steps += not fails
            if not fails:
                return
            yield from self._wait_for_a_sweep()

    def _steps_in_a_row(self) -> Time:
        with self.children.line.request() as child:
            yield child
            taken = self.world.now
            yield from self._message()
            yield from self._commit()
            for _ in range(STEPS):
                yield self.world.timeout(self._long(self.load.call))
                yield from self._work()
                yield from self._work()
                yield from self._commit()
                self.steps += 1
            self.children.busy += self.world.now - taken

    def _work(self) -> Time:
        """Use half of a step's processor time in a worker."""
        yield from self.workers.serve(self._long(self.costs.worker / STEPS / 2))

    def _commit(self) -> Time:
        part = 1 / self.costs.commits
        yield from self.database.serve(self._long(self.costs.database * part))
        yield from self.log.commit(self.costs.log_bytes * part)

    def _message(self) -> Time:
        """Use half of what a message costs the broker: it is put there, or taken."""
        part = self.costs.broker / self.costs.messages / 2
        yield from self.broker.serve(self._long(part))

    # --- sweeps ----------------------------------------------------------------------------------

    def _wait_for_a_sweep(self) -> Time:
        yield self.world.timeout(1.0)
        woken = self.world.event()
        self.due.append(woken)
        yield woken

    def _supervise(self) -> Time:
        """Sweep at the interval, or as soon as the sweep before has ended."""
        while True:
            began = self.world.now
            yield from self.supervisor.serve(self.costs.sweep)
            batch, self.due = self.due[: self.machines.batch], self.due[self.machines.batch :]
            for woken in batch:
                yield from self.supervisor.serve(self.costs.row)
                self.swept += 1
                woken.succeed()
            rest = self.machines.interval - (self.world.now - began)
            yield self.world.timeout(max(rest, 0.0))


def bounds_of(costs: Costs, machines: Machines, load: Load) -> dict[str, float]:
    """Return how many steps a second each station can do, by what a step asks of it.

    Of the children that is what they can do if nobody waits for anything but the partner.
    """
    tries = 1 + load.retried
    flushes = (costs.commits - 1) / STEPS * machines.flush_seconds
    held = (costs.worker + costs.database + costs.broker) / STEPS + flushes + load.call
    asked = {
        "children": held * tries / machines.children,
        "workers": costs.worker / STEPS * tries / machines.worker_cores,
        "database": costs.database / STEPS * tries / machines.database_cores,
        "broker": costs.broker / STEPS * tries / machines.brokers,
        "log": costs.log_bytes / STEPS * tries / machines.log_bandwidth,
        "sweeps": load.retried / machines.batch * machines.interval,
    }
    return {name: 1 / seconds if seconds else float("inf") for name, seconds in asked.items()}
