"""Coverage: which faults struck where, and which rows of the recovery table met which answer.

A run in which nothing ever went wrong proves nothing. So the cells that can be reached are listed,
each is counted, and one that was never reached is a failure like any other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import cache
from itertools import product

from orchestration.contract import AgentContract
from orchestration.recovery import CRASH_LIMIT, UNCLEAR_LIMIT, Case, resolve
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
from tasks.proof.faults import FAULTS
from tasks.proof.plans import admitted
from tasks.proof.record import Rows

ASKED = "asked"
BY_PROBE: tuple[Answer, ...] = (
    Applied(), Absent(), Pending(), Rejected(), Conflict(), Unclear()
)  # fmt: skip
BY_CLOSE: tuple[Answer, ...] = (Applied(), Closed(), Unclear())
BEYOND_THE_TABLE = frozenset(
    {
        "row 3: none", "row 17: none", "row 17: conflict", "row 17: rejected", "row 17: unclear",
        "row 23: none", "row 24: none", "row 24: applied",
    }
)  # fmt: skip
"""Late reports, late effects and compensations, which have functions of their own."""
PEOPLE = ("retry", "succeeded", "failed", "compensated", "refused")


def told(row: str, answer: str | None) -> str:
    """Return the name of a cell of the recovery table."""
    return f"row {row}: {answer or 'none'}"


@cache
def reachable() -> frozenset[str]:
    """Return every cell that can be reached."""
    struck = {f"{role} {fault}" for role, faults in FAULTS.items() for fault in faults}
    people = {f"person {remedy}" for remedy in PEOPLE}
    table = {
        told(resolve(case).row, _word(case.answer))
        for position in Position
        for contract in admitted(position)
        for case in _cases(contract, position)
    }
    return frozenset(struck | people | table | BEYOND_THE_TABLE | {"partner action in-flight"})


def _word(answer: Answer | None) -> str | None:
    return None if answer is None else type(answer).__name__.lower()


def _cases(contract: AgentContract, position: Position) -> Iterator[Case]:
    """Yield what the table may be asked about a step, one of each kind."""
    second, long = timedelta(seconds=1), timedelta(days=2)
    horizon = contract.request_lifetime and (second, -second)
    heard = {*(BY_PROBE if contract.probe else ()), *(BY_CLOSE if contract.close else ()), None}
    for answer, spent, late, aborting, to_horizon, age, asked in product(
        sorted(heard, key=repr),
        (False, True),
        (False, True),
        (False, True) if position is Position.BEFORE else (False,),
        horizon or (None,),
        (second, long),
        (0, UNCLEAR_LIMIT),
    ):
        yield Case(
            contract=contract, position=position, answer=answer, spent=spent, late=late,
            aborting=aborting, to_horizon=to_horizon, age=age, asked=asked,
        )  # fmt: skip
    for spent, crashes in product((False, True), (0, CRASH_LIMIT)):
        yield Case(contract=contract, position=position, doubt=False, spent=spent, crashes=crashes)


def of_rows(rows: Rows) -> Iterator[str]:
    """Yield the cells of the recovery table that a run's journal tells of."""
    for entry in rows.journal:
        if entry.row:
            yield told(entry.row, (entry.details or {}).get("answer"))


class Coverage:
    """Counts cells over many runs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, cells: Iterable[str] | Counter[str]) -> None:
        """Count what one run has reached."""
        self.counts.update(cells)

    @property
    def missing(self) -> list[str]:
        """The reachable cells that were never reached."""
        return sorted(cell for cell in reachable() if not self.counts[cell])

    @property
    def strangers(self) -> list[str]:
        """What was reached and is not in the list."""
        return sorted(cell for cell in self.counts if cell not in reachable())
