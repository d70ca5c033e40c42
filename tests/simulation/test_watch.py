"""What the supervisor swallows for the sake of the other sagas, the simulation does not."""

from datetime import timedelta
from functools import partial

from sqlalchemy import update

from models import Step
from orchestration.contract import AgentContract
from orchestration.definition import Step as StepDefinition
from orchestration.definition import Workflow
from tasks.proof.dice import Dice
from tasks.proof.faults import Faults
from tasks.proof.plans import Plan
from tasks.proof.simulate import Drama, Simulation


def test_a_saga_that_no_sweep_can_decide_is_a_violation_with_the_errors_text(
    simulation: Simulation,
) -> None:
    contract = AgentContract(name="query", effect=False)
    steps = StepDefinition("a", agent="query", timeout=timedelta(minutes=1))
    plan = Plan(Workflow("broken", version=1, steps=steps), {"query": contract})
    again = ("", *(f" #{number}" for number in range(2, 9)))
    faults = Faults(Dice(1), script={f"publish s0/a action 1{time}": "lost" for time in again})
    drama = Drama(simulation.fresh(), plan, faults, 1, ("s0",))

    def rename_the_step(path: str) -> None:
        with drama.world.store.transaction() as connection:
            connection.execute(update(Step.__table__).values(path=path))

    drama.world.later(timedelta(minutes=1, seconds=2), partial(rename_the_step, "nowhere"))
    drama.world.later(timedelta(minutes=4), partial(rename_the_step, "a"))
    outcome = drama.play(timedelta(minutes=5))
    found = [one for one in outcome.violations if one.invariant == "SWEEP"]
    assert found
    assert "KeyError: 'nowhere'" in found[0].text
    assert found[0].saga_id == str(drama.world.ids["s0"])
