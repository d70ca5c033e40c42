"""The recovery table: what is done about a step whose attempt has ended without its result.

Pure. One ``Case`` goes in, one ``Verdict`` comes out, and the verdict names the row that gave it.
The rows are tried from the top and the first that matches decides. What makes them safe:

* No doubt means that nothing was sent: the lease grant is the send marker (rows 1, 2, 25).
* An effect that is known is recorded, and undone where the saga has turned back (3, 4, 5).
* An answer of "absent" alone never permits a second send of what is not idempotent, and never
  permits giving up: a request may still be on its way (12 to 21). Only the same key, a closed key,
  an undo that closes the key, or a horizon that the remote enforces settles the matter.
* After the pivot nothing is undone (22). A compensation is never given up (23).
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from models.states import Operation
from orchestration.contract import AgentContract
from orchestration.safety import Position
from orchestration.signals import (
    Absent,
    Answer,
    Applied,
    Closed,
    Conflict,
    Pending,
    Rejected,
    Unclear,
)

UNCLEAR_LIMIT = 5
"""After so many questions without a clear answer, the answer is taken to be out of reach."""
CRASH_LIMIT = 3
"""A message that took so many worker processes down before its lease is poison."""


class Action(StrEnum):
    """What is to be done."""

    RETRY = "retry"
    SUCCEED = "succeed"
    GIVE_UP = "give_up"
    """It certainly has no effect and is not to be tried again."""
    ASK = "ask"
    UNDO = "undo"
    PARK = "park"
    ABANDON = "abandon"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Everything that the table looks at."""

    contract: AgentContract
    position: Position
    answer: Answer | None = None
    doubt: bool = True
    """Whether something may have been sent under the present key."""
    spent: bool = False
    """No attempts are left."""
    late: bool = False
    """The step's or the saga's time is over."""
    aborting: bool = False
    age: timedelta = timedelta(0)
    """Since the first send under the present key."""
    lasting: timedelta = timedelta(0)
    """How long an attempt may go on sending it."""
    to_horizon: timedelta | None = None
    """Until every request is dead and visible; at most zero: it is; ``None``: never certain."""
    asked: int = 0
    crashes: int = 0

    @property
    def giving_up(self) -> bool:
        """Whether a step that is not past the pivot is to be ended, not tried again."""
        return self.spent or self.late or self.aborting

    @property
    def forward_only(self) -> bool:
        """Whether the saga is past the point of no return.

        After lost commits a saga may turn back although steps behind its pivot are in doubt.
        """
        return self.position is Position.AFTER and not self.aborting

    @property
    def stranded(self) -> bool:
        """Whether the saga turns back and could never undo it, since it stands after the pivot."""
        return self.position is Position.AFTER and self.aborting and not self.contract.compensation

    @property
    def out_of_reach(self) -> bool:
        """Whether it has been asked too often for a clear answer to be expected soon."""
        return self.asked >= UNCLEAR_LIMIT

    @property
    def may_resend(self) -> bool:
        """Whether the same request under the same key cannot make a second effect."""
        return self.contract.idempotent and self.contract.key_alive(self.age, self.lasting)

    @property
    def barrier(self) -> bool:
        """Whether the step can be undone without knowing whether it happened."""
        contract = self.contract
        return (
            not (self.position is Position.PIVOT or self.forward_only)
            and contract.compensation
            and contract.compensation_closes_key
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to do, by which row, and why in words for the timeline."""

    row: str
    action: Action
    why: str
    operation: Operation = Operation.PROBE
    wait: timedelta | None = None
    """For ``ASK``: how long to wait first; ``None``: the usual spacing."""
    at_once: bool = False
    slow: bool = False
    new_key: bool = False
    watch: bool = False
    """Keep looking out for a late effect."""
    alert: str | None = None
    """The kind of the incident to open."""


def resolve(case: Case) -> Verdict:
    """Return the verdict on one step of the forward direction."""
    if not case.doubt:
        return _never_sent(case)
    match case.answer:
        case Applied():
            return _applied(case)
        case Rejected(reason):
            return _rejected(case, reason)
        case Conflict(reason):
            why = f"the key belongs to another request ({reason}); nothing automatic is safe"
            return Verdict(row="7", action=Action.PARK, why=why, alert="conflict")
        case Pending():
            return _pending(case)
        case Closed():
            return _closed(case)
        case Unclear(reason):
            return _unclear(case, reason)
        case _:
            return _absent_or_unasked(case)


def resolve_undo(*, failures: int, limit: int) -> Verdict:
    """Return the verdict on a compensation that did not succeed: it is repeated without end."""
    stuck = failures >= limit
    return Verdict(
        row="23",
        action=Action.RETRY,
        why="a compensation is repeated until it succeeds",
        slow=stuck,
        alert="compensation_stuck" if stuck else None,
    )


def resolve_late(answer: Answer | None) -> Verdict:
    """Return the verdict on a step that was settled as without effect and is still watched."""
    if isinstance(answer, Applied):
        why = "the effect appeared after the saga had given it up: undone, not revived"
        return Verdict(row="24", action=Action.UNDO, why=why, alert="late_effect")
    return Verdict(row="17", action=Action.ASK, why="keeps looking out for a late effect")


def _never_sent(case: Case) -> Verdict:
    if case.crashes >= CRASH_LIMIT:
        why = f"{case.crashes} worker processes died with it before any lease was taken"
        return Verdict(row="25", action=Action.PARK, why=why, alert="poison")
    if case.forward_only and case.giving_up:
        why = "nothing was sent; after the pivot it is tried until it succeeds"
        return Verdict(row="22", action=Action.RETRY, why=why, slow=True, alert="stuck")
    if case.giving_up:
        return Verdict(row="2", action=Action.GIVE_UP, why="certainly nothing was sent")
    return Verdict(row="1", action=Action.RETRY, why="certainly nothing was sent", at_once=True)


def _applied(case: Case) -> Verdict:
    if case.position is Position.PIVOT or case.forward_only:
        why = "the effect exists; past the point of no return only forward is consistent"
        alert = "overdue" if case.late else None
        return Verdict(row="5", action=Action.SUCCEED, why=why, alert=alert)
    if case.aborting or case.late:
        why = "the effect exists and the saga turns back: recorded, then compensated"
        return Verdict(row="4", action=Action.SUCCEED, why=why)
    return Verdict(row="3", action=Action.SUCCEED, why="the effect exists under this key")


def _rejected(case: Case, reason: str) -> Verdict:
    why = f"the remote says that nothing happened or ever will: {reason}"
    if case.forward_only:
        return Verdict(
            row="6", action=Action.PARK, why=why, new_key=True, alert="rejected_after_pivot"
        )
    return Verdict(row="6", action=Action.GIVE_UP, why=why)


def _pending(case: Case) -> Verdict:
    if not (case.late or case.aborting):
        return Verdict(row="8", action=Action.ASK, why="the remote accepted it and works on it")
    if case.contract.close and not (case.forward_only or case.contract.manual):
        why = "still pending and the time is over: the remote settles the race by closing the key"
        return Verdict(row="9", action=Action.ASK, operation=Operation.CLOSE, why=why)
    if case.age < case.contract.pending_limit:
        why = "still pending; abandoning accepted work would leave an orphan"
        return Verdict(row="10", action=Action.ASK, why=why)
    why = f"pending for longer than the remote's own limit of {case.contract.pending_limit}"
    return Verdict(row="10", action=Action.PARK, why=why, alert="pending_too_long")


def _closed(case: Case) -> Verdict:
    if case.forward_only:
        why = "the old key is closed: tried again under a new one"
        return _repeated(case, why, row="22", new_key=True)
    if case.giving_up:
        why = "the key is closed: it has no effect and never will"
        return Verdict(row="14", action=Action.GIVE_UP, why=why)
    why = "the key is closed and can never fire: tried again under a new one"
    return Verdict(row="18", action=Action.RETRY, why=why, new_key=True)


def _unclear(case: Case, reason: str) -> Verdict:
    contract = case.contract
    settles_now = case.giving_up and not (case.forward_only or contract.manual)
    if settles_now and (contract.close or case.barrier):
        return _exit(case)
    if not case.out_of_reach:
        why = f"no clear answer ({reason}): without evidence no decision"
        return Verdict(row="11", action=Action.ASK, why=why)
    if contract.manual:
        return _park(case, "the agent is declared manual")
    if settles_now:
        return _exit(case)
    if case.may_resend:
        why = f"no clear answer ({reason}); the same key cannot make a second effect"
        return _repeated(case, why, row="22" if case.giving_up else "11")
    return _close_first(case) if contract.close else _unresolved(case)


def _absent_or_unasked(case: Case) -> Verdict:
    closes_at_once = (
        case.giving_up and case.contract.close and not (case.forward_only or case.contract.manual)
    )
    if case.answer is None and case.contract.probe and not closes_at_once:
        why = "asks the remote before anything else"
        return Verdict(row="0", action=Action.ASK, why=why, wait=timedelta(0))
    if case.contract.manual:
        return _park(case, "the agent is declared manual")
    unknowable = isinstance(case.answer, Absent) and not case.contract.key_alive(case.age)
    if unknowable or (case.contract.idempotent and not case.may_resend):
        return _key_dead(case)
    if case.contract.idempotent and not case.giving_up:
        why = f"{_seen(case)}; a late original and the repetition collapse on the key"
        return Verdict(row="12", action=Action.RETRY, why=why)
    if case.forward_only:
        return _forward_only(case)
    if case.giving_up:
        return _exit(case)
    return _not_idempotent(case)


def _key_dead(case: Case) -> Verdict:
    """Row 13: the remote may have forgotten the key, so it is never sent again.

    Nor does it prove anything any more that the remote does not know the key.
    """
    if case.contract.close:
        return _close(case, "the key may be forgotten: never sent again, but closed", row="13")
    provable = case.contract.key_alive(case.age) and case.to_horizon is not None
    if case.forward_only or not (case.barrier or provable):
        return _park(case, "the remote may have forgotten the key", row="13")
    return _exit(case)


def _forward_only(case: Case) -> Verdict:
    """Row 22, and what row 18 and 19 become after the pivot."""
    if case.may_resend:
        why = "after the pivot it is tried until it succeeds, slowly"
        return _repeated(case, why, row="22")
    return _not_idempotent(case)


def _not_idempotent(case: Case) -> Verdict:
    """Rows 18 and 19: attempts are left, but a second send could make a second effect."""
    if case.contract.close:
        return _close_first(case)
    if case.contract.probe and case.to_horizon is not None:
        if case.to_horizon > timedelta(0):
            why = "absent so far; not sent again before every request is certainly dead"
            return Verdict(row="18", action=Action.ASK, why=why, wait=case.to_horizon)
        return _repeated(case, "absent after every request is certainly dead", row="19")
    return _exit(case)


def _close_first(case: Case) -> Verdict:
    why = f"{_seen(case)}; the key is closed first, so that it cannot fire later"
    return _close(case, why, row="18")


def _close(case: Case, why: str, row: str) -> Verdict:
    alert = "unresolved" if case.out_of_reach else None
    return Verdict(row=row, action=Action.ASK, operation=Operation.CLOSE, why=why, alert=alert)


def _repeated(case: Case, why: str, *, row: str, new_key: bool = False) -> Verdict:
    """Try again; slowly, and with an incident, once that has failed too often or for too long."""
    slow = case.giving_up
    alert = "stuck" if slow else None
    return Verdict(row=row, action=Action.RETRY, why=why, new_key=new_key, slow=slow, alert=alert)


def _exit(case: Case) -> Verdict:
    """Rows 12b, 14 to 17, 20 and 21: the step is to be ended, and a doubt stands."""
    contract = case.contract
    if contract.close and not case.forward_only:
        why = f"{_seen(case)} and it is to end: the key is closed, whatever happened"
        return _close(case, why, row="14")
    if case.barrier:
        why = (
            f"{_seen(case)}; the undo removes the effect if there is one and closes the key if not"
        )
        return Verdict(row="15", action=Action.UNDO, why=why)
    if contract.probe and case.to_horizon is not None and not case.forward_only:
        if isinstance(case.answer, Unclear):
            return _unresolved(case)
        if case.to_horizon > timedelta(0):
            row = "21" if contract.compensation else "16"
            why = "absent so far proves nothing: a request may still be on its way"
            return Verdict(row=row, action=Action.ASK, why=why, wait=case.to_horizon)
        why = "absent after every request is certainly dead"
        return Verdict(row="17", action=Action.GIVE_UP, why=why, watch=True)
    if case.may_resend and not case.stranded:
        why = "the repetition under the same key is itself the probe"
        return _repeated(case, why, row="12b")
    if isinstance(case.answer, Unclear):
        return _unresolved(case)
    return _park(case, "it cannot be asked, closed, undone or repeated safely")


def _unresolved(case: Case) -> Verdict:
    why = "no clear answer, and no way to end it without one"
    if case.contract.at_most_once:
        return _park(case, why)
    return Verdict(row="11", action=Action.ASK, why=why, alert="unresolved")


def _park(case: Case, why: str, row: str = "20") -> Verdict:
    if case.contract.at_most_once:
        why += "; declared at-most-once, so the saga goes on without knowing"
        return Verdict(row=row, action=Action.ABANDON, why=why)
    return Verdict(row=row, action=Action.PARK, why=why, alert="in_doubt")


def _seen(case: Case) -> str:
    if isinstance(case.answer, Absent):
        return "the remote does not know the key"
    return "no answer is to be had" if case.answer is None else "no clear answer"
