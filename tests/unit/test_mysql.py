"""What MariaDB and MySQL say, and what is made of it; nothing here needs a server."""

from collections.abc import Callable

import pymysql
import pytest
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.exc import DataError, OperationalError

from orchestration.mysql import LONGEST_DOCUMENT, refuse_what_is_too_long, renamed, repeated

DIALECT = MySQLDialect_pymysql(dbapi=pymysql)
DEADLOCK, WAITED_TOO_LONG, GONE = 1213, 1205, 2006


def fails(times: int, code: int) -> tuple[Callable[[], str], list[int]]:
    """Return what fails so often before it is done, and a list that grows by each of its tries."""
    tries: list[int] = []

    def act() -> str:
        tries.append(code)
        if len(tries) <= times:
            raise OperationalError("", {}, pymysql.err.OperationalError(code, "said"))
        return "done"

    return act, tries


@pytest.mark.parametrize("times", [0, 1, 4])
def test_what_gave_way_in_a_deadlock_is_done_again(times: int) -> None:
    act, tries = fails(times, DEADLOCK)
    assert repeated(act) == "done"
    assert len(tries) == times + 1


def test_what_always_gives_way_is_given_up() -> None:
    act, tries = fails(99, DEADLOCK)
    with pytest.raises(OperationalError):
        repeated(act)
    assert len(tries) == 5


@pytest.mark.parametrize("code", [WAITED_TOO_LONG, GONE])
def test_what_failed_otherwise_is_left_to_whoever_waits_for_the_database(code: int) -> None:
    act, tries = fails(1, code)
    with pytest.raises(OperationalError):
        repeated(act)
    assert len(tries) == 1


@pytest.mark.parametrize("code", [3819, 4025])
def test_a_row_that_contradicts_itself_is_no_outage(code: int) -> None:
    error = pymysql.err.OperationalError(code, "CONSTRAINT failed")
    assert isinstance(renamed(DIALECT, error), pymysql.err.IntegrityError)


@pytest.mark.parametrize(
    "error",
    [pymysql.err.OperationalError(GONE, "gone"), pymysql.err.InterfaceError(), KeyError("other")],
)
def test_every_other_error_keeps_its_name(error: Exception) -> None:
    assert renamed(DIALECT, error) is error


def test_only_what_may_not_fit_into_a_packet_is_refused() -> None:
    refuse_what_is_too_long(DIALECT, "", (7, None, "x" * LONGEST_DOCUMENT))
    with pytest.raises(DataError, match="longer than"):
        refuse_what_is_too_long(DIALECT, "", (7, "x" * (LONGEST_DOCUMENT + 1)))
