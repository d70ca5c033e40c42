"""The node: a worker's heartbeat, the watch over its pool children, and the sweep of last resort.

One thread in the worker's parent process. It writes one row each interval, whatever the number of
steps; it sees within a tenth of a second when a child is gone, long before Celery does, and reports
the leases that the child held; and it sweeps when nobody else has for three intervals.
"""

import contextlib
import gc
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn
from uuid import UUID

import psutil
from billiard.exceptions import WorkerLostError
from celery.signals import (
    celeryd_after_setup,
    task_failure,
    task_unknown,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)
from kombu import Exchange
from sqlalchemy.exc import SQLAlchemyError

from models.states import Operation
from orchestration.metrics import RESCUES, count
from orchestration.registry import registry
from orchestration.roster import NodeIdentity, release_of
from orchestration.telemetry import log_of
from tasks.app import app, begin_to_end, join_as, runtime
from tasks.pools import name_of, weaknesses
from tasks.queues import queue_named, release_queues
from tasks.watched import hush

LOOK_SECONDS = 0.1
SWEEPS_MISSED = 3
TAKE_A_LEASE = frozenset({Operation.ACTION, Operation.COMPENSATION})


class Keeper(threading.Thread):
    """The thread. ``children`` returns the pids of the pool's processes.

    ``chores`` is what else is done with each heartbeat.
    """

    def __init__(
        self,
        node: NodeIdentity,
        children: Callable[[], set[int]],
        chores: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="atalaia-node", daemon=True)
        self.node = node
        self.children = children
        self.chores = chores
        self.ended = threading.Event()
        self.alive: set[int] = set()
        self.using_database = threading.Lock()
        parts = runtime()
        self.scheduler = parts.scheduler
        self.roster = parts.roster
        self.supervisor = parts.supervisor
        self.heartbeat = parts.settings.node_heartbeat.total_seconds()
        self.patience = parts.settings.sweep_interval * SWEEPS_MISSED
        self.grace = parts.settings.stop_timeout.total_seconds()
        self.ends_at = math.inf
        self.withdrawn = False

    def run(self) -> None:
        """Look at the children ten times a second, and beat every interval."""
        due = time.monotonic()
        while not self.ended.wait(LOOK_SECONDS):
            self._guarded(self.look)
            if self.ends_at < math.inf and not self.withdrawn:
                self._guarded(self.withdraw)
            if time.monotonic() >= self.ends_at:
                self.cut_off()
            if time.monotonic() >= due:
                due = time.monotonic() + self.heartbeat
                self._guarded(self.beat)
                self.chores()

    def _guarded(self, duty: Callable[[], None]) -> None:
        """Do a duty; a database that is away for a while must not end the watch."""
        try:
            with self.using_database:
                duty()
        except (SQLAlchemyError, OSError) as error:
            log_of("node").warning("cannot do its duty", duty=duty.__name__, error=str(error))

    def before_fork(self) -> None:
        """Let go of the database until the fork is over.

        A child that inherits an open connection believes that its locks are its own: SQLite would
        then find the database locked for ever, or take it for unused and remove its log.
        """
        self.using_database.acquire()
        self.scheduler.store.engine.dispose()

    def after_fork(self) -> None:
        """Go on, in the parent and in the child."""
        self.using_database.release()

    def look(self) -> None:
        """Report the leases of children that are gone."""
        alive = {pid for pid in self.children() if _runs(pid)}
        gone = self.alive - alive
        for pid in gone:
            held = self.roster.held_by(self.node.id, pid)
            if held:
                log_of("node").warning("a worker process is gone", pid=pid, leases=len(held))
                freed = self.supervisor.release(held, f"its worker process {pid} is gone")
                count(RESCUES, "lost_processes", amount=freed)
        self.alive = alive

    def end_in_time(self) -> None:
        """Begin to count the time that is left for what is still being done."""
        self.ends_at = min(self.ends_at, time.monotonic() + self.grace)

    def withdraw(self) -> None:
        """Say that nothing more is to be sent to this worker."""
        self.roster.withdraw(self.node.id)
        self.withdrawn = True

    def cut_off(self) -> NoReturn:
        """End this worker at once; what it still holds is taken back and asked about.

        No pool but prefork can end a call in any other way.
        """
        why = f"its worker was told to end, and it took longer than {self.grace:g} s"
        log_of("node").warning("is cut off", node=self.node.name, stop_timeout=self.grace)
        try:
            for pid in self.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with self.using_database:
                self.supervisor.release(self.roster.held_by(self.node.id), why)
                self.roster.end(self.node.id)
        except (SQLAlchemyError, OSError) as error:
            log_of("node").warning("leaves its leases to a sweep", error=str(error))
        finally:
            logging.shutdown()
            os._exit(0)

    def beat(self) -> None:
        """Say that the node lives; sweep if nobody else does."""
        counted = self.roster.beat(self.node.id)
        if counted is None:
            self.roster.enter_again(self.node, os.getpid(), _agents(), sorted(runtime().known))
        if not counted:
            log_of("node").warning("was taken for dead and is back", node=self.node.name)
        since = self.roster.since_last_sweep()
        if since is None or since > self.patience:
            log_of("node").info("sweeps, since nobody else does", last=str(since))
            self.supervisor.sweep(go_on=False)  # It has to beat and to look at its children, too.
            self.roster.swept(self.node.id)


