"""The auditor compares the partners' books with how the sagas ended.

`reconcile` is pure. It believes nobody: effects are counted in the partners' own records, and the
money is added up from the transfers. A saga that has not ended is not judged, only named.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx

EXPECTED = {
    "flights": "flight",
    "hotels": "hotel",
    "cars": "car",
    "payments": "payment",
    "mail": "receipt",
}
"""The one step of a completed trip that leaves one live effect in each partner's books."""
UNDONE = frozenset({"compensated", "cancelled"})
COMPLETED = "completed"
MERCHANT = "merchant"

Books = Mapping[str, Any]
"""What a partner answers to GET /books."""


@dataclass(frozen=True, order=True, kw_only=True)
class Finding:
    """One disagreement about one step of one saga."""

    service: str
    saga: str
    step: str
    detail: str

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.service}: saga {self.saga}, step {self.step}: {self.detail}"


@dataclass(frozen=True, kw_only=True)
class Reconciliation:
    """What the books say against the sagas. `agrees` only if nothing at all was found."""

    orphaned: tuple[Finding, ...] = ()
    missing: tuple[Finding, ...] = ()
    duplicated: tuple[Finding, ...] = ()
    money: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    effects: int = 0
    cancelled: int = 0

    @property
    def agrees(self) -> bool:
        """Whether every saga has ended and every book agrees with how it did."""
        return not (
            self.orphaned or self.missing or self.duplicated or self.money or self.unsettled
        )

    def document(self) -> dict[str, Any]:
        """Return the whole as JSON."""
        return {**asdict(self), "agrees": self.agrees}

    def lines(self) -> Iterator[str]:
        """Yield every disagreement as a line to read."""
        for kind in ("orphaned", "missing", "duplicated"):
            for finding in getattr(self, kind):
                yield f"{kind} effect at {finding}"
        for problem in self.money:
            yield f"money: {problem}"
        for saga in self.unsettled:
            yield f"saga {saga} has not ended"


def reconcile(
    books: Iterable[Books],
    sagas: Mapping[str, str],
    expected: Mapping[str, str] = EXPECTED,
) -> Reconciliation:
    """Compare the books of all partners with the end states of all sagas (id to state)."""
    books = list(books)
    effects = [
        _Effect.read(book["service"], effect) for book in books for effect in book["effects"]
    ]
    live = [effect for effect in effects if not effect.cancelled]
    return Reconciliation(
        orphaned=tuple(sorted(_orphaned(live, sagas, expected))),
        missing=tuple(sorted(_missing(live, sagas, expected))),
        duplicated=tuple(sorted(_duplicated(effects))),
        money=tuple(problem for book in books for problem in _money(book)),
        unsettled=tuple(
            sorted(saga for saga, state in sagas.items() if state not in UNDONE | {COMPLETED})
        ),
        effects=len(effects),
        cancelled=len(effects) - len(live),
    )


def fetch_books(urls: Iterable[str], timeout: float = 10.0) -> list[Books]:
    """Read the books of every partner; `timeout` in seconds. Raises `httpx.HTTPError`."""
    with httpx.Client(trust_env=False, timeout=timeout) as client:
        return [client.get(f"{url.rstrip('/')}/books").raise_for_status().json() for url in urls]


@dataclass(frozen=True)
class _Effect:
    service: str
    saga: str
    step: str
    reference: str
    cancelled: bool

    @classmethod
    def read(cls, service: str, record: Mapping[str, Any]) -> "_Effect":
        return cls(
            service,
            record["saga"],
            record["step"],
            record["reference"],
            record["cancelled_at"] is not None,
        )

    def finding(self, detail: str) -> Finding:
        return Finding(service=self.service, saga=self.saga, step=self.step, detail=detail)


def _orphaned(
    live: Sequence[_Effect], sagas: Mapping[str, str], expected: Mapping[str, str]
) -> Iterator[Finding]:
    for effect in live:
        state = sagas.get(effect.saga)
        if state is None:
            yield effect.finding(f"{effect.reference} stands for a saga that nobody knows")
        elif state in UNDONE:
            yield effect.finding(f"{effect.reference} still stands, but the saga was {state}")
        elif state == COMPLETED and expected.get(effect.service) != effect.step:
            yield effect.finding(f"{effect.reference} stands for a step that is not one of a trip")


def _missing(
    live: Sequence[_Effect], sagas: Mapping[str, str], expected: Mapping[str, str]
) -> Iterator[Finding]:
    there = {(effect.service, effect.saga, effect.step) for effect in live}
    for saga, state in sagas.items():
        for service, step in expected.items():
            if state == COMPLETED and (service, saga, step) not in there:
                yield Finding(
                    service=service, saga=saga, step=step, detail="completed without its effect"
                )


def _duplicated(effects: Sequence[_Effect]) -> Iterator[Finding]:
    executions: defaultdict[tuple[str, str, str], list[_Effect]] = defaultdict(list)
    for effect in effects:
        executions[effect.service, effect.saga, effect.step].append(effect)
    for same in executions.values():
        if len(same) > 1:
            names = ", ".join(effect.reference for effect in same)
            yield same[0].finding(f"executed {len(same)} times ({names})")


def _money(book: Books) -> Iterator[str]:
    """Add the transfers up: each charge once, each cancelled one back, nothing else moved."""
    charged = Counter[tuple[str, str, str]]()
    for move in book["transfers"]:
        if MERCHANT not in {move["debit"], move["credit"]} or move["debit"] == move["credit"]:
            yield f"transfer {move['id']} is not between a customer and the merchant"
            continue
        back = move["debit"] == MERCHANT
        customer = move["credit"] if back else move["debit"]
        place = (move["reference"], customer, move["currency"])
        charged[place] += -move["amount"] if back else move["amount"]
    for effect in book["effects"]:
        asked = effect["request"]
        if book["service"] != "payments" or not asked.get("amount"):
            continue
        place = (effect["reference"], f"customer:{asked['customer']}", asked["currency"])
        due = 0 if effect["cancelled_at"] else asked["amount"]
        moved = charged.pop(place, None)
        if moved is None:
            yield f"{effect['reference']} moved no money"
        elif moved != due:
            yield f"{effect['reference']} moved {moved} {place[2]} instead of {due}"
    for (reference, customer, currency), amount in charged.items():
        yield f"{amount} {currency} of {customer} moved for {reference}, which is not in the books"
