"""The command ``atalaia prove``: tries a workflow, shows how far it is, and says what was found."""

import os
from collections.abc import Sequence
from typing import Annotated

import typer

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
Seed = Annotated[int | None, typer.Option(min=0, help="Of the storms, only that of this seed.")]
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
    from tasks.printing import print_for_people, print_json, progress_bar
    from tasks.proof.asked import Asked
    from tasks.proof.progress import be_quiet
    from tasks.proof.prove import Prover
    from tasks.proof.report import proof_document, proof_story

    asked = Asked(workflow, partner, input_text)
    subject = asked.subject()
    storms: Sequence[int] = range(seeds) if seed is None else [seed]
    be_quiet()
    with progress_bar() as progress:
        prover = Prover(subject, progress, asked=asked, processes=os.cpu_count() or 1)
        proof = prover.prove(storms, quick=quick)
    if as_json:
        print_json(proof_document(proof))
    else:
        print_for_people(proof_story(proof))
    if proof.findings:
        raise typer.Exit(1)
