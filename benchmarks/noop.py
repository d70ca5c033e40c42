"""Three steps that do nothing, as a workflow: what remains is the price of durability."""

from typing import Any

from orchestration import Step, Workflow, sequence
from tasks.agent import Call, agent


@agent("noop.do", queue="noop", effect=False)
def do(call: Call[Any]) -> dict[str, str]:
    """Return a small result at once."""
    return {"step": call.step}


NAMES = ("first", "second", "third")

noop = Workflow("noop", version=1, steps=sequence(*(Step(name, agent="noop.do") for name in NAMES)))
inline = Workflow(
    "inline",
    version=1,
    steps=sequence(*(Step(name, agent="noop.do", inline=True) for name in NAMES)),
)
