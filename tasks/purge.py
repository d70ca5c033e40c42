"""The command ``atalaia purge``: deletes sagas that ended long ago, after it was told to."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Ended(StrEnum):
    """The final states, as models.states has them; importing those would cost half a second."""

    COMPLETED = "completed"
    COMPENSATED = "compensated"
    CANCELLED = "cancelled"


OlderThan = Annotated[
    str | None,
    typer.Option(metavar="P30D", help="Ended so long ago; else ATALAIA_RETENTION."),
]
OfWorkflow = Annotated[str | None, typer.Option(help="Only those of this workflow.")]
States = Annotated[list[Ended] | None, typer.Option("--state", help="Only these; may be repeated.")]
To = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="First write each saga there, as a line of JSON."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be deleted.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def purge(
    older_than: OlderThan = None,
    workflow: OfWorkflow = None,
    state: States = None,
    to: To = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete sagas that ended long ago.

    Whatever may still come of one keeps it. The key of its start is free afterwards.
    """
    from orchestration.settings import settings
    from tasks.purging import Purging, age_of, opened

    if dry_run and to is not None:
        raise typer.BadParameter("nothing is written in a dry run", param_hint="--to")
    age = age_of(older_than, settings())
    with opened(settings()) as store:
        purging = Purging(store, age, workflow=workflow, states=state or ())
        if dry_run:
            purging.look()
        else:
            if not yes:
                purging.ask()
            purging.delete(to)
        purging.tell(as_json=as_json)
