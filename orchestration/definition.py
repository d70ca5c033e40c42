"""Workflow: the plan of a saga, as data that is validated when it is constructed.

A workflow is a tree of nodes. It names agents by string and imports none, so it can be loaded,
stored and shown anywhere. ``Definition`` is the workflow together with the contracts of its
agents; that is what a running saga is pinned to. Field names follow Temporal and Step Functions.
"""

import hashlib
import json
import operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from orchestration.contract import AgentContract
from orchestration.declared import (
    LONGEST,
    NAME,
    NAME_MAX,
    Duration,
    Name,
    declared,
    explain,
    refusing,
)
from orchestration.errors import DefinitionError, InputError
from orchestration.retry import RetryOverride, RetryPolicy

__all__ = [
    "Definition",
    "Parallel",
    "RetryOverride",
    "RetryPolicy",
    "Sequence",
    "Step",
    "Workflow",
    "explain",
    "parallel",
    "sequence",
    "steps_of",
]

DEFAULT_TIMEOUT = timedelta(minutes=5)
DEFAULT_DEADLINE = timedelta(days=1)


@declared
class Step:
    """One call to one agent.

    ``timeout`` is start-to-close and becomes the lease. ``schedule_to_start`` bounds the wait for a
    worker, ``schedule_to_close`` all attempts together, ``heartbeat_timeout`` the silence of a
    running agent. ``pivot`` is the point of no return: after it there is only forward. Whoever has
    finished the step before an ``inline`` one, on the same queue, goes on with it in the same task:
    its lease is committed with the report, and no message is waited for.
    """

    name: Name
    _: KW_ONLY
    agent: Name
    timeout: Duration = DEFAULT_TIMEOUT
    retry: RetryPolicy = Field(default_factory=RetryPolicy)
    schedule_to_start: Duration | None = None
    schedule_to_close: Duration | None = None
    heartbeat_timeout: Duration | None = None
    pivot: bool = False
    inline: Annotated[bool, Field(exclude_if=operator.not_)] = False
    type: Literal["step"] = "step"


@declared
class Sequence:
    """One after another; undone in reverse order."""

    _: KW_ONLY
    children: Annotated[tuple["Node", ...], Field(min_length=1)]
    type: Literal["sequence"] = "sequence"


@declared
class Parallel:
    """All at once; undone all at once."""

    _: KW_ONLY
    children: Annotated[tuple["Node", ...], Field(min_length=1)]
    type: Literal["parallel"] = "parallel"


Node = Annotated[Step | Sequence | Parallel, Field(discriminator="type")]


def sequence(*children: Step | Sequence | Parallel) -> Sequence:
    """Return the node that runs ``children`` one after another."""
    with refusing("sequence()"):
        return Sequence(children=children)


def parallel(*children: Step | Sequence | Parallel) -> Parallel:
    """Return the node that runs ``children`` at the same time."""
    with refusing("parallel()"):
        return Parallel(children=children)


for _cls in (Sequence, Parallel):
    pydantic.dataclasses.rebuild_dataclass(_cls, force=True)  # type: ignore[arg-type]
_NODE: TypeAdapter[Step | Sequence | Parallel] = TypeAdapter(Node)


def steps_of(node: Step | Sequence | Parallel) -> Iterator[Step]:
    """Yield the steps of a tree in the order in which they are written."""
    if isinstance(node, Step):
        yield node
    else:
        for child in node.children:
            yield from steps_of(child)


