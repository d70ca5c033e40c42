"""What is asked of ``atalaia prove``, and what it stands for in this installation."""

from dataclasses import dataclass

from orchestration.definition import Workflow
from orchestration.errors import InputError, UnknownNameError
from orchestration.registry import load_module, load_workflows, registry
from orchestration.safety import problems_of
from orchestration.settings import settings
from tasks.agent import AGENTS
from tasks.lookup import read_input
from tasks.proof.own import Own, load_fake
from tasks.proof.plans import Plan
from tasks.proof.trial import Subject


@dataclass(frozen=True)
class Asked:
    """Names only, so that another process can make the same subject of them."""

    workflow: str
    partner: str | None = None
    """``module:object``"""
    input_text: str | None = None

    def subject(self) -> Subject:
        """Return what is to be tried; raise an ``AtalaiaError`` that says what is not there."""
        for module in settings().agents:
            load_module(module, "ATALAIA_AGENTS")
        load_workflows(settings().workflows)
        workflow = registry.require(self.workflow)
        unsafe = tuple(problems_of(workflow, registry.contracts))
        names = {step.agent for step in workflow.by_name.values()}
        contracts = {agent: registry.contracts[agent] for agent in names}
        own = self._own(workflow, names)
        if own is not None and not unsafe:
            return Subject(Plan(workflow, contracts), own=own)
        return Subject(Plan(_without_input(workflow), contracts), unsafe=unsafe)

    def _own(self, workflow: Workflow, names: set[str]) -> Own | None:
        if self.partner is None:
            if self.input_text is not None:
                raise InputError("--input goes with --partner: the model's partners read none")
            return None
        fake = load_fake(self.partner)
        if missing := sorted(names - AGENTS.keys()):
            raise UnknownNameError("agent", missing[0], AGENTS)
        return Own(AGENTS, fake, workflow.parse_input(read_input(self.input_text, None)))


def _without_input(workflow: Workflow) -> Workflow:
    """Return the same plan for partners of the model, for whom no input has to be made up."""
    return Workflow(
        workflow.name, version=workflow.version, steps=workflow.steps, deadline=workflow.deadline
    )
