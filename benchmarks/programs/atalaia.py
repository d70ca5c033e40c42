"""Three steps that do nothing, as a workflow: what remains is the price of durability."""

from typing import Any

from pydantic import BaseModel
from sqlalchemy.orm import Session

from benchmarks.programs import steps
from benchmarks.programs.client import Table, serve
from orchestration import Step, Workflow, sequence
from tasks.agent import Call, agent


class Nap(BaseModel):
    """How long the second step sleeps."""

    seconds: float


@agent("noop.do", queue="noop", effect=False)
def do(call: Call[Any]) -> dict[str, str]:
    """Return a small result at once."""
    return steps.run(call.step)


@agent("noop.nap", queue="noop", effect=False)
def nap(call: Call[Nap]) -> dict[str, str]:
    """Return a small result, in the second step after a nap."""
    return steps.run(call.step, call.input.seconds)


noop = Workflow(
    "noop", version=1, steps=sequence(*(Step(name, agent="noop.do") for name in steps.NAMES))
)
inline = Workflow(
    "inline",
    version=1,
    steps=sequence(*(Step(name, agent="noop.do", inline=True) for name in steps.NAMES)),
)
napping = Workflow(
    "nap",
    version=1,
    input=Nap,
    steps=sequence(*(Step(name, agent="noop.nap") for name in steps.NAMES)),
)


def client(workflow: str) -> None:
    """Start sagas of ``workflow`` in transactions of their own, or several in the caller's."""
    from tasks.app import runtime  # noqa: PLC0415 - a worker imports this module for its agents

    parts = runtime()
    parts.scheduler.register_definitions()

    def submit(count: int, nap: float, together: int) -> None:
        if nap:
            parts.scheduler.start("nap", {"seconds": nap})
        elif together == 1:
            for _ in range(count):
                parts.scheduler.start(workflow)
        else:
            for begun in range(0, count, together):
                with Session(parts.store.engine) as session, session.begin():
                    for _ in range(min(together, count - begun)):
                        parts.scheduler.start(workflow, session=session)

    serve(submit, Table("SELECT count(*) FROM sagas WHERE state = 'completed'").count)
