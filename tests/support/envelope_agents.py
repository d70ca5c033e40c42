"""Agents and workflows of which tests know everything: each does what its saga's input says."""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from orchestration import (
    Absent,
    Answer,
    Applied,
    Closed,
    OutcomeUnknown,
    PermanentFailure,
    RetryLater,
    RetryPolicy,
    Step,
    Workflow,
    sequence,
)
from tasks.agent import Call, agent

EFFECTS: dict[str, list[str]] = {}
"""What the remote did, by idempotency key: ``done``, ``undone``, ``closed``, in order."""


class Order(BaseModel):
    """What the agent is to do: return, or raise the named signal, on its first attempts."""

    does: str = "return"
    until_attempt: int = 1
    amount: int = 1


class Made(BaseModel):
    """What it returns."""

    amount: int


def act(call: Call[Order]) -> Any:
    """Do what the input says."""
    order = call.input
    does = order.does if call.attempt <= order.until_attempt else "return"
    if does == "later":
        raise RetryLater("busy", delay=timedelta(milliseconds=1))
    if does == "permanent":
        raise PermanentFailure("sold out")
    EFFECTS.setdefault(call.key, []).append("done")
    if does == "unknown":
        raise OutcomeUnknown("the reply was lost")
    if does == "error":
        raise ValueError("no idea")
    if does == "invalid":
        return {"amount": "many"}
    if does == "heartbeat":
        call.heartbeat({"percent": 50})
    return Made(amount=order.amount)


@agent("plain.make", queue="plain", idempotent=True)
def make(call: Call[Order]) -> Made:
    """Make it."""
    made: Made = act(call)
    return made


@make.probe
def find(call: Call[Order]) -> Answer:
    """Tell whether it was made."""
    return Applied(Made(amount=call.input.amount)) if EFFECTS.get(call.key) else Absent()


@make.close
def void(call: Call[Order]) -> Answer:
    """Close the key."""
    if EFFECTS.get(call.key):
        return Applied(Made(amount=call.input.amount))
    EFFECTS[call.key] = ["closed"]
    return Closed()


@make.compensation(closes_key=True)
def unmake(call: Call[Order], made: Made | None) -> None:
    """Undo it, whether or not its result was learnt."""
    call.log.info("unmade", amount=made.amount if made else None)
    EFFECTS.setdefault(call.action_key, []).append("undone")


@agent("waiting.make", queue="plain", idempotent=True)
async def make_async(call: Call[Order]) -> Made:
    """Make it in a coroutine."""
    made: Made = act(call)
    return made


@make_async.compensation(closes_key=True)
async def unmake_async(call: Call[Order], made: Made | None) -> None:
    """Undo it in a coroutine."""
    unmake(call, made)


@agent("greedy.make", queue="plain", idempotent=True)
def take_all(call: Call[dict[str, Any]]) -> dict[str, Any]:
    """Return what was given, and leave nothing of it."""
    given = {"input": dict(call.input), "results": sorted(call.results)}
    call.input.clear()
    call.results.clear()
    return given


@take_all.compensation(closes_key=True)
def give_back(call: Call[dict[str, Any]], given: dict[str, Any] | None) -> None:
    """Undo nothing."""


FAST = RetryPolicy(max_attempts=3, initial_interval=timedelta(milliseconds=1))

plain = Workflow(
    "plain", version=1, input=Order, steps=Step("make", agent="plain.make", retry=FAST)
)
waiting = Workflow(
    "waiting", version=1, input=Order, steps=Step("make", agent="waiting.make", retry=FAST)
)
twice = Workflow(
    "twice",
    version=1,
    input=Order,
    steps=sequence(
        Step("one", agent="waiting.make", retry=FAST), Step("two", agent="plain.make", retry=FAST)
    ),
)

inline = Workflow(
    "inline",
    version=1,
    input=Order,
    steps=sequence(
        Step("one", agent="waiting.make", retry=FAST),
        Step("two", agent="plain.make", retry=FAST, inline=True),
        Step("three", agent="waiting.make", retry=FAST, inline=True),
    ),
)

greedy = Workflow(
    "greedy",
    version=1,
    steps=sequence(
        Step("one", agent="greedy.make"),
        Step("two", agent="greedy.make", inline=True),
        Step("three", agent="greedy.make", inline=True),
    ),
)
