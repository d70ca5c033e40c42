"""What `atalaia check` looks at: settings, agents, workflows, database, broker, nodes.

Everything is looked at, whatever is found wrong before. Nothing is started and nothing is written.
"""

from collections.abc import Iterator
from datetime import timedelta
from itertools import product

from celery import Celery
from sqlalchemy.exc import SQLAlchemyError

from migrations import run
from orchestration import views
from orchestration.contract import KILL_GRACE
from orchestration.database import POOL_SIZE, promises
from orchestration.definition import Definition
from orchestration.errors import AtalaiaError, ConfigurationError
from orchestration.registry import load_module, load_workflows, registry
from orchestration.roster import Roster
from orchestration.settings import Settings, settings
from orchestration.store import Store
from tasks import durability, pools
from tasks.brokers import answers
from tasks.embedded import EmbeddedBroker
from tasks.findings import Finding, error, ok, warning
from tasks.lookup import existing_store, sqlite_file
from tasks.refusal import of_database, place, told
from tasks.transport import transport
from web.app import unsupervised

_NOBODY = "no worker is alive; start one with `atalaia worker`, or all roles with `atalaia up`"


def check() -> Iterator[Finding]:
    """Yield what is found, in the order in which a person would put it right."""
    try:
        given = settings()
    except ConfigurationError as refusal:
        yield from (error("settings", line) for line in str(refusal).split("; "))
        return
    yield ok("settings", f"home {given.home.resolve()}")
    yield from _agents(given)
    definitions: list[Definition] = []
    yield from _workflows(given, definitions)
    yield from _broker(given, definitions)
    yield from _database(given, definitions)


# --- what this installation knows ----------------------------------------------------------------


def _agents(given: Settings) -> Iterator[Finding]:
    for name in given.agents:
        try:
            load_module(name, "ATALAIA_AGENTS")
        except Exception as refusal:  # noqa: BLE001 - a user's module may raise whatever it likes
            yield error("agents", f"{name}: {told(refusal)[0]}")
    known = ", ".join(sorted(registry.contracts)) or "none"
    yield ok("agents", known) if registry.contracts else warning("agents", known)


def _workflows(given: Settings, bound: list[Definition]) -> Iterator[Finding]:
    for name in given.workflows:
        try:
            load_workflows((name,))
        except Exception as refusal:  # noqa: BLE001 - as above
            yield error("workflows", f"{name}: {told(refusal)[0]}")
    for workflow in registry.workflows.values():
        title = f"{workflow.name} version {workflow.version}"
        try:
            bound.append(registry.bind(workflow))
        except AtalaiaError as refusal:
            yield error("workflows", f"{title}: {refusal}")
        else:
            yield ok("workflows", title)
    if not registry.workflows:
        yield warning("workflows", "none")


# --- the broker ----------------------------------------------------------------------------------


def _broker(given: Settings, definitions: list[Definition]) -> Iterator[Finding]:
    conf = _celery().conf
    recorded = EmbeddedBroker.recorded_url(given.home / "broker")
    url = given.broker_url or recorded
    yield from transport(conf, url or "", _longest(definitions))
    yield from pools.configured(conf["worker_pool"])
    yield from pools.weaknesses(conf["worker_pool"], sqlite=sqlite_file(given.database) is not None)
    if url is None:
        yield warning("broker", "the embedded one was never started; `atalaia up` does it")
        return
    name = "ATALAIA_BROKER_URL" if given.broker_url else "the embedded one"
    try:
        settled = list(answers(name, url, given, conf))
    except ValueError:  # Its text may hold the password.
        yield error("broker", f"{name} is not a broker's URL, such as redis://127.0.0.1:6379/0")
    except Exception as refusal:  # noqa: BLE001 - each transport has its own kinds
        why = f"{name} does not answer: {' '.join(str(refusal).split())}"
        if given.broker_url:
            yield error("broker", why)
        else:
            yield warning("broker", f"{why}; `atalaia up` starts it")
    else:
        yield from settled


def _celery() -> Celery:
    """Return an app with our settings and without our tasks, which may be what is wrong."""
    app = Celery("atalaia", set_as_current=False)
    app.config_from_object("celeryconfig")
    return app


def _longest(definitions: list[Definition]) -> timedelta:
    """Return how long a message may be under work, until its worker's child is killed."""
    steps = (step for one in definitions for step in one.workflow.by_name.values())
    return max((step.timeout for step in steps), default=timedelta(0)) + KILL_GRACE


# --- the database --------------------------------------------------------------------------------


