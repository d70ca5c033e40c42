"""A trial: a simulation of one given workflow, by whatever partner, with a witness at hand."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from models.states import SagaState
from orchestration.contract import AgentContract
from orchestration.definition import Definition, Workflow
from orchestration.errors import DefinitionError
from orchestration.registry import Registry
from orchestration.store import Store
from tasks.agent import Agent
from tasks.proof.dice import Dice
from tasks.proof.faults import Faults
from tasks.proof.invariants import Violation
from tasks.proof.operator import Operator
from tasks.proof.own import Own, OwnAgent, OwnBooks, OwnPartner, Said
from tasks.proof.partner import Partner
from tasks.proof.plans import Plan
from tasks.proof.record import Effect, Rows
from tasks.proof.simulate import Drama, Outcome, Simulation
from tasks.proof.world import World
from web.schema import SagaShown, saga_shown

ASKED, UNDONE_TWICE, UNDECLARED = "asked", "undone twice", "undeclared"
"""What is wrong in a trial and not in itself: beside the invariants."""

NOBODY_KNOWS = frozenset({"in_doubt", "key_expired"})
"""Kinds of incidents: the saga stops, since nothing that is declared could settle the doubt."""
STORM = tuple(f"s{number}" for number in range(8))
"""The keys of the sagas that are in a storm together."""
EVENTS, EVENTS_OF_A_STEP = 300, 50
"""How much may happen to one saga; one that is not over by then goes on for ever."""


@dataclass(frozen=True)
class Subject:
    """What is tried: a workflow and its contracts, and perhaps the user's own agents."""

    plan: Plan
    own: Own | None = None
    unsafe: tuple[tuple[str, str], ...] = ()
    """(step, why): what the safety rules refuse."""


@dataclass(frozen=True)
class Strike:
    """A fault that struck."""

    at: datetime
    saga: str
    step: str
    what: str


@dataclass
class Witness(Faults):
    """The faults of a run, with the time at which each struck."""

    world: World | None = None
    strikes: list[Strike] = field(default_factory=list)

    def hit(self, role: str, what: str) -> None:
        """Write down what strikes, and whom."""
        super().hit(role, what)
        if self.world is not None and self.world.here is not None:
            here = self.world.here
            saga = str(here.saga_id or "")
            self.strikes.append(Strike(self.world.now, saga, here.path, f"{role} {what}"))


class Permissive(Registry):
    """A registry that admits what is unsafe, to show what would come of it."""

    def bind(self, workflow: Workflow) -> Definition:
        """Return the workflow with its agents' contracts, whatever they say."""
        known = self._bound.get(id(workflow))
        if known is None:
            known = self._bound[id(workflow)] = Definition(workflow, self.contracts)
        return known


class Nobody(Operator):
    """No person is there: what waits for one waits."""

    def look(self, rows: Rows) -> int:
        """Resolve nothing."""
        del rows
        return 0


class TrialDrama(Drama):
    """One run of the subject."""

    def __init__(self, subject: Subject, *given: Any, tells: bool) -> None:
        self.subject = subject
        self.tells = tells
        self._books: list[OwnBooks] = []
        super().__init__(*given)
        steps = len(self.plan.workflow.by_name)
        self.world.most_events = (EVENTS + EVENTS_OF_A_STEP * steps) * len(self.sagas)
        if subject.own is not None:
            self.operator = Nobody(self.world, self.partners)
            self.always_returns = False

    @property
    def books(self) -> OwnBooks | None:
        """The books of the user's own partner."""
        return self._books[0] if self._books else None

    def registry(self) -> Registry:
        """Return a registry that admits the subject."""
        return Permissive() if self.subject.unsafe else Registry()

    def partner(self, contract: AgentContract) -> Partner:
        """Return the model's partner, or the user's own."""
        own = self.subject.own
        if own is None:
            return super().partner(contract)
        if not self._books:
            self._books.append(OwnBooks(own.fake, self.world, tells=self.tells))
        steps = self.plan.workflow.by_name.values()
        mine = frozenset(step.name for step in steps if step.agent == contract.name)
        return OwnPartner(contract, self._books[0], mine)

    def agent(self, partner: Partner) -> Agent:
        """Return the model's agent, or the user's own."""
        if self.subject.own is None or not isinstance(partner, OwnPartner):
            return super().agent(partner)
        return OwnAgent(self.subject.own.agents[partner.contract.name], partner)

    def input_of(self, name: str) -> Any:
        """Return the user's input, where his own agents read it."""
        return super().input_of(name) if self.subject.own is None else self.subject.own.given

    def _judge(self, *, settled: bool) -> Outcome:
        outcome = super()._judge(settled=settled)
        outcome.violations += self._asked(outcome.record.rows)
        if self.books is not None:
            outcome.violations += self._in_the_books(self.books)
        return outcome

    def _asked(self, rows: Rows) -> Iterator[Violation]:
        """Yield where a person was asked about a step that is unsafe."""
        unsafe = {step for step, _ in self.subject.unsafe}
        for row in rows.incidents:
            if row.path in unsafe and row.kind in NOBODY_KNOWS:
                yield Violation(ASKED, str(row.saga_id), row.path, row.message)

    def _in_the_books(self, books: OwnBooks) -> Iterator[Violation]:
        for effect, times in books.often_undone():
            text = f"an effect of step {effect.step!r} was undone {times} times"
            yield Violation(UNDONE_TWICE, effect.saga_id, effect.step, text)
        workflow = self.plan.workflow
        for effect in books.effects:
            step = workflow.by_name.get(effect.step)
            if step is None:
                raise DefinitionError(
                    f"--partner: effects() names step {effect.step!r}, which workflow "
                    f"{workflow.name!r} does not have; give the name that is in call.step"
                )
            if not self.plan.contracts[step.agent].effect:
                text = f"step {effect.step!r} is declared effect=False and has an effect"
                yield Violation(UNDECLARED, effect.saga_id, effect.step, text)


