"""What a process knows: one content for each version, and the newest for each name."""

import sys
from types import ModuleType

import pytest

from orchestration import registry as module
from orchestration.contract import AgentContract
from orchestration.definition import Step, Workflow
from orchestration.errors import ConfigurationError, DefinitionError, UnknownNameError
from orchestration.registry import Registry, difference, load_workflows

BOOK = AgentContract(name="hotels.book", idempotent=True, compensation=True)


def stay(version: int = 1, name: str = "stay", step: str = "hotel") -> Workflow:
    return Workflow(name, version=version, steps=Step(step, agent="hotels.book"))


def filled(*workflows: Workflow) -> Registry:
    registry = Registry()
    registry.add_agent(BOOK)
    for workflow in workflows:
        registry.add_workflow(workflow)
    return registry


def test_the_same_workflow_may_be_registered_twice() -> None:
    assert len(filled(stay(), stay()).workflows) == 1


@pytest.mark.proves("D-22")
def test_another_workflow_under_the_same_name_and_version_is_refused() -> None:
    with pytest.raises(DefinitionError, match="two workflows are called 'stay' version 1; give"):
        filled(stay(), stay(step="room"))


def test_the_newest_version_is_the_highest() -> None:
    assert filled(stay(2), stay(10), stay(9)).require("stay").version == 10


def test_an_unknown_workflow_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="workflow 'stya' is not known; did you mean 'stay'"):
        filled(stay()).require("stya")


def test_a_registry_without_workflows_says_so() -> None:
    with pytest.raises(UnknownNameError, match="known: none"):
        Registry().require("stay")


def test_a_workflow_is_bound_to_the_contracts_of_its_agents_only() -> None:
    registry = filled(stay())
    registry.add_agent(AgentContract(name="other"))
    assert registry.bind(stay()).contracts == {"hotels.book": BOOK}
    assert [definition.workflow for definition in registry.definitions()] == [stay()]


def test_an_unsafe_workflow_is_not_bound() -> None:
    registry = filled(stay())
    registry.add_agent(AgentContract(name="hotels.book"))
    with pytest.raises(DefinitionError, match="step 'hotel'"):
        registry.bind(stay())


def test_a_process_without_the_agents_leaves_a_workflow_unbound() -> None:
    assert Registry().bound(stay()) is None
    assert filled().bound(stay()) is not None


def test_workflows_are_found_in_the_modules_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ModuleType("mine")
    vars(mine).update(one=stay(name="one"), two=stay(name="two"), other=3)
    monkeypatch.setitem(sys.modules, "mine", mine)
    monkeypatch.setattr(module, "registry", Registry())
    load_workflows(("mine",))
    assert {name for name, _ in module.registry.workflows} == {"one", "two"}


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"ATALAIA_WORKFLOWS: module 'no.such' cannot be"):
        load_workflows(("no.such",))


@pytest.mark.proves("D-22")
def test_a_difference_shows_the_lines_that_differ() -> None:
    told = difference(stay().document, stay(step="room").document)
    assert '-    "name": "hotel",' in told
    assert '+    "name": "room",' in told
    assert difference(stay().document, stay().document) == ""


@pytest.mark.parametrize("name", ["orders.close", "orders.probe", "orders.compensation"])
def test_an_agent_that_is_called_like_an_operation_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match=f"agent '{name}': no name may end in"):
        Registry().add_agent(AgentContract(name=name))
