"""The command ``atalaia``: thin over the scheduler and the views.

A refused command says why in one line on stderr, exits with 2 and writes nothing; one that failed
exits with 1. Whatever a command needs is imported inside it, so that ``--help`` is quick.
"""

import io
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tasks.proof.command import prove
from tasks.purge import purge

if TYPE_CHECKING:
    from uuid import UUID

    from orchestration.store import Store
    from tasks.runtime import Runtime

INTERRUPTED = 130

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Sagas that reach their end: a scheduler, agents and a supervisor for Celery.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")]
SagaId = Annotated[str, typer.Argument(metavar="SAGA", help="Its id, or 8 digits of either end.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept.")]
By = Annotated[str | None, typer.Option(help="Who decides; else the user of this shell.")]


# As models.states and orchestration.events have them; importing those would cost half a second.
State = Literal["running", "compensating", "halted", "completed", "compensated", "cancelled"]
Remedy = Literal[
    "retry", "probe", "close", "succeeded", "failed", "compensated", "skip", "acknowledge"
]


def _store() -> "Store":
    from orchestration.settings import settings
    from tasks.lookup import existing_store

    return existing_store(settings())


def _runtime() -> "Runtime":
    """Return the parts of a process that may change sagas."""
    from orchestration.telemetry import configure_logs
    from tasks.app import runtime

    _store()
    parts = runtime()
    configure_logs(json=parts.settings.log_json, level=logging.WARNING)
    return parts


def _print(value: Any, *, as_json: bool = False) -> None:
    from tasks.printing import print_for_people, print_json

    (print_json if as_json else print_for_people)(value)


def _print_state(store: "Store", saga_id: "UUID") -> None:
    from orchestration.handle import Handle

    print(f"saga {saga_id} is {Handle(store, saga_id).state()}")


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"atalaia {version('atalaia')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Take the options of every command."""
    del version, debug


@app.command()
def up(
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes to start.")] = 1,
    flower: Annotated[bool, typer.Option(help="Start Flower, too.")] = True,
    web: Annotated[bool, typer.Option(help="Start the web API, too.")] = True,
) -> None:
    """Run all roles on this machine until Ctrl-C.

    Without settings, on SQLite and an embedded broker in ATALAIA_HOME.
    """
    from orchestration.settings import settings
    from tasks import stack
    from tasks.processes import ended_by_signals

    with ended_by_signals():
        stack.up(settings(), workers=workers, flower=flower, web=web)


@app.command()
def demo(
    as_json: AsJson = False,
    stay: Annotated[bool, typer.Option(help="Keep everything up afterwards.")] = False,
) -> None:
    """Book 40 trips while agents are killed.

    At the end, compare what was done with the partners' own books; exit 1 if they disagree.
    """
    from tasks.launch import become

    flags = [flag for flag, given in (("--json", as_json), ("--stay", stay)) if given]
    become([sys.executable, "-P", "-m", "examples.travel.demo", *flags])


@app.command()
def worker(
    queue: Annotated[
        list[str] | None,
        typer.Option(help="Take only this queue of agents, with its recovery; may be repeated."),
    ] = None,
    supervisor: Annotated[bool, typer.Option("--supervisor", help="Only sweep.")] = False,
    with_beat: Annotated[bool, typer.Option("--with-beat", help="Ring for sweeps, too.")] = False,
    concurrency: Annotated[int | None, typer.Option(min=1, max=1000)] = None,
    name: Annotated[str | None, typer.Option(help="The node's name, kept over restarts.")] = None,
    pool: Annotated[str | None, typer.Option(help="Prefork, threads, gevent, solo.")] = None,
) -> None:
    """Run a worker, for everything but sweeps.

    The options narrow it down.
    """
    from tasks.launch import become_worker, worker_command, worker_environment

    command = worker_command(
        queues=queue or (), supervisor=supervisor, with_beat=with_beat, concurrency=concurrency,
        name=name, pool=pool,
    )  # fmt: skip
    become_worker(command, worker_environment(supervisor=supervisor, name=name))


@app.command()
def beat() -> None:
    """Run the clock that fires the sweeps.

    A second one does no harm.
    """
    from tasks.launch import beat_command, become

    become(beat_command())


@app.command()
def web(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0: any free one.")] = None,
) -> None:
    """Serve the HTTP API; its page is at /docs."""
    from orchestration.settings import settings

    _store()
    from tasks.serve import serve

    serve(host, settings().web_port if port is None else port)


@app.command()
def migrate() -> None:
    """Bring the database up to date; safe to repeat.

    First the schema, then the workflows that this installation knows.
    """
    from migrations.run import current, upgrade
    from orchestration.settings import settings
    from tasks.app import runtime

    given = settings()
    if given.database_url is None:
        given.home.mkdir(parents=True, exist_ok=True)
    parts = runtime()
    upgrade(parts.store.engine)
    stored = parts.scheduler.register_definitions()
    revision = current(parts.store.engine)
    print(f"database at revision {revision}, {len(stored)} workflow(s) stored")


@app.command()
def check(as_json: AsJson = False) -> None:
    """Look for mistakes; start and write nothing.

    In settings, agents, workflows and services. Exits with 1 if there are errors.
    """
    from tasks.checks import check
    from tasks.findings import Level
    from tasks.printing import finding_lists, finding_table

    findings = list(check())

    show = finding_lists if as_json else finding_table
    _print(show(findings), as_json=as_json)
    if any(finding.level is Level.ERROR for finding in findings):
        raise typer.Exit(1)


