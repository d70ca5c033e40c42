"""A partner that keeps its contract to the letter and does everything else that one ever did.

It remembers keys for as long as it says and no longer, closes them, lags in what it shows, takes
requests hours after they were sent, loses replies, throttles, sells out, repeats its own errors.
What it really did is in its books, which nothing but the invariants ever reads.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from pydantic import BaseModel, TypeAdapter

from models.states import Operation
from orchestration.contract import MARGIN, AgentContract
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
from tasks.agent import Agent, Call
from tasks.proof.faults import Faults
from tasks.proof.record import Booking, Effect, Request, price_of, transfer

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


class Made(BaseModel):
    """What an action returns."""

    made: str


class Place(Protocol):
    """What a partner needs of the world around it."""

    now: datetime
    faults: Faults

    def later(self, delay: timedelta, act: Callable[[], None]) -> None:
        """Do something after ``delay``."""

    def reach(self, point: str) -> None:
        """Come to a boundary, where the calling process may stop."""

    def label(self, saga_id: str) -> str:
        """Return the short name of a saga."""

    def caller(self) -> str:
        """Return the role of the process that is calling."""


class DeclinedError(Exception):
    """What a partner's client raises where nothing was done, and nothing ever will be."""


@dataclass
class Entry:
    """What the partner has under one key of an action."""

    key: str
    saga_id: str
    step: str
    effects: list[Effect] = field(default_factory=list)
    first_at: datetime | None = None
    closed: bool = False
    answer: Answer | None = None
    """What it says of this key from now on, whoever asks."""
    pending_until: datetime | None = None
    failing: bool = False
    """It answers this key with the error that it once gave."""
    made: str = ""

    @property
    def standing(self) -> list[Effect]:
        """The effects that are not undone."""
        return [effect for effect in self.effects if effect.undone_at is None]


