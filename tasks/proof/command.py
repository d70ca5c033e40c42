"""The command ``atalaia prove``: finds the workflow, tries it, and says what was found."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tasks.proof.prove import Progress
    from tasks.proof.trial import Subject

Name = Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow's name.")]
Partner = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:OBJECT",
        help="A fake partner of your own; your own agents are run against it.",
    ),
]
Given = Annotated[
    str | None, typer.Option("--input", metavar="JSON", help="With --partner: each saga's input.")
]
Seeds = Annotated[int, typer.Option(min=0, max=1_000_000, help="So many storms, of 8 sagas each.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Only the storm of this seed.")]
Quick = Annotated[bool, typer.Option("--quick", help="One crash, and only where all else is well.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def prove(
    workflow: Name,
    partner: Partner = None,
    input_text: Given = None,
    seeds: Seeds = 20,
    seed: Seed = None,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Try what crashes can do to a workflow.

    In memory: nothing is called or written. Exits with 1 if an effect can be lost or doubled.
    """
    from tasks.printing import print_for_people, print_json
    from tasks.proof.prove import Prover
    from tasks.proof.report import proof_document, proof_story

    subject = _subject(workflow, partner, input_text)
    storms: Sequence[int] = range(seeds) if seed is None else [seed]
    with _quiet_logs(), _progress() as progress:
        proof = Prover(subject, progress).prove(storms, quick=quick)
    if as_json:
        print_json(proof_document(proof))
    else:
        print_for_people(proof_story(proof))
    if proof.findings:
        raise typer.Exit(1)


def _subject(name: str, partner: str | None, input_text: str | None) -> "Subject":
    """Return what is to be tried; raise an ``AtalaiaError`` that says what is not there."""
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

    for module in settings().agents:
        load_module(module, "ATALAIA_AGENTS")
    load_workflows(settings().workflows)
    found = registry.require(name)
    unsafe = tuple(problems_of(found, registry.contracts))
    names = {step.agent for step in found.by_name.values()}
    contracts = {agent: registry.contracts[agent] for agent in names}
    if partner is None and input_text is not None:
        raise InputError("--input goes with --partner only: the model's partners read none")
    fake = load_fake(partner) if partner is not None else None
    if fake is None or unsafe:
        # The model's partners read no input, so none has to be made up for them.
        bare = Workflow(
            found.name, version=found.version, steps=found.steps, deadline=found.deadline
        )
        return Subject(Plan(bare, contracts), unsafe=unsafe)
    if missing := sorted(names - AGENTS.keys()):
        raise UnknownNameError("agent", missing[0], AGENTS)
    given = found.parse_input(read_input(input_text, None))
    return Subject(Plan(found, contracts), own=Own(AGENTS, fake, given))


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Let thousands of runs say nothing: whatever matters is in their timelines."""
    import structlog

    before: dict[str, Any] = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _progress() -> Iterator["Progress"]:
    """Show on a terminal how far it is; elsewhere nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    console = Console(stderr=True)
    disabled = not sys.stderr.isatty()
    with Bars(*columns, console=console, transient=True, disable=disabled) as bars:
        task = bars.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total)

        yield show