app.command()(prove)
app.command()(purge)


@app.command()
def sweep(as_json: AsJson = False) -> None:
    """Supervise once, now, and print what was done."""
    counts = dict(_runtime().supervisor.sweep().counts)
    lines = (f"{count:6}  {duty.replace('_', ' ')}" for duty, count in counts.items())
    _print(counts if as_json else "\n".join(lines), as_json=as_json)


@app.command()
def start(
    workflow: Annotated[str, typer.Argument(help="The workflow's name.")],
    input_text: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="Its input; - reads stdin.")
    ] = None,
    input_file: Annotated[
        str | None, typer.Option("--input-file", metavar="FILE", help="The same from a file.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Start it only once under this key.")] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Wait for its end; exit 1 unless completed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a saga and print its id."""
    from tasks.lookup import read_input
    from web.schema import StartRequest

    asked = StartRequest(workflow=workflow, input=read_input(input_text, input_file), key=key)
    handle = _runtime().scheduler.start(asked.workflow, asked.input, key=asked.key)
    if not as_json:
        print(handle.saga_id, flush=True)
    if not (as_json or handle.created):
        print("its key had started it before", file=sys.stderr)
    try:
        end = handle.result() if wait is None else handle.wait(wait)
    except TimeoutError:
        if not as_json:
            raise
        end = handle.result()
    from tasks.printing import end_lines, started_document

    if as_json:
        _print(started_document(handle, end), as_json=True)
    elif wait is not None:
        _print(end_lines(end))
    if wait is not None and end.state != "completed":
        raise typer.Exit(1)


@app.command("list")
def list_sagas(
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    workflow: Annotated[str | None, typer.Option(help="Only those of this workflow.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the newest sagas."""
    from models.states import SagaState
    from web.schema import sagas_shown

    chosen = None if state is None else SagaState(state)
    sagas = sagas_shown(_store(), state=chosen, workflow=workflow, limit=limit)
    from tasks.printing import saga_table

    _print(sagas if as_json else saga_table(sagas), as_json=as_json)


@app.command()
def show(saga: SagaId, as_json: AsJson = False) -> None:
    """Show one saga: who did what, when and why."""
    from tasks.lookup import find_saga
    from web.schema import saga_shown

    store = _store()
    shown = saga_shown(store, find_saga(store, saga))
    from tasks.printing import saga_story

    _print(shown if as_json else saga_story(shown), as_json=as_json)


@app.command()
def watch(saga: SagaId) -> None:
    """Follow one saga until it ends.

    Exits with 1 unless it is completed then. Ctrl-C ends only the watching.
    """
    from tasks.lookup import find_saga
    from tasks.watch import follow

    store = _store()
    end = follow(store, find_saga(store, saga))
    if end != "completed":
        raise typer.Exit(1)


@app.command()
def cancel(saga: SagaId, reason: Reason = "", by: By = None) -> None:
    """Turn a saga back: what it did is compensated. Refused after its pivot."""
    from tasks.lookup import find_saga, one_line, person

    who, why = person(by), one_line(reason, "--reason", may_be_empty=True)
    saga_id = find_saga(_store(), saga)
    scheduler = _runtime().scheduler
    scheduler.cancel(saga_id, by=who, reason=why)
    _print_state(scheduler.store, saga_id)


@app.command()
def distrust(reason: Reason = "", by: By = None) -> None:
    """After the database has lost commits: ask before anything is sent that may have been."""
    from tasks.lookup import one_line, person

    who, why = person(by), one_line(reason, "--reason")
    print(f"{_runtime().scheduler.distrust(by=who, reason=why)} saga(s) will ask first")


@app.command()
def incidents(
    show_all: Annotated[bool, typer.Option("--all", help="The resolved ones, too.")] = False,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List what waits for an operator, the oldest first."""
    from tasks.printing import incident_table
    from web.schema import incidents_shown

    found = incidents_shown(_store(), include_resolved=show_all, limit=limit)
    _print(found if as_json else incident_table(found), as_json=as_json)


@app.command()
def resolve(
    incident: Annotated[int, typer.Argument(help="Its number; see `atalaia incidents`.")],
    remedy: Annotated[Remedy, typer.Argument(help="What to do about its step.")],
    reason: Reason,
    result: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="With `succeeded`: the result that the step had."),
    ] = None,
    by: By = None,
) -> None:
    """Answer an incident.

    retry: try it again. probe, close: ask the remote again. succeeded, failed, compensated: say
    what is so. skip: go on without it. acknowledge: seen, nothing is to be done.
    """
    from orchestration import events
    from tasks.lookup import find_question, one_line, person, read_result

    row = find_question(_store(), incident)
    given = read_result(result, remedy)
    who, why = person(by), one_line(reason, "--reason")
    scheduler = _runtime().scheduler
    chosen = events.Remedy(remedy)
    scheduler.resolve(row.saga_id, row.path, chosen, by=who, reason=why, result=given)
    _print_state(scheduler.store, row.saga_id)


def main() -> int:
    """Run one command; return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # A name in any script, on any terminal.
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.append(here)  # As Celery does, for workflows and agents of one's own.
    debug = "--debug" in sys.argv[1:]
    try:
        status = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        if debug:
            raise
        from tasks.refusal import told

        line, status = told(error)
        print(f"atalaia: {line}", file=sys.stderr)
    return status if isinstance(status, int) else 0
