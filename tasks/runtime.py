"""What one process works with: its engine, its scheduler, its supervisor, its node.

Made on first use and once for each process, so that a forked pool child never touches a connection
of its parent. The node belongs to the worker as a whole and is inherited by its children.
"""

import os
from collections.abc import Callable
from functools import cached_property

from celery import Celery

from orchestration.database import open_engine
from orchestration.lease import Leases
from orchestration.registry import registry
from orchestration.roster import NodeIdentity, Roster
from orchestration.scheduler import Scheduler
from orchestration.settings import Settings
from orchestration.store import Store
from orchestration.supervisor import Supervisor
from tasks.dispatch import CeleryDispatcher
from tasks.envelope import Envelope


class Runtime:
    """The parts of one process, put together."""

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        node: NodeIdentity | None,
        is_ending: Callable[[], bool],
    ) -> None:
        self.app = app
        self.settings = settings
        self.node = node
        self.is_ending = is_ending
        self.pid = os.getpid()
        self.store = Store(open_engine(settings.database))
        self.dispatcher = CeleryDispatcher(app)
        self.scheduler = Scheduler(self.store, self.dispatcher, registry)
        self.leases = Leases(self.scheduler)
        self.roster = Roster(self.store)

    @cached_property
    def known(self) -> set[str]:
        """The ids of the definitions that this process's code knows."""
        return {definition.id for definition in registry.definitions()}

    @cached_property
    def supervisor(self) -> Supervisor:
        """The sweeps of this process; what they send stands behind fresh work."""
        dispatcher = CeleryDispatcher(self.app, behind=True)
        return Supervisor(
            Scheduler(self.store, dispatcher, registry),
            dispatcher,
            batch=self.settings.sweep_batch,
            node_timeout=self.settings.node_timeout,
            keep_ended=self.settings.retention,
            go_on_for=self.settings.sweep_interval,
        )

    @cached_property
    def envelope(self) -> Envelope:
        """What runs agents; only a worker has one."""
        if self.node is None:
            msg = "agents run in a worker: start one with `atalaia worker`"
            raise RuntimeError(msg)
        return Envelope(self.leases, self.node, self.known, is_ending=self.is_ending)
