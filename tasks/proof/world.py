"""World: one database, one broker, some machines, their partners, and virtual time.

Everything that decides is the product's own: scheduler, leases, envelope, supervisor, roster and
store, on real SQL. What is simulated is only what surrounds them, and all of it happens in one
order, which the seed fixes: a heap of what is to happen next, and the sweeps in between.
"""

import heapq
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy.exc import OperationalError

from models.states import StepState
from orchestration import failpoint
from orchestration.definition import Workflow
from orchestration.errors import LeaseLostError
from orchestration.failpoint import FailpointError
from orchestration.lease import Leases
from orchestration.registry import Registry
from orchestration.roster import Roster
from orchestration.scheduler import Scheduler
from tasks.agent import Agent, Call
from tasks.proof.broker import Broker
from tasks.proof.database import SimulatedStore
from tasks.proof.faults import Faults
from tasks.proof.fleet import NODE_TIMEOUT, Fleet
from tasks.proof.node import Process
from tasks.proof.record import Beat, Rows, read_rows
from tasks.proof.strand import SimulatedCrash, Strand
from tasks.proof.watched import Undecided, WatchedSupervisor

EPOCH = datetime(2027, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
BEAT = timedelta(seconds=2)
"""How often beat rings for a sweep, as it does by default."""


class Endless(Exception):  # noqa: N818 - a finding, not an error
    """Something goes on for ever."""


class World:
    """One run. ``agents``, which every machine runs, are set by whoever makes the world."""

    def __init__(
        self,
        store: SimulatedStore,
        workflow: Workflow,
        registry: Registry,
        faults: Faults,
        *,
        machines: int = 2,
        most_events: int = 6_000,
    ) -> None:
        self.now = EPOCH
        self.faults = faults
        self.dice = faults.dice
        self.agents: dict[str, Agent] = {}
        self.pids = 0
        self.workflow = workflow
        self.events: list[tuple[datetime, int, Callable[[], Any]]] = []
        self.count = 0
        self.most_events = most_events
        self.here: Process | None = None
        self.away_until: datetime | None = None
        self.labels: dict[str, str] = {}
        self.ids: dict[str, UUID] = {}
        self.sites: dict[str, int] = {}
        self.held: list[Strand] = []
        self.no_beat_until: datetime = EPOCH
        self.due_at: datetime | None = None
        self.wanted_at: datetime | None = None
        self.store = store
        store.serve(self)
        self.broker = Broker(self)
        self.scheduler = Scheduler(self.store, self.broker, registry, new_id=self._new_id)
        self.undecided: list[Undecided] = []
        self.beats: list[Beat] = []
        self.supervisors = [
            WatchedSupervisor(
                self.scheduler, self.broker, node_timeout=NODE_TIMEOUT, undecided=self.undecided
            )
            for _ in range(2)
        ]
        self.leases = Leases(
            self.scheduler, pid=lambda: self.here.pid if self.here else 0, clock=self
        )
        self.roster = Roster(self.store, new_id=self._new_node)
        self.known = set(self.scheduler.register_definitions())
        self.fleet = Fleet(self, sorted(registry.contracts), machines)

    # --- what the store, the partners and the envelope ask ---------------------------------------

    def tick(self) -> datetime:
        """Return the present, which is later each time."""
        self.now += TICK
        return self.now

    def away(self) -> bool:
        """Tell whether the database cannot be reached."""
        if self.away_until is not None and self.now >= self.away_until:
            self.away_until = None
        return self.away_until is not None

    def until_back(self) -> timedelta:
        """Return how long to wait before the database is asked again; a second at least."""
        return max(self.away_until - self.now, SECOND) if self.away_until else SECOND

    def before_transaction(self) -> None:
        """Let a process stop just before it begins a transaction."""
        self.reach("between")

    def commit_fault(self) -> str:
        """Return what befalls the commit of the transaction that is ending."""
        process = self.here
        if process is None or not process.kind.startswith("commit"):
            return ""
        if process.point != "p0" and process.point not in process.reached[-1:]:
            return ""
        kind, point = process.kind, process.point
        self._strike(process, kind, point)
        return kind

    def monotonic(self) -> float:
        """Return the clock of the machine on which the present process runs, in seconds."""
        machine = self.here.machine if self.here else None
        return (self.now - EPOCH).total_seconds() + (machine.clock_shift if machine else 0.0)

    def sleep(self, seconds: float) -> None:
        """Let a process wait: in a strand until then, otherwise the others are late."""
        pause = timedelta(seconds=seconds)
        if self.here is not None and self.can_wait():
            self._hold(self.here, pause)
        else:
            self.now += pause

    def can_wait(self) -> bool:
        """Tell whether the present process can be held."""
        return self.here is not None and self.here.strand is not None

    def beat(self, call: Call[Any]) -> None:
        """Send a heartbeat where the step has a time-out for them; keep what came of it."""
        if self.workflow.by_name[call.step].heartbeat_timeout is None:
            return
        try:
            call.heartbeat()
        except (LeaseLostError, OperationalError, FailpointError):
            raise
        except Exception as error:
            text = f"a heartbeat failed: {type(error).__name__}: {error}"
            self.undecided.append(Undecided(call.saga_id, call.step, text))
            raise
        row = self.store.step(call.saga_id, call.step)
        self.beats.append(
            Beat(
                saga_id=call.saga_id, step=call.step, attempt=call.attempt, at=self.now,
                wake_at=row.wake_at, deadline_at=row.deadline_at,
            )
        )  # fmt: skip

    def given_up(self, saga_id: str, step: str) -> bool:
        """Tell whether a step was ended as without effect."""
        return self.store.step(saga_id, step).state in {StepState.FAILED, StepState.SKIPPED}

    def rows(self) -> Rows:
        """Return all rows; asked by nobody in the world."""
        with self.store.peek() as connection:
            return read_rows(connection)

    def later(self, delay: timedelta, act: Callable[[], Any]) -> None:
        """Do something after ``delay``."""
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, act))

    def caller(self) -> str:
        """Return the role of the process that acts."""
        return self.here.role if self.here else "nobody"

    def label(self, saga_id: str) -> str:
        """Return the short name of a saga."""
        return self.labels.get(saga_id, saga_id)

    def _new_id(self) -> UUID:
        name = self.here.path if self.here else "saga"
        saga_id = self.dice.identity(self.unique(f"saga {name}"))
        self.labels[str(saga_id)] = name
        return saga_id

    def _new_node(self) -> UUID:
        return self.dice.identity(self.unique("node"))

    def unique(self, site: str) -> str:
        """Return ``site``, with a number if it is not the first of its name."""
        self.sites[site] = self.sites.get(site, 0) + 1
        return site if self.sites[site] == 1 else f"{site} #{self.sites[site]}"

    # --- processes -------------------------------------------------------------------------------

    def process(self, role: str, site: str, **more: Any) -> Process:
        """Return a process, with the fault that is to befall it."""
        site = self.unique(site)
        fault = self.faults.at(role, site)
        self.pids += 1
        return Process(role, site, fault, pid=self.pids, **more)

    def carry_out(self, process: Process, call: Callable[[], Any]) -> None:
        """Let a process do something, to its end or to where it is stopped."""
        if process.can_be_held:
            process.strand = Strand(partial(self._do, process, call))
            self.held = [strand for strand in self.held if not strand.ended] + [process.strand]
            if process.machine is not None:
                process.machine.strands[process.site] = process.strand
            self._resume(process)
        else:
            self._do(process, call)

    def _resume(self, process: Process) -> None:
        strand = process.strand
        if strand is None or strand.ended:
            return
        before, self.here = self.here, process
        try:
            ended = strand.resume()
        finally:
            self.here = before
        if ended and process.machine is not None:
            process.machine.strands.pop(process.site, None)

    def _do(self, process: Process, call: Callable[[], Any]) -> None:
        before, self.here = self.here, process
        try:
            call()
        except SimulatedCrash:
            self.fleet.after_crash(process)
            if process.strand is not None:
                raise
        except (OperationalError, FailpointError):
            pass  # Celery writes it to its log and acknowledges the message.
        finally:
            self.here = before

    def _hold(self, process: Process, duration: timedelta) -> None:
        """Stop the present process in its middle, for a while."""
        assert process.strand is not None
        self.later(duration, partial(self._resume, process))
        process.strand.hold()

    def reach(self, point: str) -> None:
        """Come to a boundary; the present process may stop there."""
        process = self.here
        if process is None:
            return
        if point == "p5" and "p8" in process.reached:
            self._go_on_inline(process)
        process.reached.append(point)
        if process.point == point:
            self._befall(process, process.kind, point)

    def _go_on_inline(self, process: Process) -> None:
        """Let another fault befall a process that goes on with a further step."""
        site = self.unique(f"{process.site} inline")
        fault = self.faults.at(process.role, site)
        further = replace(process, fault=fault)
        process.fault = fault if process.strand or not further.can_be_held else ""

    def _befall(self, process: Process, kind: str, point: str) -> None:
        match kind:
            case "crash" | "die":
                self._strike(process, kind, point)
                process.struck_by = kind
                raise SimulatedCrash
            case "error":
                self._strike(process, kind, point)
                raise FailpointError(point)
            case "pause":
                self._strike(process, kind, point)
                longest = 40 * SECOND if point == "send" else 2 * DAY
                self._hold(process, self.how_long(process, 0.2 * SECOND, longest))
            case "freeze":
                self._strike(process, kind, point)
                assert process.machine is not None
                duration = self.how_long(process, SECOND, DAY / 6)
                self.fleet.silence(process.machine, duration, self.fleet.thaw)
                self._hold(process, duration)
            case "outage":
                self._strike(process, kind, point)
                self.away_until = self.now + self.how_long(process, SECOND, DAY / 24)
            case "clock":
                self._strike(process, kind, point)
                assert process.machine is not None
                hour = 3600.0
                process.machine.clock_shift += self.dice.pick(process.site, (hour, -hour))

    def how_long(self, process: Process, low: timedelta, high: timedelta) -> timedelta:
        """Return how long something lasts that befalls a process."""
        return self.dice.between(f"{process.site} how long", low, high)

    def _strike(self, process: Process, kind: str, point: str) -> None:
        process.fault = ""
        self.faults.hit(process.role, f"{kind}@{point}")

    # --- time ------------------------------------------------------------------------------------

    def go_on(self, until: datetime) -> None:
        """Let everything happen that happens before ``until``."""
        failpoint.install(self.reach)
        try:
            while self._next(until):
                pass
        finally:
            failpoint.install(None)
        self.now = max(self.now, until)

    def _next(self, until: datetime) -> bool:
        """Do the next thing; tell whether there was one."""
        event_at = self.events[0][0] if self.events else None
        no_sweep = event_at is not None and event_at <= self._beat_after(self.now)
        sweep_at = None if no_sweep else self._sweep_at()
        if sweep_at is not None and (event_at is None or sweep_at < event_at):
            if sweep_at > until:
                return False
            self.now = max(self.now, sweep_at)
            self._count_event()
            self._sweep()
            return True
        if event_at is None or event_at > until:
            return False
        at, _, act = heapq.heappop(self.events)
        self.now = max(self.now, at)
        self._count_event()
        act()
        return True

    def _count_event(self) -> None:
        self.most_events -= 1
        if self.most_events < 0:
            raise Endless

    def _sweep_at(self) -> datetime | None:
        """Return the next beat at which there is something to find; the others find nothing."""
        if self.store.changed:
            self.store.changed = False
            self.due_at = self.store.next_due()
        due = [at for at in (self.due_at, self.wanted_at) if at is not None]
        if not due:
            return None
        return self._beat_after(max(min(due), self.now))

    def _beat_after(self, at: datetime) -> datetime:
        """Return when beat rings for the first time after an instant."""
        at = max(at, self.no_beat_until, self.away_until or EPOCH)
        return EPOCH + ((at - EPOCH) // BEAT + 1) * BEAT

    def _sweep(self) -> None:
        """Let one supervisor sweep, by turns, since a beat rings."""
        if self.wanted_at is not None and self.wanted_at <= self.now:
            self.wanted_at = None
        process = self.process("sweep", f"sweep {(self.now - EPOCH) // SECOND}")
        turn = (self.now - EPOCH) // BEAT % len(self.supervisors)
        match process.fault:
            case "none@beat":
                self._strike(process, "none", "beat")
                self.no_beat_until = self.now + self.how_long(process, 2 * SECOND, DAY / 24)
                return
            case "twice@beat":
                self._strike(process, "twice", "beat")
                self.carry_out(process, partial(self._supervise, 1 - turn))
        self.carry_out(process, partial(self._supervise, turn))

    def _supervise(self, turn: int) -> None:
        for machine in self.fleet.machines:
            silent = machine.beaten_at is None or self.now - machine.beaten_at > NODE_TIMEOUT / 2
            if machine.up and silent:
                self.roster.beat(machine.identity.id)
                machine.beaten_at = self.now
        self.supervisors[turn].sweep()

    def want_sweep(self, at: datetime) -> None:
        """See to it that somebody sweeps at ``at``, whatever the rows say."""
        self.wanted_at = min(self.wanted_at or at, at)

    def finish(self) -> None:
        """End whatever is held."""
        for strand in self.held:
            strand.kill()
        self.here = None  # Each left behind who acted when it was first run.
