"""Making a failing run small, keeping it, and running it again.

A run is its seed, its workflow, its sagas and the faults that struck. Whatever can be left out
without losing the violation is left out; what remains is a file that says what it once showed.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestration import definition as plans
from orchestration.definition import Definition, Step, Workflow
from orchestration.errors import AtalaiaError
from tasks.proof.dice import Dice
from tasks.proof.faults import Faults
from tasks.proof.plans import Plan
from tasks.proof.simulate import Outcome, Simulation

Tree = Step | plans.Sequence | plans.Parallel


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run, in full."""

    seed: int
    plan: Plan
    sagas: tuple[str, ...]
    script: Mapping[str, str] = field(default_factory=dict)
    shows: str = ""

    def run(self, simulation: Simulation) -> Outcome:
        """Run it."""
        faults = Faults(Dice(self.seed), script=self.script)
        return simulation.run(self.seed, plan=self.plan, faults=faults, sagas=self.sagas)

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "seed": self.seed,
            "sagas": list(self.sagas),
            "script": dict(self.script),
            "shows": self.shows,
            "definition": Definition(self.plan.workflow, self.plan.contracts).document,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Case":
        """Return the case that ``document`` describes."""
        definition = Definition.from_document(document["definition"])
        return cls(
            seed=document["seed"],
            plan=Plan(definition.workflow, definition.contracts),
            sagas=tuple(document["sagas"]),
            script=document["script"],
            shows=document["shows"],
        )

    @classmethod
    def of(cls, outcome: Outcome) -> "Case":
        """Return the case that repeats a run."""
        return cls(
            seed=outcome.seed,
            plan=outcome.plan,
            sagas=outcome.sagas,
            script=dict(outcome.faults.struck),
            shows=str(outcome.violations[0]) if outcome.violations else "",
        )


def shrink(simulation: Simulation, outcome: Outcome) -> Case:
    """Return a small case that violates the same invariant as ``outcome``."""
    invariant = outcome.violations[0].invariant

    def still(case: Case) -> Case | None:
        """Return the case without what did not strike, or nothing if all is well with it."""
        try:
            found = case.run(simulation)
        except AtalaiaError:
            return None
        shows = [str(one) for one in found.violations if one.invariant == invariant]
        return replace(case, script=dict(found.faults.struck), shows=shows[0]) if shows else None

    case = Case.of(outcome)
    for smaller in (_fewer_sagas, _fewer_faults, _fewer_steps, _fewer_faults):
        case = smaller(case, still)
    return case


Still = Callable[[Case], Case | None]


def _fewer_sagas(case: Case, still: Still) -> Case:
    alone = (still(replace(case, sagas=(name,))) for name in case.sagas)
    return next((found for found in alone if found), case)


def _fewer_faults(case: Case, still: Still) -> Case:
    """Leave out ever smaller parts of the script."""
    size = max(len(case.script) // 2, 1)
    while size and case.script:
        smaller = next(filter(None, map(still, _without_some(case, size))), None)
        case = smaller or case
        size = min(size, len(case.script)) if smaller else size // 2
    return case


def _without_some(case: Case, size: int) -> Iterator[Case]:
    sites = list(case.script)
    for first in range(0, len(sites), size):
        left_out = set(sites[first : first + size])
        script = {site: case.script[site] for site in sites if site not in left_out}
        yield replace(case, script=script)


def _fewer_steps(case: Case, still: Still) -> Case:
    for name in list(case.plan.workflow.by_name):
        tree = _without(case.plan.workflow.steps, name)
        if tree is None:
            continue
        workflow = case.plan.workflow
        smaller = Workflow(
            workflow.name, version=workflow.version, steps=tree, deadline=workflow.deadline
        )
        agents = {step.agent for step in smaller.by_name.values()}
        contracts = {n: c for n, c in case.plan.contracts.items() if n in agents}
        case = still(replace(case, plan=Plan(smaller, contracts))) or case
    return case


def _without(node: Tree, name: str) -> Tree | None:
    """Return a tree without one step; ``None`` where nothing is left."""
    if isinstance(node, Step):
        return None if node.name == name else node
    children: Sequence[Tree | None] = [_without(child, name) for child in node.children]
    left = [child for child in children if child is not None]
    if len(left) <= 1:
        return left[0] if left else None
    return type(node)(children=tuple(left))


def dump(case: Case) -> str:
    """Return a case as the text of its file."""
    return json.dumps(case.document(), indent=2) + "\n"
