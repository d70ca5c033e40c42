"""One run: some sagas of one workflow, a storm of faults, then calm, then the invariants."""

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Engine

from orchestration.contract import AgentContract
from orchestration.registry import Registry
from tasks.agent import Agent
from tasks.proof.database import SimulatedStore, open_memory
from tasks.proof.dice import Dice
from tasks.proof.faults import Faults
from tasks.proof.invariants import Violation, check
from tasks.proof.operator import Operator
from tasks.proof.partner import Partner, PartnerAgent
from tasks.proof.people import People
from tasks.proof.plans import Plan, Planner
from tasks.proof.record import Record, Rows, read_what_is_open
from tasks.proof.restore import Restore
from tasks.proof.world import EPOCH, Endless, World

SAGAS = tuple(f"s{number}" for number in range(12))
"""The keys under which the sagas of a run are started."""
RINGS = 4
"""A saga's partners ring for one of its steps less often than that."""
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
LONGEST_STORM = timedelta(hours=6)
PATIENCE = timedelta(days=6)
"""Within this after the storm every saga must have ended."""


@dataclass
class Outcome:
    """What became of a run."""

    seed: int
    plan: Plan
    sagas: tuple[str, ...]
    violations: list[Violation]
    faults: Faults
    record: Record
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """A hash of everything that was written."""
        told = hashlib.sha256()
        rows = self.record.rows
        for group in (rows.sagas, rows.steps, rows.attempts, rows.incidents, rows.journal):
            for row in group:
                fields = {k: v for k, v in row._asdict().items() if k != "pid"}
                told.update(repr(fields).encode())
        return told.hexdigest()


class Simulation:
    """Runs seeds on one engine, one after another."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or open_memory()
        self.store = SimulatedStore(self.engine)

    def run(
        self,
        seed: int,
        *,
        plan: Plan | None = None,
        faults: Faults | None = None,
        sagas: tuple[str, ...] = SAGAS,
        calm_at: timedelta | None = None,
    ) -> Outcome:
        """Run one seed; the same arguments give the same outcome."""
        dice = Dice(seed)
        faults = faults or Faults(dice)
        plan = plan or Planner(dice, favours=faults.weather.favourite[0]).plan()
        calm_at = calm_at or dice.between("storm", MINUTE, LONGEST_STORM)
        return Drama(self.fresh(), plan, faults, seed, sagas).play(calm_at)

    def fresh(self) -> SimulatedStore:
        """Return the database, without a row."""
        self.store.empty()
        return self.store


class Drama:
    """The acts of one run."""

    always_returns = True
    """Whether every action returns something."""

    def __init__(
        self, store: SimulatedStore, plan: Plan, faults: Faults, seed: int, sagas: tuple[str, ...]
    ) -> None:
        self.seed = seed
        self.plan = plan
        self.sagas = sagas
        self.faults = faults
        registry = self.registry()
        for contract in plan.contracts.values():
            registry.add_agent(contract)
        registry.add_workflow(plan.workflow)
        self.world = World(store, plan.workflow, registry, faults)
        self.partners = {name: self.partner(contract) for name, contract in plan.contracts.items()}
        self.world.agents |= {name: self.agent(p) for name, p in self.partners.items()}
        self.operator = Operator(self.world, self.partners)
        self.people = People(self.world)
        self.restore = Restore(self.world, len(sagas))
        self.definition = registry.bind(plan.workflow)

    def registry(self) -> Registry:
        """Return a registry that is still empty."""
        return Registry()

    def partner(self, contract: AgentContract) -> Partner:
        """Return what stands behind the agent of this contract."""
        return Partner(contract, self.world)

    def agent(self, partner: Partner) -> Agent:
        """Return the agent that calls ``partner``."""
        return PartnerAgent(partner)

    def input_of(self, name: str) -> Any:
        """Return what a saga is started with."""
        return {"name": name}

    def play(self, calm_at: timedelta) -> Outcome:
        """Storm, calm, judgement."""
        settled = True
        try:
            self._begin()
            self.world.go_on(EPOCH + calm_at)
            self._calm()
            settled = self._settle()
        except Endless:
            settled = False
        try:
            return self._judge(settled=settled)
        finally:
            self.world.finish()

    def _begin(self) -> None:
        dice, world = self.faults.dice, self.world
        for name in self.sagas:
            delay = dice.roll(f"start of {name}") * MINUTE
            world.later(delay, partial(self.people.start, name, self.input_of(name)))
            if self.faults.at("person", f"cancel {name}"):
                self.faults.hit("person", "cancel")
                after = dice.between(f"cancel of {name}", timedelta(milliseconds=5), MINUTE * 30)
                world.later(delay + after, partial(self.people.cancel, name))
            for ring in range(dice.below(f"rings of {name}", RINGS)):
                site = f"ring {ring} of {name}"
                step = dice.pick(f"step of {site}", list(self.plan.workflow.by_name))
                after = dice.between(site, timedelta(milliseconds=5), MINUTE * 30)
                world.later(delay + after, partial(self.people.ring, name, step))

        self.restore.plan()

    def _calm(self) -> None:
        """Let the faults stop; what is under way stays under way."""
        self.faults.over = True
        for partner in self.partners.values():
            partner.heal()

    def _settle(self) -> bool:
        """Let everything come to its end, with an operator at hand; tell whether it did."""
        self.world.go_on(max(self.world.away_until or self.world.now, self.world.now))
        end = self.world.now + PATIENCE
        look_after = 15 * MINUTE
        while self.world.now < end:
            self.world.go_on(self.world.now + look_after)
            look_after = min(2 * look_after, DAY / 2)
            if self.world.away():
                continue
            rows = self._open()
            if self.operator.look(rows):
                continue
            if self._all_over(rows):
                return True
            if not self.world.events and self.world.due_at is None:
                return True
        return True

    def _all_over(self, rows: Rows) -> bool:
        under_way = any(partner.on_the_way for partner in self.partners.values())
        return not (rows.sagas or rows.steps or under_way or self.world.events)

    def _open(self) -> Rows:
        with self.world.store.peek() as connection:
            return read_what_is_open(connection)

    def _judge(self, *, settled: bool) -> Outcome:
        rows = self.world.rows()
        record = Record(
            rows=rows,
            definitions={self.definition.id: self.definition},
            effects=[effect for partner in self.partners.values() for effect in partner.effects],
            requests=[r for partner in self.partners.values() for r in partner.requests],
            beats=self.world.beats,
            always_returns=self.always_returns,
            payments=[booking for partner in self.partners.values() for booking in partner.ledger],
        )
        violations = self.restore.judge(check(record))
        violations += [
            Violation("SWEEP", one.saga_id, one.step, one.text) for one in self.world.undecided
        ]
        if not settled:
            violations.append(Violation("INV-11", "", "", "the run goes on for ever"))
        if len(self.world.ids) != len(self.sagas) or len(rows.sagas) != len(self.sagas):
            text = f"{len(self.sagas)} sagas were asked for and {len(rows.sagas)} are there"
            violations.append(Violation("D-01", "", "", text))
        return Outcome(
            self.seed, self.plan, self.sagas, violations, self.faults, record,
            labels=self.world.labels,
        )  # fmt: skip