class Workflow:
    """A named, versioned plan.

    ``input`` is a pydantic model, or the JSON schema of one when the plan was read back from JSON.
    ``deadline`` bounds the whole saga; past it, a saga that has not reached its pivot is undone.
    Raises ``DefinitionError`` naming the step and what is allowed.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int,
        steps: Step | Sequence | Parallel,
        input: type[BaseModel] | dict[str, Any] | None = None,  # noqa: A002 - the field's own word
        deadline: timedelta = DEFAULT_DEADLINE,
    ) -> None:
        problems = list(_type_problems(name, version, steps, input, deadline))
        if problems:
            raise DefinitionError("\n".join(f"workflow {name!r}: {line}" for line in problems))
        self.name = name
        self.version = version
        self.steps = steps
        self.model = input if isinstance(input, type) else None
        self.input_schema = input.model_json_schema() if isinstance(input, type) else input
        self.deadline = deadline
        problems = list(_structure_problems(self))
        if problems:
            raise DefinitionError("\n".join(f"workflow {name!r}: {line}" for line in problems))

    @cached_property
    def by_name(self) -> dict[str, Step]:
        """The steps by their names, in the order in which they are written."""
        return {step.name: step for step in steps_of(self.steps)}

    @cached_property
    def document(self) -> dict[str, Any]:
        """The plan as JSON; ``from_document`` gives the same plan back."""
        return {
            "name": self.name,
            "version": self.version,
            "input_schema": self.input_schema,
            "deadline": TypeAdapter(timedelta).dump_python(self.deadline, mode="json"),
            "steps": _NODE.dump_python(self.steps, mode="json"),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Workflow":
        """Return the plan that ``document`` describes."""
        with refusing("workflow", document["name"]):
            steps = _NODE.validate_python(document["steps"])
            deadline = TypeAdapter(timedelta).validate_python(document["deadline"])
        return cls(
            document["name"],
            version=document["version"],
            steps=steps,
            input=document["input_schema"],
            deadline=deadline,
        )

    def parse_input(self, value: Any) -> Any:
        """Return ``value`` validated and as JSON; raise ``InputError`` naming each wrong field."""
        where = f"input of workflow {self.name!r}"
        try:
            if self.model is not None:
                value = self.model.model_validate(value).model_dump(mode="json")
            value = json.loads(json.dumps(value, allow_nan=False))
        except ValidationError as error:
            msg = f"{where}: {explain(error)}"
            raise InputError(msg) from None
        except (TypeError, ValueError) as error:
            msg = f"{where} must be JSON: {error}"
            raise InputError(msg) from None
        return value if self.model is not None else self._parse_by_schema(value)

    def _parse_by_schema(self, value: Any) -> Any:
        """Validate where only the schema is known, as in a process without the workflow's code."""
        if self.input_schema is None:
            return value
        # A worker, which has the code, would load it for nothing each time that it is restarted.
        from jsonschema import Draft202012Validator, FormatChecker  # noqa: PLC0415

        fields = self.input_schema.get("properties", {})
        defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
        whole = defaults | value if isinstance(value, dict) else value
        validator = Draft202012Validator(self.input_schema, format_checker=FormatChecker())
        errors = [
            ": ".join(filter(None, (".".join(map(str, error.absolute_path)), error.message)))
            for error in validator.iter_errors(whole)
        ]
        if errors:
            msg = f"input of workflow {self.name!r}: {'; '.join(errors)}"
            raise InputError(msg)
        return whole

    def __eq__(self, other: object) -> bool:
        """Tell whether both describe the same plan."""
        return isinstance(other, Workflow) and self.document == other.document

    def __hash__(self) -> int:
        """Hash by name and version."""
        return hash((self.name, self.version))

    def __repr__(self) -> str:
        """Show the name and the version."""
        return f"Workflow({self.name!r}, version={self.version})"


def _type_problems(name: Any, version: Any, steps: Any, given: Any, deadline: Any) -> Iterator[str]:
    """Yield which argument is not even of its kind."""
    if not (isinstance(name, str) and len(name) <= NAME_MAX and re.fullmatch(NAME, name)):
        yield "the name must be lower case, of letters, digits, '_', '-' and '.'"
    if type(version) is not int or version < 1:
        yield f"version must be a whole number from 1, got {version!r}"
    if not isinstance(steps, Step | Sequence | Parallel):
        yield f"steps must be a Step, sequence() or parallel(), got {steps!r}"
    model = isinstance(given, type) and issubclass(given, BaseModel)
    if not (model or given is None or isinstance(given, dict)):
        yield f"input must be a pydantic model, got {given!r}"
    if not isinstance(deadline, timedelta):
        yield f"deadline must be a timedelta, got {deadline!r}"
    elif not timedelta(0) < deadline <= LONGEST:
        yield f"deadline must be longer than zero and at most {LONGEST.days} days, got {deadline}"


def _structure_problems(workflow: Workflow) -> Iterator[str]:
    """Yield what is wrong with a plan whatever its agents are."""
    for name, count in Counter(step.name for step in steps_of(workflow.steps)).items():
        if count > 1:
            yield f"step {name!r} stands {count} times; every step needs a name of its own"
    yield from _pivot_problems(workflow)
    for step in steps_of(workflow.steps):
        yield from _nesting_problems(step, workflow.deadline)


