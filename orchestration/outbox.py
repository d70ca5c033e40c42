"""Sending after the commit of somebody else's transaction."""

from collections.abc import Sequence

from sqlalchemy import event
from sqlalchemy.orm import Session

from orchestration.events import Dispatch
from orchestration.ports import Dispatcher

_PENDING = "atalaia_pending"


def publish_after_commit(
    session: Session, dispatcher: Dispatcher, dispatches: Sequence[Dispatch]
) -> None:
    """Publish when the session's outermost transaction commits; forget it when that rolls back.

    A savepoint that is rolled back may leave a message without a row: the agent finds no step and
    drops it.
    """
    pending = session.info.get(_PENDING)
    if pending is None:
        pending = session.info[_PENDING] = []
        event.listen(session, "after_commit", _publish)
        event.listen(session, "after_rollback", _forget)
    pending.append((dispatcher, list(dispatches)))


def _publish(session: Session) -> None:
    if session.in_nested_transaction():  # releasing a savepoint is not a commit
        return
    pending, session.info[_PENDING] = session.info.get(_PENDING, []), []
    for dispatcher, dispatches in pending:
        dispatcher.publish(dispatches)


def _forget(session: Session) -> None:
    if not session.in_nested_transaction():
        session.info[_PENDING] = []
