"""What this process knows: workflows by name and version, and the contracts of its agents."""

import difflib
import json
from importlib import import_module
from types import ModuleType
from typing import Any

from models.states import Operation
from orchestration.contract import AgentContract
from orchestration.definition import Definition, Workflow
from orchestration.errors import ConfigurationError, DefinitionError, UnknownNameError
from orchestration.safety import check_safety


class Registry:
    """The known workflows and agents. Filled while modules are imported, then only read."""

    def __init__(self) -> None:
        self.workflows: dict[tuple[str, int], Workflow] = {}
        self.contracts: dict[str, AgentContract] = {}
        self._bound: dict[int, Definition] = {}
        """By the identity of the workflow, which the definition keeps alive."""

    def add_agent(self, contract: AgentContract) -> None:
        """Register or refine an agent's contract; refuse a name that would be an operation's."""
        last = contract.name.rpartition(".")[2]
        if last in set(Operation):
            msg = (
                f"agent {contract.name!r}: no name may end in .{last}, as its operations' names do"
            )
            raise DefinitionError(msg)
        self.contracts[contract.name] = contract
        self._bound.clear()

    def add_workflow(self, workflow: Workflow) -> None:
        """Register a workflow; another one under the same name and version is refused."""
        known = self.workflows.setdefault((workflow.name, workflow.version), workflow)
        if known != workflow:
            msg = (
                f"two workflows are called {workflow.name!r} version {workflow.version}; "
                "give one of them another version"
            )
            raise DefinitionError(msg)

    def newest(self, name: str) -> Workflow | None:
        """Return the highest version of a workflow that this process knows."""
        versions = [w for (known, _), w in self.workflows.items() if known == name]
        return max(versions, key=lambda workflow: workflow.version, default=None)

    def bind(self, workflow: Workflow) -> Definition:
        """Return the workflow with its agents' contracts; raise if that would be unsafe."""
        known = self._bound.get(id(workflow))
        if known is None:
            check_safety(workflow, self.contracts)
            known = self._bound[id(workflow)] = Definition(workflow, self.contracts)
        return known

    def bound(self, workflow: Workflow) -> Definition | None:
        """Return the bound workflow, or ``None`` in a process that does not know its agents."""
        agents = {step.agent for step in workflow.by_name.values()}
        return self.bind(workflow) if agents <= self.contracts.keys() else None

    def definitions(self) -> list[Definition]:
        """Return every workflow bound; raise on the first that cannot be."""
        return [self.bind(workflow) for workflow in self.workflows.values()]

    def require(self, name: str) -> Workflow:
        """Return the newest workflow of this name; raise ``UnknownNameError`` with the nearest."""
        workflow = self.newest(name)
        if workflow is None:
            raise UnknownNameError("workflow", name, {known for known, _ in self.workflows})
        return workflow


registry = Registry()
"""The registry of this process."""


def load_module(name: str, setting: str) -> ModuleType:
    """Import a module that a setting names; raise ``ConfigurationError`` if there is none."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        msg = f"{setting}: module {name!r} cannot be imported ({error})"
        raise ConfigurationError(msg) from None


def load_workflows(modules: tuple[str, ...]) -> None:
    """Import the modules that define workflows and register every ``Workflow`` in them."""
    for name in modules:
        for value in vars(load_module(name, "ATALAIA_WORKFLOWS")).values():
            if isinstance(value, Workflow):
                registry.add_workflow(value)


def difference(stored: dict[str, Any], given: dict[str, Any]) -> str:
    """Return the lines in which two documents differ, as a unified diff."""

    def lines(document: dict[str, Any]) -> list[str]:
        return json.dumps(document, indent=2, sort_keys=True).splitlines()

    return "\n".join(difflib.unified_diff(lines(stored), lines(given), "stored", "given", n=2))
