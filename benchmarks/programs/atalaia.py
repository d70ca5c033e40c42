"""Three steps that do nothing, as a workflow: what remains is the price of durability."""

from typing import Any

from pydantic import BaseModel

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


def _three(name: str, agent_name: str, *, inline: bool, given: type[BaseModel] | None) -> Workflow:
    three = (Step(step, agent=agent_name, inline=inline) for step in steps.NAMES)
    return Workflow(name, version=1, input=given, steps=sequence(*three))


noop = _three("noop", "noop.do", inline=False, given=None)
noop_inline = _three("noop-inline", "noop.do", inline=True, given=None)
napping = _three("nap", "noop.nap", inline=False, given=Nap)
napping_inline = _three("nap-inline", "noop.nap", inline=True, given=Nap)


def client(kind: str) -> None:
    """Start sagas (``-inline`` or not) in transactions of their own, or several in the caller's."""
    # A worker imports this module for its agents.
    from sqlalchemy.orm import Session  # noqa: PLC0415

    from tasks.app import runtime  # noqa: PLC0415

    parts = runtime()
    parts.scheduler.register_definitions()

    def submit(count: int, nap: float, together: int) -> None:
        if nap:
            parts.scheduler.start(f"nap{kind}", {"seconds": nap})
        elif together == 1:
            for _ in range(count):
                parts.scheduler.start(f"noop{kind}")
        else:
            for begun in range(0, count, together):
                with Session(parts.store.engine) as session, session.begin():
                    for _ in range(min(together, count - begun)):
                        parts.scheduler.start(f"noop{kind}", session=session)

    serve(submit, Table("SELECT count(*) FROM sagas WHERE state = 'completed'").count)
