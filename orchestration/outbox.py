"""Sending after the commit of somebody else's transaction."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import event

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_PENDING = "atalaia_pending"


def after_commit_of(session: "Session") -> Callable[[Callable[[], None]], None]:
    """Return what has something done when the session's outermost transaction commits.

    It is forgotten when that rolls back. A savepoint that is rolled back may leave a message
    without a row: the agent finds no step and drops it.
    """

    def later(act: Callable[[], None]) -> None:
        if _PENDING not in session.info:
            session.info[_PENDING] = []
            event.listen(session, "after_commit", _act)
            event.listen(session, "after_rollback", _forget)
        session.info[_PENDING].append(act)

    return later


def _act(session: "Session") -> None:
    if session.in_nested_transaction():  # releasing a savepoint is not a commit
        return
    pending, session.info[_PENDING] = session.info.get(_PENDING, []), []
    for act in pending:
        act()


def _forget(session: "Session") -> None:
    if not session.in_nested_transaction():
        session.info[_PENDING] = []
