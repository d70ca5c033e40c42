"""Stations of a queueing network, on simpy: servers with one line, and a log that is flushed."""

from collections.abc import Generator
from typing import Any

from simpy import Environment, Event, Resource

Time = Generator[Event, Any, Any]
"""What a process of the simulation yields while it waits and is served."""


class Station:
    """Some servers with one line: first come, first served. Seconds are virtual."""

    def __init__(self, world: Environment, servers: int) -> None:
        self.world = world
        self.servers = servers
        self.line = Resource(world, capacity=servers)
        self.busy = 0.0
        """Seconds of service given, over all servers, since ``forget``."""

    def serve(self, seconds: float) -> Time:
        """Wait for a server and be served for so long."""
        if seconds <= 0:
            return
        with self.line.request() as turn:
            yield turn
            yield self.world.timeout(seconds)
        self.busy += seconds

    def forget(self) -> None:
        """Begin to count anew, when the simulation has warmed up."""
        self.busy = 0.0

    def utilisation(self, elapsed: float) -> float:
        """Return which share of its servers was busy, on an average."""
        return self.busy / elapsed / self.servers


class Log:
    """A write-ahead log. Whoever commits during a flush waits for the next, which is for all.

    A flush takes ``flush_seconds``, and the time to write its bytes. More commits make fuller
    flushes, not more, so what gives out is the bandwidth.
    """

    def __init__(self, world: Environment, flush_seconds: float, bandwidth: float) -> None:
        self.world = world
        self.flush_seconds = flush_seconds
        self.bandwidth = bandwidth
        self.flushes = 0
        self.commits = 0
        self.written = 0.0
        self._waiting = 0.0
        self._next = world.event()
        self._flushing = False

    def commit(self, size: float) -> Time:
        """Wait until so many bytes are on the disk."""
        self._waiting += size
        self.commits += 1
        done = self._next
        if not self._flushing:
            self._flushing = True
            self.world.process(self._flush())
        yield done

    def _flush(self) -> Time:
        while self._waiting:
            size, self._waiting = self._waiting, 0.0
            done, self._next = self._next, self.world.event()
            yield self.world.timeout(self.flush_seconds + size / self.bandwidth)
            self.flushes += 1
            self.written += size
            done.succeed()
        self._flushing = False

    def forget(self) -> None:
        """Begin to count anew."""
        self.flushes = self.commits = 0
        self.written = 0.0

    def utilisation(self, elapsed: float) -> float:
        """Return which share of the disk's bandwidth was used."""
        return self.written / elapsed / self.bandwidth
