"""The people around a simulated world: who starts sagas, cancels them, and rings about them."""

from functools import partial
from typing import Any

from orchestration.errors import RefusedError
from tasks.proof.world import World


class People:
    """Callers, customers, and partners that ring."""

    def __init__(self, world: World) -> None:
        self.world = world

    def start(self, name: str, given: Any) -> None:
        """Start a saga under the key ``name``; a caller that dies comes again."""
        world = self.world
        process = world.process("client", f"start {name}", path=name)

        def call() -> None:
            world.ids[name] = world.scheduler.start(world.workflow, given, key=name).saga_id

        world.carry_out(process, call)
        if name not in world.ids:
            world.later(world.until_back(), partial(self.start, name, given))

    def cancel(self, name: str) -> None:
        """Cancel a saga, if that is still allowed."""
        world = self.world
        if name in world.ids and not world.away():
            try:
                world.scheduler.cancel(world.ids[name], by="customer")
            except RefusedError:
                world.faults.hit("person", "refused")

    def ring(self, name: str, step: str) -> None:
        """Call the webhook of a step, whether there is anything to say or not."""
        world = self.world
        if name in world.ids and not world.away():
            world.scheduler.hasten(world.ids[name], step)
