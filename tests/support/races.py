"""Races on a database with many writers, run in a fixed order.

The winner has written and holds back its commit until the loser waits for its lock, or is through
without having waited.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, current_thread
from typing import Any

from sqlalchemy import Connection, Engine, event, text

from orchestration.events import Dispatch
from tests.support.core import Core
from tests.support.invariants import Rows, read_rows
from tests.support.waiting import eventually

WINNER, LOSER = "winner", "loser"
WITHIN = 20.0
_BLOCKED = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND wait_event_type = 'Lock' AND cardinality(pg_blocking_pids(pid)) > 0"
)
_OURS = text("SELECT id FROM information_schema.processlist WHERE db = DATABASE()")
_WAITS = re.compile(r"^LOCK WAIT .*\n.* thread id (\d+),", re.MULTILINE)


class RacingCore(Core):
    """A core that knows which side sent what."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.senders: list[str] = []
        super().__init__(*given, **named)
        # What is held back is a commit that SQLAlchemy tells of, also of what is one statement.
        self.store.writing = self.store.transaction  # type: ignore[method-assign]
        self.store.at_once = self.store.transaction  # type: ignore[method-assign]

    def publish(self, dispatches: Sequence[Dispatch]) -> None:
        super().publish(dispatches)
        self.senders.extend(current_thread().name for _ in dispatches)


@dataclass(frozen=True)
class Raced:
    """What each side returned or raised, and the rows as the first had written them."""

    won: Any
    lost: Any
    written: Rows


def race(
    core: RacingCore, winner: Callable[[], Any], loser: Callable[[], Any], *, blocks: bool = True
) -> Raced:
    """Run a race whose loser changes nothing, and assert just that.

    At its end all rows are as the winner wrote them, apart from the evidence of what was refused,
    and the loser has sent nothing.
    """
    raced = in_turn(core, winner, loser, blocks=blocks)
    assert _without_evidence(everything(core)) == _without_evidence(raced.written)
    assert not [name for name in core.senders if name.startswith(LOSER)], "the loser sent something"
    return raced


def in_turn(
    core: RacingCore, winner: Callable[[], Any], loser: Callable[[], Any], *, blocks: bool = True
) -> Raced:
    """Run both, the winner's commit first.

    ``blocks`` is whether the loser waits for the winner's lock; otherwise it has to be through
    while the winner still holds it.
    """
    with _threads() as (first, second), _held_commit(core.engine) as held:
        won = first.submit(_outcome, winner)
        assert held.written.wait(WITHIN), f"the winner wrote nothing: {_end(won)}"
        lost = second.submit(_outcome, loser)
        if blocks:
            wait_until_blocked(core, lost)
        else:
            lost.result(WITHIN)
            assert not won.done()
        held.free.set()
        return Raced(won.result(WITHIN), lost.result(WITHIN), held.rows)


def wait_until_blocked(core: Core, doing: "Future[Any]") -> None:
    """Wait until ``doing`` waits for the lock of another session."""
    eventually(
        lambda: doing.done() or blocked(core), within=WITHIN, describe="it waits for the lock"
    )
    assert not doing.done(), f"it did not wait for the lock: {_end(doing)}"


def blocked(core: Core) -> int:
    """Return how many sessions of this database wait for a lock that another one holds."""
    with core.store.reading() as connection:
        if connection.dialect.name == "postgresql":
            return int(connection.execute(_BLOCKED).scalar_one())
        # The tables that tell it, too, are not renewed while anybody keeps looking at them.
        told = connection.exec_driver_sql("SHOW ENGINE INNODB STATUS").one()[2]
        ours = {str(number) for number in connection.execute(_OURS).scalars()}
        return len(ours & set(_WAITS.findall(told)))


def everything(core: Core) -> Rows:
    """Return all rows."""
    with core.store.reading() as connection:
        return read_rows(connection)


@contextmanager
def _threads() -> Iterator[tuple[ThreadPoolExecutor, ThreadPoolExecutor]]:
    with (
        ThreadPoolExecutor(1, thread_name_prefix=WINNER) as first,
        ThreadPoolExecutor(1, thread_name_prefix=LOSER) as second,
    ):
        yield first, second


class _Held:
    """The winner's first commit that would change a row, as long as it is held."""

    def __init__(self, before: Rows) -> None:
        self.rows = before
        self.written, self.free = Event(), Event()

    def hold(self, connection: Connection) -> None:
        if not current_thread().name.startswith(WINNER) or self.written.is_set():
            return
        rows = read_rows(connection)
        if rows != self.rows:
            self.rows = rows
            self.written.set()
            assert self.free.wait(2 * WITHIN), "the loser came to no end"


@contextmanager
def _held_commit(engine: Engine) -> Iterator[_Held]:
    with engine.connect() as connection:
        held = _Held(read_rows(connection))
    event.listen(engine, "commit", held.hold)
    try:
        yield held
    finally:
        held.free.set()
        event.remove(engine, "commit", held.hold)


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - the test says which errors it expects
        return error


def _end(future: "Future[Any]") -> str:
    return repr(future.result()) if future.done() else "it is not through"


def _without_evidence(rows: Rows) -> dict[str, list[Any]]:
    """Return the rows without what is kept of a refused report, which moves nothing."""
    attempts = [row._asdict() | {"late": None} for row in rows.attempts]
    journal = [row for row in rows.journal if row.verb != "refuse"]
    return vars(rows) | {"attempts": attempts, "journal": journal}