class Trial(Simulation):
    """Runs one subject again and again; ``last`` is the run that has just ended."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self.last: TrialDrama | None = None
        self.tells = False
        """Whether the user's partner says when a request comes in, so that it can be lost."""
        self.halted = 0
        """How many sagas were left waiting for a person."""
        self.wrong: list[Outcome] = []
        """The runs that showed a violation."""

    def run(
        self,
        seed: int,
        *,
        plan: Plan | None = None,
        faults: Faults | None = None,
        sagas: tuple[str, ...] = STORM,
        calm_at: timedelta | None = None,
    ) -> Outcome:
        """Run the subject once, in a storm or by a script."""
        if plan is not None and plan.workflow is not self.subject.plan.workflow:
            raise DefinitionError("another workflow than the one that is tried")
        dice = Dice(seed)
        faults = faults or Faults(dice)
        witness = Witness(faults.dice, script=faults.script)
        witness.asked, witness.struck = faults.asked, faults.struck
        calm_at = calm_at or dice.between("storm", timedelta(minutes=1), timedelta(days=1))
        drama = TrialDrama(
            self.subject, self.fresh(), self.subject.plan, witness, seed, sagas, tells=self.tells
        )  # fmt: skip
        self.last = drama
        witness.world = drama.world
        outcome = drama.play(calm_at)
        self.tells = drama.books is not None and drama.books.world.tells
        self.halted += halted(outcome)
        if outcome.violations:
            self.wrong.append(outcome)
        return outcome

    def take(self) -> list[Outcome]:
        """Return the runs that showed a violation since this was last asked."""
        wrong, self.wrong = self.wrong, []
        return wrong

    # --- what there is to tell of the last run ---------------------------------------------------

    def shown(self, saga_id: str) -> SagaShown:
        """Return one saga of the last run."""
        return saga_shown(Store(self.engine), UUID(saga_id))

    def strikes(self, saga_id: str) -> list[Strike]:
        """Return the faults that struck it."""
        assert self.last is not None
        assert isinstance(self.last.faults, Witness)
        return [strike for strike in self.last.faults.strikes if strike.saga in {saga_id, ""}]

    def effects(self, saga_id: str) -> list[Effect]:
        """Return what the partners did for it."""
        assert self.last is not None
        partners = self.last.partners.values()
        return [e for partner in partners for e in partner.effects if e.saga_id == saga_id]

    def said(self, saga_id: str) -> list[Said]:
        """Return what the user's own agents said in it."""
        books = self.last.books if self.last else None
        said = [said for said in books.said if said.saga_id == saga_id] if books else []
        return sorted(said, key=lambda one: one.at)


def unfinished(outcome: Outcome) -> list[Any]:
    """Return the sagas that are not completed."""
    return [row for row in outcome.record.rows.sagas if row.state != SagaState.COMPLETED]


def halted(outcome: Outcome) -> int:
    """Return how many sagas wait for a person."""
    return sum(row.state == SagaState.HALTED for row in outcome.record.rows.sagas)
