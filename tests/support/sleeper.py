"""An agent that takes as long as its saga's input says, and has no effect."""

from threading import Event

from pydantic import BaseModel

from orchestration import Step, Workflow
from tasks.agent import Call, agent


class Nap(BaseModel):
    """How long to sleep."""

    seconds: float


@agent("sleeper.sleep", queue="sleeper", effect=False)
def sleep(call: Call[Nap]) -> None:
    """Sleep."""
    Event().wait(call.input.seconds)


nap = Workflow("nap", version=1, input=Nap, steps=Step("sleep", agent="sleeper.sleep"))