class Partner:
    """The service behind one agent."""

    def __init__(self, contract: AgentContract, place: Place) -> None:
        self.contract = contract
        self.place = place
        self.entries: dict[str, Entry] = {}
        self.requests: list[Request] = []
        self.received: Counter[tuple[str, str, str]] = Counter()
        self.ledger: list[Booking] = []
        self.on_the_way = 0
        """Requests that were sent and have not arrived."""

    # --- what the agents call --------------------------------------------------------------------

    def act(self, call: Call[Any]) -> Any:
        """Do the action under the call's key."""
        fault = self._fault(call, Operation.ACTION)
        if call.time_left <= timedelta(0):
            raise RetryLater("no time is left to call", delay=SECOND)
        expires_at = self._expiry(call)
        self.place.reach("send")
        self._note(call, Operation.ACTION)
        if not self.contract.effect:
            return self._query(fault)
        entry = self._entry(call.key, call)
        self._before(fault, entry, call, expires_at)
        refusal = self._arrive(entry, expires_at)
        if refusal:
            raise PermanentFailure(refusal)
        entry.failing = entry.failing or fault == "error-after"
        try:
            return self._reply(fault, entry)
        finally:  # Whoever is stopped here has his answer already.
            self.place.reach("p6")

    def _before(
        self, fault: str, entry: Entry, call: Call[Any], expires_at: datetime | None
    ) -> None:
        """Raise where the request does not get through, or is not acted on."""
        match fault:
            case "busy":
                raise RetryLater("429", delay=self._delay(call, SECOND, 60 * SECOND))
            case "lost":
                raise OutcomeUnknown("timed out")
            case "late":
                self._send_late(call, lambda: self._arrive(entry, expires_at))
                raise OutcomeUnknown("timed out")
            case "refused" if self._is_new(entry):
                raise PermanentFailure("sold out")
            case "declined" if self._is_new(entry):
                raise DeclinedError("declined")
            case "error-before" if self._is_new(entry):
                entry.failing = self.contract.idempotent
                raise ConnectionError("500")
            case "pending" if self._is_new(entry):
                self._accept(entry, self._delay(call, SECOND, DAY / 2))
                raise OutcomeUnknown("accepted, not done yet")

    def _reply(self, fault: str, entry: Entry) -> Any:
        if entry.failing:
            raise ConnectionError("500")
        if fault == "reply-lost":
            raise OutcomeUnknown("the reply was lost")
        if entry.pending_until is not None:
            self.place.faults.hit("partner action", "in-flight")
            raise OutcomeUnknown("409: still in progress")
        return {"made": 0} if fault == "invalid" else Made(made=entry.made)

    def find(self, call: Call[Any]) -> Answer:
        """Tell what became of an action."""
        fault = self._fault(call, Operation.PROBE)
        self.place.reach("send")
        self._note(call, Operation.PROBE)
        if fault == "lost":
            raise OutcomeUnknown("timed out")
        if fault == "unclear":
            return Unclear("503")
        entry = self._entry(call.action_key, call)
        at = self.place.now - (self.contract.probe_staleness if fault == "lagging" else 0 * SECOND)
        answer = self._seen(entry, at, fault)
        self.place.reach("p6")
        return answer

    def close(self, call: Call[Any]) -> Answer:
        """Close a key, unless its effect is there."""
        fault = self._fault(call, Operation.CLOSE)
        self.place.reach("send")
        self._note(call, Operation.CLOSE)
        entry = self._entry(call.action_key, call)
        if fault == "lost":
            raise OutcomeUnknown("timed out")
        if fault == "late":
            self._send_late(call, lambda: self._shut(entry))
            raise OutcomeUnknown("timed out")
        if fault == "unclear":
            return Unclear("503")
        self._shut(entry)
        answer = Applied(Made(made=entry.made)) if entry.effects else Closed()
        self.place.reach("p6")
        if fault == "reply-lost":
            raise OutcomeUnknown("the reply was lost")
        return answer

    def undo(self, call: Call[Any], made: Made | None) -> None:
        """Undo an action, found by its key."""
        del made
        fault = self._fault(call, Operation.COMPENSATION)
        self.place.reach("send")
        self._note(call, Operation.COMPENSATION)
        entry = self._entry(call.action_key, call)
        match fault:
            case "busy":
                raise RetryLater("429", delay=self._delay(call, SECOND, 60 * SECOND))
            case "lost":
                raise OutcomeUnknown("timed out")
            case "late":
                self._send_late(call, lambda: self._remove(entry))
                raise OutcomeUnknown("timed out")
            case "refused":
                raise PermanentFailure("no refunds on Sundays")
            case "error-before":
                raise ConnectionError("500")
        self._remove(entry)
        self.place.reach("p6")
        if fault == "reply-lost":
            raise OutcomeUnknown("the reply was lost")

    # --- what a person does by hand --------------------------------------------------------------

    def truth(self, key: str) -> Entry | None:
        """Return what there is under a key."""
        return self.entries.get(key)

    def do_by_hand(self, entry: Entry) -> None:
        """Make the effect by hand, as the one effect of its key."""
        entry.pending_until = None
        entry.closed = False
        self._make(entry)
        entry.closed = True

    def undo_by_hand(self, entry: Entry) -> None:
        """Undo by hand, and see to it that nothing comes after."""
        self._remove(entry)
        self.shut_by_hand(entry)

    def shut_by_hand(self, entry: Entry) -> None:
        """See to it that nothing comes any more under a key, whatever has come."""
        entry.answer = None
        entry.closed, entry.pending_until = True, None

    def heal(self) -> None:
        """Forget the errors that were given once."""
        for entry in self.entries.values():
            entry.failing = False

    @property
    def effects(self) -> list[Effect]:
        """Everything that was ever done."""
        return [effect for entry in self.entries.values() for effect in entry.effects]

    # --- what happens inside ---------------------------------------------------------------------

    def _fault(self, call: Call[Any], operation: Operation) -> str:
        role = f"partner {operation}"
        where = f"{self.place.label(call.saga_id)}/{call.step}"
        count = self.received[call.saga_id, call.step, operation]
        fault = self.place.faults.at(role, f"{role} {where} {count}")
        if fault:
            self.place.faults.hit(role, fault)
        return fault

    def _entry(self, key: str, call: Call[Any]) -> Entry:
        if key not in self.entries:
            self.entries[key] = Entry(key, call.saga_id, call.step)
        return self.entries[key]

    def _note(self, call: Call[Any], operation: Operation) -> None:
        self.received[call.saga_id, call.step, operation] += 1
        self.requests.append(
            Request(
                saga_id=call.saga_id,
                step=call.step,
                operation=operation,
                attempt=call.attempt,
                at=self.place.now,
                caller=self.place.caller(),
            )
        )

    def _expiry(self, call: Call[Any]) -> datetime | None:
        """Return when the remote refuses the request: its own limit, after the call's time."""
        lifetime = self.contract.request_lifetime
        return None if lifetime is None else self.place.now + call.time_left + lifetime

    def _delay(self, call: Call[Any], low: timedelta, high: timedelta) -> timedelta:
        site = f"delay {self.place.label(call.saga_id)}/{call.step} {call.attempt} {call.key}"
        return self.place.faults.dice.between(site, low, high)

    def _send_late(self, call: Call[Any], arrive: Callable[[], Any]) -> None:
        """Keep a request on the wire: for days, but not beyond the margin that a retention has."""
        bounded = self.contract.key_retention is not None
        longest = MARGIN * 0.9 if bounded else 3 * DAY

        def act() -> None:
            self.on_the_way -= 1
            arrive()

        self.on_the_way += 1
        self.place.later(self._delay(call, SECOND, longest), act)

    def _query(self, fault: str) -> Any:
        self.place.reach("p6")
        if fault in {"error-before", "error-after", "lost", "late", "reply-lost", "pending"}:
            raise ConnectionError("no answer")
        if fault == "busy":
            raise RetryLater("429", delay=SECOND)
        if fault == "refused":
            raise PermanentFailure("not on offer")
        return {"made": 0} if fault == "invalid" else Made(made="seen")

    def _remembers(self, entry: Entry) -> bool:
        retention = self.contract.key_retention
        if entry.first_at is None:
            return False
        return retention is None or self.place.now < entry.first_at + retention

    def _is_new(self, entry: Entry) -> bool:
        return not (entry.closed or entry.effects or entry.pending_until or entry.failing)

    def _arrive(self, entry: Entry, expires_at: datetime | None) -> str:
        """Take a request as it comes in; return why it is refused, if it is."""
        if entry.closed:
            return "the key is closed"
        if expires_at is not None and self.place.now > expires_at:
            return "the request is too old"
        there = bool(entry.effects) or entry.pending_until is not None
        known = self.contract.idempotent and there and self._remembers(entry)
        if not known and not entry.failing:
            self._make(entry)
        return ""

    def _accept(self, entry: Entry, delay: timedelta) -> None:
        """Take a request to be worked on; it may be closed until it is done."""
        entry.first_at = entry.first_at or self.place.now
        entry.pending_until = self.place.now + delay

        def done() -> None:
            if entry.pending_until is not None:
                entry.pending_until = None
                self._make(entry)

        self.place.later(delay, done)

    def _make(self, entry: Entry) -> None:
        entry.first_at = entry.first_at or self.place.now
        entry.made = f"{entry.step} {len(entry.effects) + 1}"
        entry.effects.append(
            Effect(
                key=entry.key, saga_id=entry.saga_id, step=entry.step, at=self.place.now
            )
        )  # fmt: skip
        self._pay(entry, price_of(entry.step))

    def _pay(self, entry: Entry, amount: int) -> None:
        self.ledger += transfer(entry.saga_id, entry.step, self.contract.name, amount)

    def _seen(self, entry: Entry, at: datetime, fault: str) -> Answer:
        if fault == "conflict" and self._is_new(entry):
            entry.closed, entry.answer = True, Conflict("the key was used for something else")
        if fault == "rejected" and self._is_new(entry):
            entry.closed, entry.answer = True, Rejected("declined")
        if entry.answer is not None:
            return entry.answer
        if entry.pending_until is not None:
            return Pending()
        forgotten = self.contract.key_retention is not None and not self._remembers(entry)
        if forgotten or not any(effect.at <= at for effect in entry.effects):
            return Absent()
        return Applied(Made(made=entry.made))

    def _shut(self, entry: Entry) -> None:
        if not entry.effects:
            entry.closed, entry.pending_until = True, None

    def _remove(self, entry: Entry) -> None:
        for effect in entry.standing:
            effect.undone_at = self.place.now
            self._pay(entry, -price_of(entry.step))
        if self.contract.compensation_closes_key:
            entry.closed, entry.pending_until = True, None


class PartnerAgent(Agent):
    """The agent of a simulated partner: its contract is given, and nothing is registered."""

    def __init__(self, partner: Partner) -> None:
        self.contract = partner.contract
        self.action = partner.act
        self.functions = {
            Operation.ACTION: partner.act,
            Operation.PROBE: partner.find,
            Operation.CLOSE: partner.close,
            Operation.COMPENSATION: partner.undo,
        }
        self.result_type = TypeAdapter(Made)
        self.input_type = TypeAdapter(Any)
