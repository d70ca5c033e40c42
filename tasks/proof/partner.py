"""A partner that keeps its contract to the letter and does everything else that one ever did.

One thing alone it does against its word: a request that it should have refused as too old may turn
up after all, once the step was given up; what that leaves behind must be found and undone. It
remembers keys for as long as it says and no longer, closes them, lags in what it shows, takes
requests hours after they were sent, loses replies, throttles, sells out, repeats its own errors.
What it really did is in its books, which nothing but the invariants ever reads.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter

from models.states import Operation
from orchestration.contract import KILL_GRACE, MARGIN, AgentContract
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
from tasks.proof.entry import DeclinedError, Entry, Made, Place
from tasks.proof.record import Booking, Effect, Request, price_of, transfer

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


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
        expires_at = self._expiry(call)
        self.place.reach("send")
        self._note(call, Operation.ACTION)
        if not self.contract.effect:
            return self._query(fault)
        entry = self._entry(call.key, call)
        self._before(fault, entry, call, expires_at)
        refusal = "" if fault == "beyond" else self._arrive(entry, expires_at)
        if refusal:
            raise PermanentFailure(refusal)
        entry.failing = entry.failing or fault == "error-after"
        try:
            reply = self._reply(fault, entry)
        finally:  # Whoever is stopped here has his answer already.
            self.place.reach("p6")
        self.place.beat(call)
        return reply

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
                self._send_late(call, lambda: self._arrive(entry, expires_at), expires_at)
                raise OutcomeUnknown("timed out")
            case "beyond":
                self._come_beyond(call, entry)
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
        fault = self._fault(call, Operation.COMPENSATION)
        self.place.reach("send")
        self._note(call, Operation.COMPENSATION, with_result=made is not None)
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

    def _note(self, call: Call[Any], operation: Operation, *, with_result: bool = True) -> None:
        self.received[call.saga_id, call.step, operation] += 1
        self.requests.append(
            Request(
                saga_id=call.saga_id,
                step=call.step,
                operation=operation,
                attempt=call.attempt,
                at=self.place.now,
                caller=self.place.caller(),
                key=call.key if operation is Operation.ACTION else call.action_key,
                with_result=with_result,
            )
        )

    def _expiry(self, call: Call[Any]) -> datetime | None:
        """Return when the remote refuses the request: its own limit, after the process's death."""
        lifetime = self.contract.request_lifetime
        if lifetime is None:
            return None
        left = min(call.time_left, self.place.workflow.by_name[call.step].timeout)
        return self.place.now + left + KILL_GRACE + lifetime

    def _delay(self, call: Call[Any], low: timedelta, high: timedelta) -> timedelta:
        site = f"delay {self.place.label(call.saga_id)}/{call.step} {call.attempt} {call.key}"
        return self.place.faults.dice.between(site, low, high)

    def _send_late(
        self, call: Call[Any], arrive: Callable[[], Any], expires_at: datetime | None = None
    ) -> None:
        """Keep a request on the wire: for days, but not beyond the margin that a retention has.

        What is refused when it is too old comes at the last moment, half of the time.
        """
        bounded = self.contract.key_retention is not None
        longest = MARGIN * 0.9 if bounded else 3 * DAY
        delay = self._delay(call, SECOND, longest)
        site = f"last moment {self.place.label(call.saga_id)}/{call.step} {call.attempt}"
        if expires_at is not None and self.place.faults.dice.roll(site) < 0.5:  # noqa: PLR2004
            delay = min(longest, (expires_at - self.place.now) * 0.99)

        def act() -> None:
            self.on_the_way -= 1
            arrive()

        self.on_the_way += 1
        self.place.later(delay, act)

    def _come_beyond(self, call: Call[Any], entry: Entry) -> None:
        """Let a request turn up after its lifetime, once its step was given up; or never.

        A caller that can be held waits for it; any other one is told of a time-out.
        """
        contract = self.contract
        if contract.request_lifetime and not contract.key_retention:
            delay = self._delay(call, SECOND, DAY / 4)
            if not self.place.can_wait():
                self.place.later(delay, lambda: self._turn_up(call, entry))
            else:
                self.place.sleep(delay.total_seconds())
                if self._turn_up(call, entry):
                    return
        raise OutcomeUnknown("timed out")

    def _turn_up(self, call: Call[Any], entry: Entry) -> bool:
        there = self._is_new(entry) and self.place.given_up(call.saga_id, call.step)
        if there:
            self._make(entry)
            entry.effects[-1].beyond = True
        return there

    def _query(self, fault: str) -> Any:
        self.place.reach("p6")
        if fault in {
            "error-before",
            "error-after",
            "lost",
            "late",
            "beyond",
            "reply-lost",
            "pending",
        }:
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
        self.functions = {Operation.ACTION: partner.act}
        if partner.contract.probe:
            self.functions[Operation.PROBE] = partner.find
        if partner.contract.close:
            self.functions[Operation.CLOSE] = partner.close
        if partner.contract.compensation:
            self.functions[Operation.COMPENSATION] = partner.undo
        self.result_type = TypeAdapter(Made)
        self.input_type = TypeAdapter(Any)
