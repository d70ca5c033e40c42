"""What `atalaia check` looks at: settings, agents, workflows, database, broker, nodes.

Everything is looked at, whatever is found wrong before. Nothing is started and nothing is written.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import kombu
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy.exc import SQLAlchemyError

from migrations import run
from orchestration import views
from orchestration.definition import Definition
from orchestration.errors import AtalaiaError, ConfigurationError
from orchestration.registry import load_module, load_workflows, registry
from orchestration.roster import Roster
from orchestration.settings import Settings, settings
from orchestration.store import Store
from tasks.embedded import EmbeddedBroker
from tasks.findings import Finding, Level
from tasks.lookup import existing_store, sqlite_file
from tasks.refusal import of_database, place, told
from web.app import unsupervised

_PATIENCE_SECONDS = 3
_NOBODY = "no worker is alive; start one with `atalaia worker`, or all roles with `atalaia up`"


def _ok(about: str, text: str) -> Finding:
    return Finding(level=Level.OK, about=about, text=text)


def _warning(about: str, text: str) -> Finding:
    return Finding(level=Level.WARNING, about=about, text=text)


def _error(about: str, text: str) -> Finding:
    return Finding(level=Level.ERROR, about=about, text=text)


def check() -> Iterator[Finding]:
    """Yield what is found, in the order in which a person would put it right."""
    try:
        given = settings()
    except ConfigurationError as error:
        yield from (_error("settings", line) for line in str(error).split("; "))
        return
    yield _ok("settings", f"home {given.home.resolve()}")
    yield from _agents(given)
    definitions: list[Definition] = []
    yield from _workflows(given, definitions)
    yield from _broker(given)
    yield from _database(given, definitions)


# --- what this installation knows ----------------------------------------------------------------


def _agents(given: Settings) -> Iterator[Finding]:
    for name in given.agents:
        try:
            load_module(name, "ATALAIA_AGENTS")
        except Exception as error:  # noqa: BLE001 - a user's module may raise whatever it likes
            yield _error("agents", f"{name}: {told(error)[0]}")
    known = ", ".join(sorted(registry.contracts)) or "none"
    yield _ok("agents", known) if registry.contracts else _warning("agents", known)


def _workflows(given: Settings, bound: list[Definition]) -> Iterator[Finding]:
    for name in given.workflows:
        try:
            load_workflows((name,))
        except Exception as error:  # noqa: BLE001 - as above
            yield _error("workflows", f"{name}: {told(error)[0]}")
    for workflow in registry.workflows.values():
        title = f"{workflow.name} version {workflow.version}"
        try:
            bound.append(registry.bind(workflow))
        except AtalaiaError as error:
            yield _error("workflows", f"{title}: {error}")
        else:
            yield _ok("workflows", title)
    if not registry.workflows:
        yield _warning("workflows", "none")


# --- the broker ----------------------------------------------------------------------------------


def _broker(given: Settings) -> Iterator[Finding]:
    recorded = EmbeddedBroker.recorded_url(given.home / "broker")
    url = given.broker_url or recorded
    if url is None:
        yield _warning("broker", "the embedded one was never started; `atalaia up` does it")
        return
    name = "ATALAIA_BROKER_URL" if given.broker_url else "the embedded one"
    try:
        settled = list(_redis(url) if url.startswith("redis") else _amqp(url))
    except ValueError:  # Its text may hold the password.
        yield _error("broker", f"{name} is not a broker's URL, such as redis://127.0.0.1:6379/0")
    except Exception as error:  # noqa: BLE001 - each transport has its own kinds
        why = f"{name} does not answer: {' '.join(str(error).split())}"
        if given.broker_url:
            yield _error("broker", why)
        else:
            yield _warning("broker", f"{why}; `atalaia up` starts it")
    else:
        yield _ok("broker", f"{name} answers")
        yield from settled


def _redis(url: str) -> Iterator[Finding]:
    retry = Retry(NoBackoff(), 0)
    patience = {"socket_timeout": _PATIENCE_SECONDS, "socket_connect_timeout": _PATIENCE_SECONDS}
    with redis.Redis.from_url(url, retry=retry, **patience) as client:
        client.ping()
        try:
            options: dict[str, Any] = client.config_get("maxmemory-policy", "appendonly")
        except redis.ResponseError as error:
            yield _warning("broker", f"its settings cannot be seen ({error})")
            return
    policy = options.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        text = f"maxmemory-policy is {policy}: it may drop messages when full; use noeviction"
        yield _warning("broker", text)
    if options.get("appendonly", "yes") != "yes":
        text = "appendonly is no: its messages end with it, and are sent again later by a sweep"
        yield _warning("broker", text)


def _amqp(url: str) -> Iterator[Finding]:
    if "://" not in url:
        raise ValueError(url)
    with kombu.Connection(url, connect_timeout=_PATIENCE_SECONDS) as connection:
        connection.connect()
    if not url.startswith("amqp"):
        yield _warning("broker", "only redis:// and amqp:// are tried out with Atalaia")


# --- the database --------------------------------------------------------------------------------


def _database(given: Settings, definitions: list[Definition]) -> Iterator[Finding]:
    try:
        store = existing_store(given)
    except ConfigurationError as error:
        default = given.database_url is None
        yield (_warning if default else _error)("database", str(error))
        return
    try:
        at, newest = run.current(store.engine), run.revisions()[-1]
        where = place(given.database)
        if at != newest:
            text = f"{where} is at revision {at or 'none'}, not {newest}; run `atalaia migrate`"
            yield _error("database", text)
            return
        yield _ok("database", f"{where} is at revision {at}")
        yield from _stored(store, definitions)
        yield from _nodes(store, given, definitions)
        yield from _incidents(store)
    except SQLAlchemyError as error:
        yield _error("database", of_database(error))
    finally:
        store.engine.dispose()


def _stored(store: Store, definitions: list[Definition]) -> Iterator[Finding]:
    for definition in definitions:
        workflow = definition.workflow
        with store.reading() as connection:
            row = store.find_definition(connection, workflow.name, workflow.version)
        title = f"{workflow.name} version {workflow.version}"
        if row is None:
            text = f"{title} is not stored yet; `atalaia migrate` or a worker does it"
            yield _warning("definitions", text)
        elif row.id != definition.id:
            text = f"{title} is stored with other content; give what has changed a new version"
            yield _error("definitions", text)
        else:
            yield _ok("definitions", f"{title} is stored")


def _nodes(store: Store, given: Settings, definitions: list[Definition]) -> Iterator[Finding]:
    roster = Roster(store)
    with store.reading() as connection:
        nodes = views.list_nodes(connection)
    silent = {node_id for node_id, _ in roster.silent(given.node_timeout)}
    living = [node for node in nodes if node.id not in silent]
    for node in nodes:
        if node.id in silent:
            yield _warning("nodes", f"{node.name} (pid {node.pid}) is silent")
    if not living:
        yield _warning("nodes", _NOBODY)
        return
    yield _ok("nodes", ", ".join(f"{node.name} (pid {node.pid})" for node in living))
    hosts = sorted({node.name.partition("@")[2] for node in living} - {""})
    if len(hosts) > 1 and sqlite_file(given.database):
        text = f"SQLite serves one machine, but workers run on {', '.join(hosts)}; use PostgreSQL"
        yield _warning("nodes", text)
    served = {pair for node in living for pair in product(node.agents, node.definitions)}
    for definition in definitions:
        workflow = definition.workflow
        needed = {step.agent for step in workflow.by_name.values()}
        if lacking := sorted(agent for agent in needed if (agent, definition.id) not in served):
            title = f"{workflow.name} version {workflow.version}"
            yield _warning("nodes", f"no living worker runs {', '.join(lacking)} for {title}")
    problem = unsupervised(roster.since_last_sweep())
    yield _warning("sweeps", problem) if problem else _ok("sweeps", "somebody supervises")


def _incidents(store: Store) -> Iterator[Finding]:
    with store.reading() as connection:
        count = len(views.list_incidents(connection, limit=1000))
        refused = views.count_refusals(connection)
    if count:
        yield _warning("incidents", f"{count} wait for an answer; see `atalaia incidents`")
    if refused:
        told = ", ".join(f"{number} {name}" for name, number in sorted(refused.items()))
        yield _ok("refused", f"came too late or twice and changed nothing: {told}")
