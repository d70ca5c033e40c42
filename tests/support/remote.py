"""A remote service in memory that does what its agent's contract says, and no more than that.

It counts what a partner's books would show: how often each key was acted on, and what is left.
"""

from collections import Counter
from dataclasses import dataclass, field

from orchestration.contract import AgentContract
from orchestration.signals import Absent, Answer, Applied, Closed


@dataclass
class Remote:
    """One service. Keys are those of actions; ``request`` tells whether the effect exists now."""

    contract: AgentContract
    executions: Counter[str] = field(default_factory=Counter)
    standing: Counter[str] = field(default_factory=Counter)
    closed: set[str] = field(default_factory=set)
    on_the_way: list[str] = field(default_factory=list)
    """Requests that were sent and have not arrived."""

    def request(self, key: str) -> bool:
        """A request arrives. Refused for a closed key; for a known one, if idempotent, replayed."""
        if key in self.closed:
            return False
        if not (self.contract.idempotent and self.executions[key]):
            self.executions[key] += 1
            self.standing[key] += 1
        return True

    def delay(self, key: str) -> None:
        self.on_the_way.append(key)

    def arrive(self, index: int) -> None:
        self.request(self.on_the_way.pop(index))

    def probe(self, key: str) -> Answer:
        return Applied({"key": key}) if self.executions[key] else Absent()

    def close(self, key: str) -> Answer:
        if self.executions[key]:
            return Applied({"key": key})
        self.closed.add(key)
        return Closed()

    def undo(self, key: str) -> None:
        self.standing[key] = 0
        if self.contract.compensation_closes_key:
            self.closed.add(key)
