"""Taking: a lease taken by the same statement that reads what its work needs.

How long a lease lasts is said by the saga's definition, which is known only once the saga has been
read. But whoever has run a step of some path mostly runs more of the same workflow. So a worker
takes the lease by the definition that the last saga had there, provided that this one has it, too.
If it has another, or if more is to be said of the step, nothing is taken, and it has been read all
the same. PostgreSQL only: in the other databases a change returns no rows of a query.

The rows are read as they were when the statement began, and the lease is taken of the step as it is
then. Both are one thing to a message: it was sent after the step was dispatched for it, and a step
that is no longer dispatched for it never is again.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Double,
    Table,
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)

from models import Attempt, Saga, Step
from models.states import AttemptState, StepState
from orchestration.definition import Step as StepPlan
from orchestration.present import seconds
from orchestration.roster import NodeIdentity
from orchestration.seen import Read
from orchestration.statement import AnyConnection, Prepared
from orchestration.store import GRANTED, OPENED, Store, same_step, select_work
from orchestration.work import longest_silence

_sagas: Table = Saga.__table__
_steps: Table = Step.__table__
_attempts: Table = Attempt.__table__
_NONE: ColumnElement[int] = literal_column("0")


@dataclass(frozen=True)
class Claim:
    """Who asks for the lease of which attempt."""

    saga_id: UUID
    path: str
    number: int
    node: NodeIdentity
    pid: int


@dataclass(frozen=True)
class Expected:
    """The definition that a saga is expected to have, and what that says of the step."""

    definition_id: str
    plan: StepPlan


def take(
    store: Store, connection: AnyConnection, claim: Claim, expected: Expected
) -> tuple[Read | None, bool]:
    """Read a step as it is, and open the attempt that is claimed; tell whether that was done.

    It is not done where more than a lease would be to be decided: where the step was sent again, or
    there is a doubt about it.
    """
    node, plan = claim.node, expected.plan
    rows = store.prepared(_take).all(
        connection, saga=claim.saga_id, at=claim.path, was_saga=claim.saga_id,
        was_path=claim.path, was_attempt=claim.number - 1, was_state=StepState.DISPATCHED,
        definition=expected.definition_id, number=claim.number, by=node.id, called=node.name,
        process=claim.pid, lasting=plan.timeout.total_seconds(),
        silence=longest_silence(plan).total_seconds(),
    )  # fmt: skip
    read = store.read_from(connection, claim.saga_id, claim.path, rows)
    return read, read is not None and bool(rows[0].taken)


def _take(present: ColumnElement[datetime]) -> Prepared:
    """Return the statement: all of its parts see the rows as they were before."""
    moment = select(present.label("now")).cte("moment")
    now = moment.c.now
    number = bindparam("number", type_=_steps.c.attempt.type)
    process = bindparam("process", type_=_steps.c.pid.type)
    same_definition = exists(
        select(_sagas.c.id).where(
            _sagas.c.id == bindparam("was_saga"), _sagas.c.definition_id == bindparam("definition")
        )
    )
    given = {
        "state": _text(StepState.LEASED), "attempt": number, "node_id": bindparam("by"),
        "pid": process,
        "granted_at": now,
        "deadline_at": now + seconds(bindparam("lasting", type_=Double())),
        "wake_at": now + seconds(bindparam("silence", type_=Double())),
        "dispatch_count": _NONE, "crash_count": _NONE, "asked_count": _NONE,
    }  # fmt: skip
    assert set(given) == set(GRANTED)
    nothing_else = _steps.c.dispatch_count <= literal_column("1"), _steps.c.doubt_at.is_(None)
    kept = (_steps.c[name] for name in ("saga_id", "path", "direction", "incarnation"))
    taken = (
        update(_steps)
        .where(*same_step(), *nothing_else, same_definition)
        .values(given)
        .returning(*kept)
        .cte("taken")
    )
    opened = {
        **taken.c, "no": number, "state": _text(AttemptState.OPEN),
        "node": bindparam("called", type_=_attempts.c.node.type), "pid": process,
        "granted_at": now,
    }  # fmt: skip
    attempt = (
        insert(_attempts)
        .from_select(OPENED, select(*(opened[name] for name in OPENED)), include_defaults=False)
        .returning(_attempts.c.no)
        .cte("attempt")
    )
    read_at = select(now).scalar_subquery().label("now")
    done = select(func.count()).select_from(taken).scalar_subquery().label("taken")
    return Prepared(select_work(read_at, done).add_cte(attempt))


def _text(state: str) -> ColumnElement[str]:
    return literal_column(f"'{state}'")
