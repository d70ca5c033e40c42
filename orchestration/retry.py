"""RetryPolicy: how often and how fast a step is tried again, after which error."""

from dataclasses import KW_ONLY, replace
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from orchestration.declared import Duration, declared

Coefficient = Annotated[float, Field(ge=1, le=1000)]
LONGEST_RETRY_AFTER = timedelta(days=1)
"""The longest wait that a remote service may ask for."""


@declared
class RetryOverride:
    """What differs for one error name; whatever is ``None`` is taken from the policy."""

    _: KW_ONLY
    max_attempts: Annotated[int, Field(ge=1)] | None = None
    initial_interval: Duration | None = None
    backoff_coefficient: Coefficient | None = None
    max_interval: Duration | None = None


@declared
class RetryPolicy:
    """How often and how fast a step is tried again. The delays live in SQL, never in the broker.

    ``max_attempts`` counts failed attempts, whatever their error; an agent's ``RetryLater`` does
    not count. ``max_interval`` is 100 times the initial one unless given, as in Temporal.
    Full jitter: a delay is drawn evenly from nothing to the back-off (AWS, "Exponential Backoff
    And Jitter").
    """

    _: KW_ONLY
    max_attempts: Annotated[int, Field(ge=1)] = 3
    initial_interval: Duration = timedelta(seconds=1)
    backoff_coefficient: Coefficient = 2.0
    max_interval: Duration | None = None
    total_timeout: Duration | None = None
    jitter: Literal["full", "none"] = "full"
    non_retryable_errors: tuple[str, ...] = ()
    """Names of exceptions that certainly had no effect and that no repetition can change."""
    overrides: dict[str, RetryOverride] = Field(default_factory=dict)

    @property
    def ceiling(self) -> timedelta:
        """The longest delay that the policy itself asks for."""
        return self.max_interval or 100 * self.initial_interval

    def backoff(self, failures: int) -> timedelta:
        """Return the delay after the ``failures``-th failure (from 1), before jitter."""
        exponent = min(failures - 1, 64)
        seconds = self.initial_interval.total_seconds() * self.backoff_coefficient**exponent
        return timedelta(seconds=min(seconds, self.ceiling.total_seconds()))

    def delay(self, failures: int, roll: float, retry_after: timedelta | None = None) -> timedelta:
        """Return how long to wait; ``roll`` is in [0, 1), ``retry_after`` the remote's word.

        The remote's word is honoured up to a day, and spread a little, so that not all come back at
        the same instant.
        """
        backoff = self.backoff(max(failures, 1))
        drawn = backoff * roll if self.jitter == "full" else backoff
        if retry_after is None:
            return drawn
        return min(max(retry_after, timedelta(0)), LONGEST_RETRY_AFTER) + drawn * 0.1

    def for_error(self, name: str | None) -> "RetryPolicy":
        """Return the policy that holds after an error of this name."""
        override = self.overrides.get(name or "")
        if override is None:
            return self
        given = {key: value for key, value in vars(override).items() if value is not None}
        return replace(self, **given)

    def horizon(self, timeout: timedelta) -> timedelta:
        """Return the longest time from the first send to the last one."""
        policies = [self, *(self.for_error(name) for name in self.overrides)]
        longest = max(
            sum((timeout + p.backoff(n) for n in range(1, p.max_attempts)), timedelta(0))
            for p in policies
        )
        return min(longest, self.total_timeout) if self.total_timeout else longest
