"""The envelope around every agent call, in straight lines: take the lease, run, report, or drop.

Whatever the agent does, exactly one of three things follows: its outcome is reported, its attempt
was taken away in the meantime and it is silent, or the process dies and others notice.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import partial
from typing import Any
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy.exc import (
    DataError,
    InterfaceError,
    InternalError,
    OperationalError,
    SQLAlchemyError,
)

from models.states import Operation
from orchestration import tracing
from orchestration.definition import explain
from orchestration.errors import LeaseLostError
from orchestration.events import Done, Failed, FailureKind, Outcome
from orchestration.failpoint import reach
from orchestration.lease import Leases
from orchestration.metrics import ATTEMPTS, CALLS, QUESTIONS, count, measured
from orchestration.ports import Clock
from orchestration.roster import NodeIdentity
from orchestration.signals import (
    Absent,
    Answer,
    Applied,
    Closed,
    Conflict,
    OutcomeUnknown,
    Pending,
    PermanentFailure,
    Rejected,
    RetryLater,
    Unclear,
)
from orchestration.telemetry import Log, log_for
from orchestration.work import Work
from tasks.agent import AGENTS, Agent, Call

ANSWERS = (Applied, Absent, Pending, Rejected, Conflict, Unclear, Closed)
LONGEST_ERROR = 2000
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
GIVE_BACK_SECONDS = 30.0
"""For how long a database that is away is asked to take a lease back."""
UNREACHABLE = (OperationalError, InterfaceError, InternalError)
"""What says that a database is away, or takes no writes for now, as after a fail-over."""


Granted = tuple[Work, float]
"""What is to be done under a lease, and when it is over in monotonic seconds."""


class Envelope:
    """Runs agents for one node. ``agents`` are those that it may go on with, by their names.

    Once ``is_ending`` it goes on with nothing: what follows gets a message, as any step.
    """

    def __init__(
        self,
        leases: Leases,
        node: NodeIdentity,
        known: set[str],
        clock: Clock = time,
        agents: Mapping[str, Agent] = AGENTS,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self.is_ending = is_ending
        self.leases = leases
        self.agents = agents
        self.node = node
        self.known = known
        self.clock = clock

    def attempt(self, agent: Agent, operation: Operation, saga: str, path: str, number: int) -> str:
        """Run an action or a compensation under a lease; return a word for the worker's log.

        What is inline after it is run, too, each step under a lease of its own.
        """
        reach("p3")
        asked_at, paths, word = self.clock.monotonic(), {path}, "refused"
        try:
            work = self.leases.grant(UUID(saga), path, number, self.node, self.known)
            if work is None:
                log_for(saga, path, number).info(word, operation=str(operation))
                return word
            granted: Granted | None = work, _end(asked_at, work)
            while granted is not None:
                work, ends_at = granted
                paths = {work.path, *work.followers}
                if work.path != path:
                    agent = self.agents[work.contract.name]
                with _span(agent, operation, work) as note:
                    word, granted = self._run(agent, operation, work, ends_at)
                    note(outcome=word, failed=word.startswith("failed"))
                count(ATTEMPTS, agent.name, operation, word.removeprefix("failed: "))
        except Exception as error:
            self._give_back(UUID(saga), paths, f"{type(error).__name__}: {error}")
            raise
        reach("p9")
        return word

    def _run(
        self, agent: Agent, operation: Operation, work: Work, ends_at: float
    ) -> tuple[str, Granted | None]:
        """Run one attempt; return a word for the log, and what is to be gone on with."""
        log = log_for(str(work.saga_id), work.path, work.attempt)
        reach("p5")
        if self.clock.monotonic() >= ends_at:
            log.warning("dropped", reason="its time was over before anything was sent")
            return "dropped", None
        call = self._call(agent, work, work.key, ends_at, log)
        if isinstance(call, Failed):
            outcome: Outcome | None = call
        else:
            with measured(CALLS, agent.name, operation):
                outcome = _outcome(agent, operation, work, call)
        reach("p7")
        if outcome is None:
            log.warning("dropped", reason="the lease was taken away")
            return "dropped", None
        following = self._report(work, outcome, ends_at, log)
        reach("p8")
        word = "succeeded" if isinstance(outcome, Done) else f"failed: {outcome.kind}"
        log.info(word, operation=str(operation))
        return word, following

    def _give_back(self, saga_id: UUID, paths: set[str], why: str) -> None:
        """Give leases back after an error of our own; without it, they would only run out."""
        why = f"its envelope failed: {why}"[:LONGEST_ERROR]
        write = partial(self.leases.give_back, self.node, saga_id, paths, why)
        log = log_for(str(saga_id), " ".join(sorted(paths)), 0)
        try:
            persist(write, self.clock.monotonic() + GIVE_BACK_SECONDS, log, self.clock)
        except SQLAlchemyError as further:
            log.warning("the lease is left to run out", error=str(further))

    def inquire(self, agent: Agent, operation: Operation, saga: str, path: str, number: int) -> str:
        """Run a probe or a close and hand in the answer."""
        reach("p3")
        saga_id = UUID(saga)
        asked_at = self.clock.monotonic()
        work = self.leases.inquiry(saga_id, path, number, operation)
        if work is None:
            log_for(saga, path, 0).info("refused", operation=str(operation))
            return "refused"
        log = log_for(saga, path, work.attempt)
        ends_at = _end(asked_at, work)
        with _span(agent, operation, work) as note:
            answer = self._ask(agent, operation, work, ends_at, log)
            reach("p7")
            word = type(answer).__name__.lower()
            note(answer=word)
            persist(
                partial(self.leases.answer, saga_id, path, number, answer), ends_at, log, self.clock
            )
        count(QUESTIONS, agent.name, operation, word)
        log.info(word, operation=str(operation))
        reach("p9")
        return word

    def _ask(
        self, agent: Agent, operation: Operation, work: Work, ends_at: float, log: Log
    ) -> Answer:
        call = self._call(agent, work, work.action_key, ends_at, log)
        if isinstance(call, Failed):
            return Unclear(call.message)
        try:
            with measured(CALLS, agent.name, operation):
                answer = agent.invoke(operation, call)
            if isinstance(answer, Applied):
                return Applied(agent.result_to_json(answer.result))
        except ValidationError as error:
            return Unclear(f"applied, but its result does not fit: {explain(error)}")
        except Exception as error:  # noqa: BLE001 - an agent may raise anything, and says nothing then
            return Unclear(f"{type(error).__name__}: {error}"[:LONGEST_ERROR])
        if not isinstance(answer, ANSWERS):
            return Unclear(f"{operation} returned {type(answer).__name__}, which is not an answer")
        return answer

    def _call(
        self, agent: Agent, work: Work, key: str, ends_at: float, log: Log
    ) -> Call[Any] | Failed:
        given, results = work.input, work.results
        if work.followers:  # They are given the same, whatever this agent does with it.
            given, results = deepcopy(given), deepcopy(results)
        try:
            value = agent.input_type.validate_python(given)
        except ValidationError as error:
            message = f"the saga's input does not fit agent {agent.name!r}: {explain(error)}"
            return Failed(kind=FailureKind.PERMANENT, type="InputError", message=message)
        return Call(
            input=value,
            results=results,
            saga_id=str(work.saga_id),
            step=work.plan.name,
            attempt=work.attempt,
            key=key,
            action_key=work.action_key,
            log=log,
            ends_at=ends_at,
            renew=partial(self.leases.renew, work),
            clock=self.clock,
        )

    def _report(self, work: Work, outcome: Outcome, deadline: float, log: Log) -> Granted | None:
        """Report for as long as the lease may last; what is not written is found by a probe.

        Only what the database can never hold is another outcome.
        """
        try:
            return self._persist_report(work, outcome, deadline, log)
        except DataError as error:
            if isinstance(outcome, Failed):
                raise
            message = f"the database refuses the result: {error.orig}"[:LONGEST_ERROR]
            kind = FailureKind.INVALID_RESULT
            refused = Failed(kind=kind, type="InvalidResult", message=message)
            return self._persist_report(work, refused, deadline, log)

    def _persist_report(
        self, work: Work, outcome: Outcome, deadline: float, log: Log
    ) -> Granted | None:
        """Report, and return what was granted with it.

        A report whose commit was kept but not confirmed is refused when it is repeated. What was
        granted with it is then held by nobody who knows.
        """
        asked_at, tries = self.clock.monotonic(), 0
        following: Work | None = None

        def write() -> None:
            nonlocal following, tries
            tries += 1
            node = None if self.is_ending() else self.node
            following = self.leases.report(work, outcome, node)

        persist(write, deadline, log, self.clock)
        if following is not None:
            return following, _end(asked_at, following)
        if tries > 1 and work.followers:
            self._give_back(work.saga_id, set(work.followers), "a grant was never heard of")
        return None


def _span(agent: Agent, operation: Operation, work: Work) -> AbstractContextManager[tracing.Note]:
    """Record one call of an agent in the saga's trace."""
    return tracing.span(
        f"{operation} {agent.name}", work.saga_id, work.trace,
        step=work.path, attempt=work.attempt, direction=str(work.direction),
        operation=str(operation), agent=agent.name,
    )  # fmt: skip


