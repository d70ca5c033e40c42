"""A fake partner that keeps its word, for those that do not to be made of."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchestration import Absent, Answer, Applied, Closed, OutcomeUnknown, Step, Workflow, sequence
from tasks.agent import Call, agent
from tasks.proof.own import World


@dataclass
class Line:
    """One line of the books."""

    key: str
    saga_id: str
    step: str
    at: datetime
    undone: int = 0


@dataclass
class Shop:
    """It acts once for one key, and a closed key never takes effect."""

    lines: list[Line] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    world: World = field(init=False)

    def reset(self, world: World) -> None:
        self.world = world
        self.lines.clear()
        self.closed.clear()

    def effects(self) -> list[tuple[str, str, str, int]]:
        return [(line.key, line.saga_id, line.step, line.undone) for line in self.lines]

    def order(self, call: Call[Any], key: str = "") -> str:
        key = key or call.key
        with self.world.request():
            if key in self.closed:
                raise OutcomeUnknown("the key is closed")
            if not self.knows(key):
                self.add(call, key)
        return f"order {key}"

    def add(self, call: Call[Any], key: str) -> None:
        self.lines.append(Line(key, call.saga_id, call.step, self.world.now()))

    def knows(self, key: str) -> bool:
        return any(line.key == key for line in self.lines)

    def find(self, call: Call[Any]) -> Answer:
        with self.world.request():
            if call.key in self.closed:
                return Closed()
            return Applied(f"order {call.key}") if self.knows(call.key) else Absent()

    def close(self, call: Call[Any]) -> Answer:
        with self.world.request():
            if self.knows(call.key):
                return Applied(f"order {call.key}")
            self.closed.add(call.key)
            return Closed()

    def cancel(self, call: Call[Any], made: str | None) -> None:
        with self.world.request():
            self.closed.add(call.action_key)
            self.undo(call.action_key)

    def undo(self, key: str) -> None:
        for line in self.lines:
            if line.key == key and not line.undone:
                line.undone = 1


def then_pay(name: str, shop: Shop, *, pays: str = "shop.pay", **more: Any) -> Workflow:
    """Return the workflow that orders, by the agent ``shop.order``, and then pays honestly."""

    @agent("shop.pay", idempotent=True)
    def pay(call: Call[Any]) -> str:
        with shop.world.request():
            if not any(line.key == call.key for line in shop.lines):
                shop.add(call, call.key)
        return "paid"

    steps = (Step("order", agent="shop.order", **more), Step("pay", agent=pays, pivot=True))
    return Workflow(name, version=1, steps=sequence(*steps))
