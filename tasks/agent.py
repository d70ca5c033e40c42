"""The agent: a function that wraps one action on one remote service, and its kin.

    @agent("hotels.book", queue="hotels", idempotent=True, key_retention=timedelta(hours=24))
    def book(call: Call[TripRequest]) -> Booking: ...

    @book.probe
    def find(call: Call[TripRequest]) -> Answer: ...

    @book.compensation(closes_key=True)
    def cancel(call: Call[TripRequest], booking: Booking | None) -> None: ...

What an author declares here is all that the supervisor knows of an agent, and all that it needs.
Plain functions and ``async def`` both work.
"""

import asyncio
import inspect
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter

from models.states import Operation
from orchestration.contract import AgentContract
from orchestration.ports import Clock
from orchestration.registry import registry
from orchestration.telemetry import Log

Input = TypeVar("Input")
Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Call(Generic[Input]):
    """One call of an agent: everything that it may know."""

    input: Input
    """The saga's input, validated."""
    results: dict[str, Any]
    """The results of the steps that have succeeded, as JSON, by step name."""
    saga_id: str
    step: str
    attempt: int
    key: str
    """The idempotency key to send. In a probe and a close: that of the action they ask about."""
    action_key: str
    """In a compensation: the key of the action that is undone; otherwise the same as ``key``."""
    log: Log
    ends_at: float = field(repr=False)
    """On this process's monotonic clock, in seconds."""
    renew: Callable[[Any], None] = field(repr=False)
    clock: Clock = field(default=time, repr=False)

    @property
    def time_left(self) -> timedelta:
        """How much of the lease is left; never negative. Make every time-out shorter than this."""
        return timedelta(seconds=max(self.ends_at - self.clock.monotonic(), 0.0))

    def heartbeat(self, details: Any = None) -> None:
        """Say that the call is still at work; ``details`` (JSON) are shown to operators.

        Raises ``LeaseLostError`` when the attempt was taken away: stop then, and return nothing.
        """
        self.renew(details)


class Agent:
    """An agent with whatever was declared for it. Calling it calls the action itself."""

    def __init__(self, action: Function, contract: AgentContract) -> None:
        self.action = action
        self.contract = contract
        self.functions: dict[Operation, Function] = {Operation.ACTION: action}
        hints = get_type_hints(action)
        self.result_type: TypeAdapter[Any] = TypeAdapter(hints.pop("return", Any))
        arguments = get_args(next(iter(hints.values()), Any))
        self.input_type: TypeAdapter[Any] = TypeAdapter(arguments[0] if arguments else Any)
        registry.add_agent(contract)

    @property
    def name(self) -> str:
        """The name under which workflows and Celery know it."""
        return self.contract.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the action."""
        return self.action(*args, **kwargs)

    def probe(
        self, function: Function | None = None, *, staleness: timedelta = timedelta(0)
    ) -> Any:
        """Declare how to ask what happened; ``staleness`` is how old an answer may be."""
        return self._declare(Operation.PROBE, function, probe=True, probe_staleness=staleness)

    def close(self, function: Function) -> Function:
        """Declare how to make sure that a key can never take effect."""
        declared: Function = self._declare(Operation.CLOSE, function, close=True)
        return declared

    def compensation(self, function: Function | None = None, *, closes_key: bool = False) -> Any:
        """Declare how to undo; ``closes_key``: it also keeps the action from happening later."""
        return self._declare(
            Operation.COMPENSATION,
            function,
            compensation=True,
            compensation_closes_key=closes_key,
        )

    def _declare(self, operation: Operation, function: Function | None, **properties: Any) -> Any:
        def declare(given: Function) -> Function:
            self.functions[operation] = given
            self.contract = replace(self.contract, **properties)
            registry.add_agent(self.contract)
            return given

        return declare if function is None else declare(function)

    def invoke(self, operation: Operation, call: Call[Any], *args: Any) -> Any:
        """Run one of the agent's functions to its end."""
        function = self.functions[operation]
        if inspect.iscoroutinefunction(function):
            return asyncio.run(function(call, *args))
        return function(call, *args)

    def result_to_json(self, value: Any) -> Any:
        """Return a result validated and as JSON; raise pydantic's ``ValidationError``."""
        return json.loads(self.result_type.dump_json(self.result_type.validate_python(value)))


AGENTS: dict[str, Agent] = {}
"""The agents of this process, filled while their modules are imported."""


def agent(name: str, **properties: Any) -> Callable[[Function], Agent]:
    """Declare an agent; the properties are the fields of ``AgentContract``.

    Raises pydantic's ``ValidationError`` for a property that does not exist or does not fit.
    """

    def declare(action: Function) -> Agent:
        made = AGENTS[name] = Agent(action, AgentContract(name=name, **properties))
        return made

    return declare