def _runs(pid: int) -> bool:
    """Tell whether a process runs; one that is dead but not yet reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@celeryd_after_setup.connect
def _join(sender: str, **_: Any) -> None:
    """Enter before the pool is forked, or end: whoever keeps the processes starts it again.

    Celery goes on when a signal's handler fails, and a worker without a node would take messages
    and could run none of them.
    """
    try:
        _enter(sender)
    except Exception as error:
        log_of("node").critical("cannot enter the roster, and ends", error=str(error))
        raise SystemExit(1) from error


def _agents() -> list[str]:
    """Return the agents whose queues this worker reads."""
    consumed = set(app.amqp.queues.consume_from)
    return [c.name for c in registry.contracts.values() if c.queue in consumed]


def _enter(sender: str) -> None:
    """Store the definitions, enter the roster, free what an earlier worker of that name held."""
    parts = runtime()
    definitions = parts.scheduler.register_definitions()
    name = parts.settings.node_name or sender
    agents = _agents()
    node, earlier = parts.roster.register(name, os.getpid(), agents, definitions)
    join_as(node)
    if agents:
        for queue in release_queues(release_of(agents, definitions)):
            named = queue_named(queue, app.conf.task_default_queue_type)
            app.amqp.queues.select_add(named)
            # Redis would remember each release's queues for ever if they were bound to an exchange.
            named.exchange = Exchange()
    for node_id in earlier:
        held = parts.roster.held_by(node_id)
        freed = parts.supervisor.release(held, "its worker was restarted")
        count(RESCUES, "restarted_workers", amount=freed)
    if earlier:
        parts.supervisor.ring_again()
    parts.store.engine.dispose()
    _share_memory()


def _share_memory() -> None:
    """Have the pool's processes share what is there by now: the collector writes into no page.

    It is not told to look for garbage first: loading leaves none, and looking takes as long as a
    fork.
    """
    gc.freeze()
    gc.enable()


@worker_ready.connect
def _keep(sender: Any, **_: Any) -> None:
    """After the pool is up: begin to watch it."""
    node = runtime().node
    if node is None:
        return
    children = _pool_children(sender.controller)
    keeper = sender.controller.keeper = Keeper(node, children, partial(hush, sender))
    os.register_at_fork(
        before=keeper.before_fork,
        after_in_parent=keeper.after_fork,
        after_in_child=keeper.after_fork,
    )
    keeper.start()
    if _agents():  # The supervisor's worker runs no code that could hang.
        sqlite = runtime().store.engine.dialect.name == "sqlite"
        for found in weaknesses(name_of(sender.controller.pool_cls), sqlite=sqlite):
            log_of("node").warning(found.text, why=found.why, remedy=found.remedy)


def _pool_children(worker: Any) -> Callable[[], set[int]]:
    """Return how to list the pool's processes; other pools than prefork have none."""

    def children() -> set[int]:
        pool = getattr(getattr(worker, "pool", None), "_pool", None)
        processes = getattr(pool, "_pool", None) or ()
        return {process.pid for process in processes if hasattr(process, "pid")}

    return children


@worker_shutting_down.connect
def _end_in_time(**_: Any) -> None:
    """Within the handler of the signal: begin nothing more, and end in time."""
    begin_to_end()
    for thread in threading.enumerate():
        if isinstance(thread, Keeper):
            thread.end_in_time()


@worker_shutdown.connect
def _leave(sender: Any, **_: Any) -> None:
    """Sign off; what is still held is taken back by the next sweep."""
    keeper: Keeper | None = getattr(sender, "keeper", None)
    if keeper is not None:
        keeper.ended.set()
        keeper.join(timeout=5)
        keeper.roster.end(keeper.node.id)


@task_unknown.connect
def _pass_on(message: Any, name: str, **_: Any) -> None:
    """Pass on what came for an agent that only other releases have; Celery has put it away."""
    node = runtime().node
    if node is None:
        return
    try:
        (saga_id, path, number), _kwargs, _embedded = message.payload
        runtime().leases.turn_away(UUID(saga_id), path, number, _operation(name), node)
    except (ValueError, TypeError, AttributeError, SQLAlchemyError, OSError) as error:
        log_of("node").warning("cannot pass it on", task=name, error=repr(error))


def _operation(task: str) -> Operation:
    """Return what is asked of an agent by a task of that name."""
    last = task.rpartition(".")[2]
    return Operation(last) if last in set(Operation) else Operation.ACTION


@task_failure.connect
def _count_crash(
    sender: Any = None, exception: BaseException | None = None, args: Any = (), **_: Any
) -> None:
    """Count a child that died with a message before it took the lease; questions take none."""
    operation = getattr(sender, "operation", None)
    if isinstance(exception, WorkerLostError) and operation in TAKE_A_LEASE:
        saga_id, path, number = args
        runtime().scheduler.crashed(UUID(saga_id), path, number)
