"""Every row of the table that says what a partner's answer means, and what it leaves out."""

from datetime import timedelta
from typing import Any

import httpx
import pytest

from orchestration import OutcomeUnknown, PermanentFailure, RetryLater
from tasks.agents.meaning import LONGEST_RETRY_AFTER, MEANINGS, retry_after, understand

ROWS = [
    (400, "invalid_request", PermanentFailure),
    (400, "key_missing", PermanentFailure),
    (408, "request_expired", RetryLater),
    (409, "declined", PermanentFailure),
    (409, "in_flight", OutcomeUnknown),
    (409, "sold_out", PermanentFailure),
    (409, "undeliverable", PermanentFailure),
    (410, "key_closed", OutcomeUnknown),
    (422, "key_reused", OutcomeUnknown),
    (429, "throttled", RetryLater),
    (503, "unavailable", RetryLater),
]


def answer(status: int, body: Any = None, **headers: str) -> httpx.Response:
    request = httpx.Request("POST", "http://127.0.0.1/orders")
    return httpx.Response(status, json=body, headers=headers, request=request)


def error(status: int, code: str, **headers: str) -> httpx.Response:
    return answer(status, {"error": {"code": code, "message": "because"}}, **headers)


@pytest.mark.parametrize(("status", "code", "meaning"), ROWS)
def test_each_row_raises_what_it_says(status: int, code: str, meaning: type[Exception]) -> None:
    with pytest.raises(meaning, match=f"/orders answered {status} {code}"):
        understand(error(status, code))


def test_no_row_is_left_without_a_case() -> None:
    assert {(status, code) for status, code, _ in ROWS} == set(MEANINGS)


@pytest.mark.parametrize(
    "response",
    [
        error(500, "internal_error"),
        error(409, "something_new"),
        error(503, "sold_out"),
        answer(503),
        answer(502, "<html>"),
        answer(404, {"detail": "Not Found"}),
        answer(302),
        answer(200, {}),
        answer(201, ["state"]),
        answer(429, {"error": "slow down"}),
    ],
)
def test_whatever_the_table_does_not_name_is_an_unknown_outcome(response: httpx.Response) -> None:
    with pytest.raises(OutcomeUnknown):
        understand(response)


@pytest.mark.parametrize("status", [200, 201, 202])
def test_a_success_says_its_state(status: int) -> None:
    assert understand(answer(status, {"state": "applied"})) == {"state": "applied"}


@pytest.mark.proves("D-15")
def test_retry_later_carries_what_the_partner_asked_for() -> None:
    with pytest.raises(RetryLater) as caught:
        understand(error(429, "throttled", **{"Retry-After": "2.5"}))
    assert caught.value.delay == timedelta(seconds=2.5)


@pytest.mark.parametrize(
    ("header", "delay"),
    [
        ("0", timedelta(0)),
        ("1e300", LONGEST_RETRY_AFTER),
        ("inf", None),
        ("nan", None),
        ("-1", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_bounded_and_otherwise_passed_over(
    header: str | None, delay: timedelta | None
) -> None:
    assert retry_after(header) == delay