def _end(asked_at: float, work: Work) -> float:
    """Return when a lease is over, on the clock by which it was asked for at ``asked_at``.

    Counted from before the grant, so that a process that was stopped at any time since cannot take
    itself for the holder of a lease that has run out.
    """
    return asked_at + work.time_left.total_seconds()


def persist(write: Callable[[], None], deadline: float, log: Log, clock: Clock = time) -> None:
    """Repeat a write while the database is out of reach, until ``deadline`` (monotonic seconds)."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            write()
        except UNREACHABLE as error:
            if clock.monotonic() + pause > deadline:
                raise
            log.warning("database out of reach", error=str(error.orig), again_in_seconds=pause)
            clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        else:
            return


def _outcome(agent: Agent, operation: Operation, work: Work, call: Call[Any]) -> Outcome | None:
    """Call the agent and return what it says, or ``None`` if it noticed that it must be silent."""
    backward = operation is Operation.COMPENSATION
    arguments = [_own_result(agent, work)] if backward else []
    try:
        result = agent.invoke(operation, call, *arguments)
    except LeaseLostError:
        return None
    except RetryLater as signal:
        return _failed(FailureKind.LATER, signal, delay=signal.delay)
    except PermanentFailure as signal:
        return _failed(FailureKind.PERMANENT, signal)
    except OutcomeUnknown as signal:
        return _failed(FailureKind.UNKNOWN, signal)
    except Exception as error:  # noqa: BLE001 - an agent may raise anything; the policy classifies it
        call.log.warning("agent raised", error=repr(error))
        return _failed(FailureKind.ERROR, error)
    if backward:
        return Done()
    try:
        return Done(result=agent.result_to_json(result))
    except ValidationError as error:
        return Failed(kind=FailureKind.INVALID_RESULT, type="InvalidResult", message=explain(error))


def _own_result(agent: Agent, work: Work) -> Any:
    """Return the action's result as its type, or ``None`` where it is not known or does not fit."""
    if work.own_result is None:
        return None
    try:
        return agent.result_type.validate_python(work.own_result)
    except ValidationError:
        return None


def _failed(kind: FailureKind, error: Exception, **more: Any) -> Failed:
    message = str(error)[:LONGEST_ERROR] or repr(error)[:LONGEST_ERROR]
    return Failed(kind=kind, type=type(error).__name__, message=message, **more)
