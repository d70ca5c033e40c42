"""The machines of a simulated world: how they die, freeze, come back, and see their children go."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from models.states import Operation
from orchestration.roster import NodeIdentity
from tasks.envelope import Envelope
from tasks.proof.node import Machine, Process

if TYPE_CHECKING:
    from tasks.proof.world import World

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
KEEPER_SEES = timedelta(seconds=0.1)
CELERY_SEES = timedelta(seconds=3)
NODE_TIMEOUT = timedelta(seconds=6)
QUESTIONS = frozenset({Operation.PROBE, Operation.CLOSE})


class Fleet:
    """All worker nodes. ``agents`` are the names of what each of them can run."""

    def __init__(self, world: "World", agents: list[str], size: int) -> None:
        self.world = world
        self.agents = agents
        self.machines = [self.machine(f"node{number}") for number in range(size)]

    @property
    def up(self) -> list[Machine]:
        """The machines that work."""
        return [machine for machine in self.machines if machine.up]

    def after_crash(self, process: Process) -> None:
        """Let the others see, in their own time, that a process is gone."""
        machine = process.machine
        if machine is None:
            return
        if process.struck_by == "die":
            self.die(machine, process)
        elif process.struck_by == "crash" and process.saga_id is not None:
            self.world.later(KEEPER_SEES, partial(self._child_is_gone, machine, process))
            self.world.later(CELERY_SEES, partial(self._count_crash, machine, process))

    def stop(self) -> None:
        """Stop all machines at once, with all that is held on them, and who sweeps, too."""
        self.world.finish()
        for machine in self.machines:
            machine.strands.clear()

    def start(self) -> None:
        """Start all machines."""
        for machine in self.machines:
            self._restart(machine)

    def machine(self, name: str) -> Machine:
        """Return a machine that has just started."""
        identity, _ = self._register(name)
        return Machine(name, identity, self._envelope(identity), beaten_at=self.world.now)

    def _envelope(self, node: NodeIdentity) -> Envelope:
        world = self.world
        return Envelope(world.leases, node, world.known, clock=world, agents=world.agents)

    def _register(self, name: str) -> Any:
        return self.world.roster.register(name, 1, sorted(self.agents), sorted(self.world.known))

    def die(self, machine: Machine, process: Process) -> None:
        """Lose a whole machine, with all that was held on it."""
        for site, strand in list(machine.strands.items()):
            if strand is not process.strand:
                strand.kill()
                del machine.strands[site]
        self.silence(machine, self.world.how_long(process, 0.5 * SECOND, DAY / 12), self._restart)

    def silence(
        self, machine: Machine, duration: timedelta, back: Callable[[Machine], None]
    ) -> None:
        """Let a machine be unreachable for a while, and then come back in some way."""
        machine.back_at = self.world.now + duration
        self.world.later(duration, partial(back, machine))
        self.world.want_sweep(self.world.now + NODE_TIMEOUT)

    def _restart(self, machine: Machine) -> None:
        """Do what a worker does when it starts."""
        if self.world.away():
            self.world.later(self.world.until_back(), partial(self._restart, machine))
            return
        machine.identity, earlier = self._register(machine.name)
        machine.envelope = self._envelope(machine.identity)
        machine.back_at, machine.beaten_at, machine.clock_shift = None, self.world.now, 0.0
        for node_id in earlier:
            self.world.supervisors[0].release(
                self.world.roster.held_by(node_id), "its worker was restarted"
            )

    def thaw(self, machine: Machine) -> None:
        """Let a machine go on as if nothing had been; with its next beat it says that it lives."""
        machine.back_at = None
        self.world.want_sweep(self.world.now)

    def _child_is_gone(self, machine: Machine, process: Process) -> None:
        """Do what the keeper does when a pool child is gone."""
        if not machine.up or process.role in QUESTIONS:
            return
        if self.world.away():
            self.world.later(
                self.world.until_back(), partial(self._child_is_gone, machine, process)
            )
            return
        held = self.world.roster.held_by(machine.identity.id, process.pid)
        self.world.supervisors[0].release(held, "its worker process is gone")

    def _count_crash(self, machine: Machine, process: Process) -> None:
        """Do what the worker's parent does when Celery tells it of a child that is gone."""
        if machine.up and process.role not in QUESTIONS and not self.world.away():
            assert process.saga_id is not None
            self.world.scheduler.crashed(process.saga_id, process.path, process.number)