def _pivot_problems(workflow: Workflow) -> Iterator[str]:
    pivots = [step.name for step in steps_of(workflow.steps) if step.pivot]
    if len(pivots) > 1:
        yield f"steps {' and '.join(map(repr, pivots))} are both pivots; a path has one at most"
    for name in _pivots_in_parallel(workflow.steps, inside=False):
        yield (
            f"step {name!r} is a pivot inside parallel(): its sibling branches would be neither "
            "before nor after it; put the pivot after the parallel"
        )


def _pivots_in_parallel(node: Step | Sequence | Parallel, *, inside: bool) -> Iterator[str]:
    if isinstance(node, Step):
        if node.pivot and inside:
            yield node.name
        return
    alone = len(node.children) == 1
    for child in node.children:
        yield from _pivots_in_parallel(
            child, inside=inside or (isinstance(node, Parallel) and not alone)
        )


def _nesting_problems(step: Step, deadline: timedelta) -> Iterator[str]:
    """Yield each pair of time-outs that does not nest."""
    to_close = step.schedule_to_close or deadline
    name = "schedule_to_close" if step.schedule_to_close else "the workflow's deadline"
    pairs = (
        ("heartbeat_timeout", step.heartbeat_timeout, "timeout", step.timeout),
        ("timeout", step.timeout, name, to_close),
        ("schedule_to_start", step.schedule_to_start, name, to_close),
        ("retry.total_timeout", step.retry.total_timeout, name, to_close),
        ("schedule_to_close", step.schedule_to_close, "the workflow's deadline", deadline),
    )
    for inner, short, outer, long in pairs:
        if short is not None and short > long:
            yield (
                f"step {step.name!r}: {inner} ({short}) must not be longer than {outer} ({long})"
            )


class Definition:
    """A workflow bound to the contracts of the agents that it names: what a saga is pinned to."""

    def __init__(self, workflow: Workflow, contracts: Mapping[str, AgentContract]) -> None:
        self.workflow = workflow
        names = sorted({step.agent for step in workflow.by_name.values()})
        self.contracts = {name: contracts[name] for name in names}
        self._followers: dict[str, frozenset[str]] = {}
        self._longest: dict[str, timedelta] = {}

    @cached_property
    def document(self) -> dict[str, Any]:
        """The whole as JSON."""
        contracts = {name: contract.document() for name, contract in self.contracts.items()}
        return {"workflow": self.workflow.document, "agents": contracts}

    @cached_property
    def id(self) -> str:
        """The SHA-256 of the canonical JSON."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Definition":
        """Return the definition that ``document`` describes."""
        contracts = {
            name: AgentContract.from_document(contract)
            for name, contract in document["agents"].items()
        }
        return cls(Workflow.from_document(document["workflow"]), contracts)

    def step(self, path: str) -> Step:
        """Return the definition of the step at ``path``."""
        return self.workflow.by_name[path]

    def contract(self, path: str) -> AgentContract:
        """Return the contract of the agent of the step at ``path``."""
        return self.contracts[self.step(path).agent]

    def followers(self, path: str) -> frozenset[str]:
        """Return the steps that whoever has finished the one at ``path`` may go on with at once."""
        known = self._followers.get(path)
        if known is None:
            queue = self.contract(path).queue
            known = self._followers[path] = frozenset(
                step.name
                for step in self.workflow.by_name.values()
                if step.inline and step.name != path and self.contract(step.name).queue == queue
            )
        return known

    def longest_task(self, path: str) -> timedelta:
        """Return how long a task may last in which the step at ``path`` is run.

        Where steps are inline, it may have begun with another step of the queue.
        """
        known = self._longest.get(path)
        if known is None:
            known = self._longest[path] = self._longest_task(path)
        return known

    def _longest_task(self, path: str) -> timedelta:
        queue = self.contract(path).queue
        steps = [s for s in self.workflow.by_name.values() if self.contract(s.name).queue == queue]
        inline = [step.timeout for step in steps if step.inline]
        if not inline:
            return self.step(path).timeout
        first = max((step.timeout for step in steps if not step.inline), default=timedelta(0))
        return sum(inline, first)
