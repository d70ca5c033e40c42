"""AgentContract: what makes one agent safe to repeat, as its author declared it.

The contracts are stored with the workflow, so that the supervisor can decide by them without
importing an agent, and so that a running saga keeps those it was started with.
"""

from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from models.states import Operation

MARGIN = timedelta(minutes=1)
"""How long before a key may be forgotten the last request under it must have been made."""

KILL_GRACE = timedelta(seconds=10)
"""How long after its deadline an attempt's process may still live before it is killed."""

RECOVERY_QUEUE_SUFFIX = ".recovery"


@dataclass(frozen=True, kw_only=True)
class AgentContract:
    """What one agent declares. Every duration is a ``timedelta``; ``None`` means unbounded."""

    name: str
    queue: str = "default"
    effect: bool = True
    """False: a pure query, free to be repeated and never undone."""
    idempotent: bool = False
    """The remote executes once for one idempotency key, as long as it remembers the key."""
    key_retention: timedelta | None = None
    """How long the remote remembers a key; ``None``: for ever."""
    probe: bool = False
    probe_staleness: timedelta = timedelta(0)
    """How far behind the truth a probe's answer may be."""
    close: bool = False
    """The remote can be told that a key must never take effect from now on."""
    compensation: bool = False
    compensation_closes_key: bool = False
    """The compensation also closes the action's key, so it may run when nothing happened."""
    at_most_once: bool = False
    """An outcome that cannot be learnt is accepted, and the saga goes on without it."""
    manual: bool = False
    """Whatever is in doubt is decided by an operator."""
    request_lifetime: timedelta | None = None
    """The remote refuses a request older than this; ``None``: it does not enforce one."""
    pending_limit: timedelta = timedelta(days=1)
    """How long the remote may keep an accepted request pending, by its own documents."""

    def settle_horizon(self, timeout: timedelta) -> timedelta | None:
        """Return how long after a grant every request of that attempt is dead and visible.

        ``None`` where the remote enforces no lifetime: then no waiting is ever long enough.
        """
        if self.request_lifetime is None:
            return None
        return timeout + KILL_GRACE + self.request_lifetime + self.probe_staleness

    def key_alive(self, age: timedelta, lasting: timedelta = timedelta(0)) -> bool:
        """Tell whether a key first sent ``age`` ago is still known, with a margin.

        ``lasting``: and will be for so long, as long as a call may take that sends it again.
        """
        return self.key_retention is None or age + lasting + MARGIN < self.key_retention

    def route(self, operation: Operation) -> tuple[str, str]:
        """Return the Celery task name and the queue of one operation."""
        if operation is Operation.ACTION:
            return self.name, self.queue
        return f"{self.name}.{operation}", self.queue + RECOVERY_QUEUE_SUFFIX

    def document(self) -> dict[str, Any]:
        """Return the contract as JSON, durations in ISO 8601."""
        document: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return document

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "AgentContract":
        """Return the contract that ``document`` describes."""
        return _ADAPTER.validate_python(document)


_ADAPTER = TypeAdapter(AgentContract)
