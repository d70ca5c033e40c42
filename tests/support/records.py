"""The whole record of a run on a real database: its rows, and what the partners' books say.

Where processes are killed, this is what the invariants are checked against in the end.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from examples.travel.books import MERCHANT, Books
from examples.travel.wire import SERVICES
from models import Definition as StoredDefinition
from models.states import Direction, Operation
from orchestration.definition import Definition
from orchestration.snapshot import LATE
from orchestration.store import Store
from tasks.proof.record import CUSTOMER, Booking
from tests.support.invariants import Effect, Record, Request, Rows, check, read_rows

NOBODYS = {"saga": "", "step": ""}


def assert_all_hold(store: Store, books: Iterable[Books]) -> None:
    """Assert that all invariants hold, now that everything has come to rest."""
    wrong = check(record_of(store, books))
    assert not wrong, "\n".join(map(str, wrong))


def record_of(store: Store, books: Iterable[Books], *, settled: bool = True) -> Record:
    """Return the record of a database and of what each partner answered to GET /books.

    Effects for sagas that the database does not know are left out, since partners are shared by
    tests with a database each; `examples.travel.books.reconcile` names them. All money is taken
    for one currency.
    """
    books = list(books)
    with store.reading() as connection:
        rows = read_rows(connection)
        definitions = _definitions(connection)
    ours = {str(saga.id) for saga in rows.sagas}
    effects = [effect for book in books for effect in _effects(book) if effect.saga_id in ours]
    return Record(
        rows=rows,
        definitions=definitions,
        effects=effects,
        requests=list(_requests(rows, effects)),
        payments=[booking for book in books for booking in _bookings(book)],
        settled=settled,
    )


def _definitions(connection: Connection) -> dict[str, Definition]:
    table: Any = StoredDefinition.__table__
    stored = connection.execute(select(table.c.id, table.c.document))
    return {row.id: Definition.from_document(row.document) for row in stored}


def _effects(book: Books) -> Iterator[Effect]:
    for effect in book["effects"]:
        undone_at = effect["cancelled_at"]
        yield Effect(
            key=effect["key"],
            saga_id=effect["saga"],
            step=effect["step"],
            at=datetime.fromisoformat(effect["created_at"]),
            undone_at=None if undone_at is None else datetime.fromisoformat(undone_at),
        )


def _requests(rows: Rows, effects: Iterable[Effect]) -> Iterator[Request]:
    """Yield the requests that must have come, since they took effect.

    A partner does not know attempts, so each request counts as one of the last attempt that was
    granted before it. If there was none, it was sent without a lease.
    """
    grants: defaultdict[tuple[str, str, str], list[Any]] = defaultdict(list)
    for attempt in rows.attempts:
        step = attempt.path.removesuffix(LATE)
        grants[str(attempt.saga_id), step, attempt.direction].append(attempt)

    def request(effect: Effect, operation: Operation, way: Direction, at: datetime) -> Request:
        leases = grants[effect.saga_id, effect.step, way]
        number = max((lease.no for lease in leases if lease.granted_at <= at), default=0)
        return Request(
            saga_id=effect.saga_id, step=effect.step, operation=operation, attempt=number, at=at
        )

    for effect in effects:
        yield request(effect, Operation.ACTION, Direction.FORWARD, effect.at)
        if effect.undone_at is not None:
            yield request(effect, Operation.COMPENSATION, Direction.BACKWARD, effect.undone_at)


def _bookings(book: Books) -> Iterator[Booking]:
    """Yield what the customers really paid and got back, against the orders that stand.

    Money that moved for an order that is not in the books has no other side.
    """
    orders = {effect["reference"]: effect for effect in book["effects"]}
    for move in book["transfers"]:
        amount = move["amount"] if move["credit"] == MERCHANT else -move["amount"]
        yield _booking(orders.get(move["reference"], NOBODYS), CUSTOMER, -amount)
    for effect in book["effects"]:
        if SERVICES[book["service"]].charges and effect["cancelled_at"] is None:
            yield _booking(effect, book["service"], effect["request"].get("amount") or 0)


def _booking(effect: Mapping[str, Any], account: str, amount: int) -> Booking:
    return Booking(saga_id=effect["saga"], step=effect["step"], account=account, amount=amount)