def _database(given: Settings, definitions: list[Definition]) -> Iterator[Finding]:
    try:
        store = existing_store(given)
    except ConfigurationError as refusal:
        default = given.database_url is None
        yield (warning if default else error)("database", str(refusal))
        return
    try:
        at, newest = run.current(store.engine), run.revisions()[-1]
        where = place(given.database)
        if at != newest:
            text = f"{where} is at revision {at or 'none'}, not {newest}; run `atalaia migrate`"
            yield error("database", text)
            return
        yield ok("database", f"{where} is at revision {at}")
        yield from _promises(store, given)
        yield from _stored(store, definitions)
        yield from _nodes(store, given, definitions)
        yield from _incidents(store)
    except SQLAlchemyError as refusal:
        yield error("database", of_database(refusal))
    finally:
        store.engine.dispose()


def _promises(store: Store, given: Settings) -> Iterator[Finding]:
    with store.reading() as connection:
        found = promises(connection)
    if store.engine.dialect.name == "sqlite":
        yield from durability.sqlite(found, sqlite_file(given.database), durability.mounted())
        return
    each = 2 * POOL_SIZE
    if store.engine.dialect.name == "mysql":
        yield from durability.mysql(found)
        yield from durability.connections(int(found["max_connections"]), given.concurrency, each)
    else:
        yield from durability.postgresql(found)
    yield from durability.pool(_celery().conf["worker_pool"], given.concurrency, each)


def _stored(store: Store, definitions: list[Definition]) -> Iterator[Finding]:
    for definition in definitions:
        workflow = definition.workflow
        with store.reading() as connection:
            row = store.find_definition(connection, workflow.name, workflow.version)
        title = f"{workflow.name} version {workflow.version}"
        if row is None:
            text = f"{title} is not stored yet; `atalaia migrate` or a worker does it"
            yield warning("definitions", text)
        elif row.id != definition.id:
            text = f"{title} is stored with other content; give what has changed a new version"
            yield error("definitions", text)
        else:
            yield ok("definitions", f"{title} is stored")
    yield from _left_behind(store, definitions)


def _left_behind(store: Store, definitions: list[Definition]) -> Iterator[Finding]:
    """Yield the versions that sagas still need and this code has dropped."""
    with store.reading() as connection:
        rows = views.left_behind(connection, [definition.id for definition in definitions])
    for row in rows:
        sagas = "1 saga" if row.number == 1 else f"{row.number} sagas"
        have = "has" if row.number == 1 else "have"
        text = (
            f"{sagas} of {row.workflow} version {row.version} {have} not ended, and this code does "
            "not know it; keep it in the code, or workers of a release that has it, until they have"
        )
        yield warning("definitions", text)


def _nodes(store: Store, given: Settings, definitions: list[Definition]) -> Iterator[Finding]:
    roster = Roster(store)
    with store.reading() as connection:
        nodes = views.list_nodes(connection)
    silent = {node_id for node_id, _ in roster.silent(given.node_timeout)}
    living = [node for node in nodes if node.id not in silent]
    for node in nodes:
        if node.id in silent:
            yield warning("nodes", f"{node.name} (pid {node.pid}) is silent")
    if not living:
        yield warning("nodes", _NOBODY)
        return
    yield ok("nodes", ", ".join(f"{node.name} (pid {node.pid})" for node in living))
    hosts = sorted({node.name.partition("@")[2] for node in living} - {""})
    if len(hosts) > 1 and sqlite_file(given.database):
        text = f"SQLite serves one machine, but workers run on {', '.join(hosts)}; use PostgreSQL"
        yield warning("nodes", text)
    served = {pair for node in living for pair in product(node.agents, node.definitions)}
    for definition in definitions:
        workflow = definition.workflow
        needed = {step.agent for step in workflow.by_name.values()}
        if lacking := sorted(agent for agent in needed if (agent, definition.id) not in served):
            title = f"{workflow.name} version {workflow.version}"
            yield warning("nodes", f"no living worker runs {', '.join(lacking)} for {title}")
    problem = unsupervised(roster.since_last_sweep())
    yield warning("sweeps", problem) if problem else ok("sweeps", "somebody supervises")


def _incidents(store: Store) -> Iterator[Finding]:
    with store.reading() as connection:
        count = len(views.list_incidents(connection, limit=1000))
        refused = views.count_refusals(connection)
    if count:
        yield warning("incidents", f"{count} wait for an answer; see `atalaia incidents`")
    if refused:
        told = ", ".join(f"{number} {name}" for name, number in sorted(refused.items()))
        text = f"came too late or twice lately, and changed nothing: {told}"
        yield ok("refused", text)
