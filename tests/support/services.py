"""Which services the tests may use, and what happens when one is missing.

A service is given by an environment variable. Without it the tests that need it are skipped with
a reason on a laptop, and fail when ``CI`` is set, because there a skip would hide a hole.
Everything in the given services that the tests use may be emptied.
"""

import os
from typing import NoReturn

import kombu
import pytest
from amqp.exceptions import PreconditionFailed

POSTGRES = "ATALAIA_TEST_POSTGRES_URL"
MARIADB = "ATALAIA_TEST_MARIADB_URL"
REDIS = "ATALAIA_TEST_REDIS_URL"
RABBITMQ = "ATALAIA_TEST_RABBITMQ_URL"


def optional(variable: str) -> str | None:
    """Return the URL in ``variable``, if any."""
    return os.environ.get(variable) or None


def given(variable: str) -> str:
    """Return the URL in ``variable``; skip or fail the test when there is none."""
    return optional(variable) or missing(f"{variable} is not set")


def rabbitmq() -> str:
    """Return RabbitMQ's URL, without the queues of another type that somebody left there."""
    url = given(RABBITMQ)
    services = ("cars", "flights", "hotels", "mail", "payments")
    with kombu.Connection(url) as connection:
        for name in ("atalaia", "supervisor", *services, *(f"{s}.recovery" for s in services)):
            wanted = kombu.Queue(name, queue_arguments={"x-queue-type": "quorum"})
            with connection.channel() as channel:
                try:
                    wanted(channel).queue_declare()
                except PreconditionFailed:
                    with connection.channel() as other:
                        wanted(other).delete()
    return url


def missing(reason: str) -> NoReturn:
    """Skip the test for ``reason``, or fail it where everything has to be there."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(f"NOT TESTED, and CI is set: {reason}", pytrace=False)
    pytest.skip(f"NOT TESTED: {reason}")
