"""A broker that loses, doubles, delays and forgets. Correctness must not rest on it."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from models.states import Operation
from orchestration.events import Dispatch
from tasks.proof.fleet import QUESTIONS

if TYPE_CHECKING:
    from tasks.proof.world import World

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


class Broker:
    """Hands messages to machines, some time."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.waiting: list[tuple[str, Dispatch]] = []

    def publish(self, dispatches: Sequence[Dispatch]) -> None:
        """Take messages, and do with them what brokers do."""
        for dispatch in dispatches:
            operation = operation_of(dispatch)
            name = self.world.label(str(dispatch.saga_id))
            where = f"{name}/{dispatch.path} {operation} {dispatch.number}"
            site = self.world.unique(f"publish {where}")
            fault = self.world.faults.at(f"publish {operation}", site)
            if fault:
                self.world.faults.hit(f"publish {operation}", fault)
            for delay in self._fate(site, fault):
                self.world.later(delay, partial(self._deliver, where, dispatch))

    def _fate(self, site: str, fault: str) -> list[timedelta]:
        """Return after how long a message is delivered, each time that it is."""
        soon = timedelta(milliseconds=1 + 20 * self.world.dice.roll(f"{site} latency"))
        match fault:
            case "lost":
                return []
            case "twice":
                return [soon, self.world.dice.between(f"{site} again", soon, 10 * SECOND)]
            case "late":
                return [self.world.dice.between(f"{site} late", SECOND, DAY / 24)]
            case "days":
                return [soon, self.world.dice.between(f"{site} days", DAY / 24, 3 * DAY)]
        return [soon]

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait, as far as a broker can tell."""
        return sum(dispatch.queue == queue for _, dispatch in self.waiting)

    def _deliver(self, where: str, dispatch: Dispatch) -> None:
        """Hand a message to a machine that is up; without one it waits."""
        up = self.world.fleet.up
        if not up:
            if not self.waiting:
                back_at = min(
                    machine.back_at for machine in self.world.fleet.machines if machine.back_at
                )
                self.world.later(max(back_at - self.world.now, SECOND), self._deliver_waiting)
            self.waiting.append((where, dispatch))
            return
        operation = operation_of(dispatch)
        process = self.world.process(
            str(operation), f"call {where}", saga_id=dispatch.saga_id, path=dispatch.path,
            number=dispatch.number,
        )  # fmt: skip
        process.machine = machine = self.world.dice.pick(f"{process.site} machine", up)
        envelope = machine.envelope
        perform = envelope.inquire if operation in QUESTIONS else envelope.attempt
        agent = self.world.agents[dispatch.name.removesuffix(f".{operation}")]
        call = partial(
            perform, agent, operation, str(dispatch.saga_id), dispatch.path, dispatch.number
        )
        self.world.carry_out(process, call)

    def _deliver_waiting(self) -> None:
        waiting, self.waiting = self.waiting, []
        if waiting and self.world.faults.at("broker", self.world.unique("broker")):
            self.world.faults.hit("broker", "flushed")
            return
        for where, dispatch in waiting:
            self._deliver(where, dispatch)


def operation_of(dispatch: Dispatch) -> Operation:
    """Return what a message asks for."""
    _, _, last = dispatch.name.rpartition(".")
    try:
        return Operation(last)
    except ValueError:
        return Operation.ACTION
