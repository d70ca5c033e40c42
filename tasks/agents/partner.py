"""What the travel agents share: how a partner service is spoken to within the time of one call."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import HttpUrl
from pydantic_settings import BaseSettings, SettingsConfigDict

from orchestration import (
    Absent,
    Answer,
    Applied,
    Closed,
    Conflict,
    OutcomeUnknown,
    Pending,
    PermanentFailure,
    Rejected,
    RetryLater,
    Unclear,
)
from orchestration.failpoint import reach
from tasks.agent import Agent, Call
from tasks.agents.meaning import code, understand

LONGEST_WAIT = timedelta(seconds=30)
"""No answer is awaited longer than this, however much time is left."""
SHORTEST_WAIT = timedelta(milliseconds=50)
"""With less than this nothing is sent: the answer could not be used."""
STALENESS = timedelta(seconds=2)
"""How far behind the truth a partner's answer to a question may be."""
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

Read = Callable[[dict[str, Any]], Any]
"""Makes an agent's result of what a partner says about an order."""
Describe = Callable[[Call[Any]], Mapping[str, Any]]
"""Makes an order of a call: always the same one, so that one key always means one request."""


class TravelSettings(BaseSettings):
    """Where the partners are: `ATALAIA_TRAVEL_FLIGHTS_URL` and so on."""

    model_config = SettingsConfigDict(env_prefix="ATALAIA_TRAVEL_")

    flights_url: HttpUrl = HttpUrl("http://127.0.0.1:8801")
    hotels_url: HttpUrl = HttpUrl("http://127.0.0.1:8802")
    cars_url: HttpUrl = HttpUrl("http://127.0.0.1:8803")
    payments_url: HttpUrl = HttpUrl("http://127.0.0.1:8804")
    mail_url: HttpUrl = HttpUrl("http://127.0.0.1:8805")


@cache
def _client(url: str) -> httpx.Client:
    """Open a client on first use, so that a forked worker process never shares a connection."""
    # No proxy from the environment: the partner is reached directly or not at all.
    return httpx.Client(base_url=url, trust_env=False)


class Partner:
    """One partner service. `order` and `cancel` raise an agent's signals, the rest answers."""

    def __init__(self, service: str, read: Read) -> None:
        self._service = service
        self._read = read

    def settles(self, agent: Agent, describe: Describe, *, undoes: bool = True) -> None:
        """Declare for an agent whose action is `order` how a doubt about it ends, and how to undo.

        The probe asks by the order's key. The close has the partner refuse that key from now on.
        The compensation cancels by the same key, whether or not the result was ever learnt.
        """

        @agent.probe(staleness=STALENESS)
        def find(call: Call[Any]) -> Answer:
            return self.find(call, describe(call))

        @agent.close
        def void(call: Call[Any]) -> Answer:
            return self.close(call, describe(call))

        def undo(call: Call[Any], _result: Any) -> None:
            self.cancel(call)

        if undoes:
            agent.compensation(closes_key=True)(undo)

    def order(self, call: Call[Any], body: Mapping[str, Any]) -> Any:
        """Place an order under the call's key and return the agent's result."""
        headers = {
            "Idempotency-Key": call.key,
            # The partner drops the order if it gets to it only after the lease has ended.
            "Atalaia-Expires-In": f"{max(call.time_left.total_seconds(), 0):.3f}",
        }
        response = self._send(call, "POST", "/orders", headers=headers, json=body)
        return self._read(understand(response))

    def cancel(self, call: Call[Any]) -> None:
        """Undo the order that this call compensates, or close its key if there was none."""
        headers = {"Idempotency-Key": call.key}
        understand(self._send(call, "POST", _path(call.action_key, "/cancel"), headers=headers))

    def find(self, call: Call[Any], body: Mapping[str, Any]) -> Answer:
        """Ask what became of the order; another order under its key is a conflict."""
        return self._ask(call, "GET", _path(call.key), body)

    def close(self, call: Call[Any], body: Mapping[str, Any]) -> Answer:
        """Make sure that the order can never take effect, or learn that it has."""
        return self._ask(call, "POST", _path(call.key, "/close"), body)

    def _ask(self, call: Call[Any], method: str, path: str, body: Mapping[str, Any]) -> Answer:
        try:
            response = self._send(call, method, path)
            if (response.status_code, code(response)) == (404, "absent"):
                return Absent()
            return self._answer(understand(response), body)
        except (RetryLater, PermanentFailure, OutcomeUnknown) as signal:
            return Unclear(str(signal))

    def _answer(self, found: dict[str, Any], body: Mapping[str, Any]) -> Answer:
        match found.get("state"):
            case "applied":
                asked = found.get("request", {})
                other = [name for name in body if asked.get(name) != body[name]]
                if other:
                    return Conflict(f"the key stands for an order with other {', '.join(other)}")
                return Applied(self._read(found))
            case "pending":
                return Pending()
            case "rejected":
                return Rejected(str(found.get("error", {}).get("code", "rejected")))
            case "closed" | "cancelled":
                return Closed()
            case state:
                return Unclear(f"the state {state!r} is not known here")

    def _send(self, call: Call[Any], method: str, path: str, **content: Any) -> httpx.Response:
        """Send a request that ends before the call's time does."""
        budget = min(call.time_left * 0.9, LONGEST_WAIT)
        if budget < SHORTEST_WAIT:
            raise RetryLater("no time is left to send anything")
        client = _client(str(getattr(TravelSettings(), f"{self._service}_url")))
        try:
            response = client.request(method, path, timeout=_timeout(budget), **content)
        except NEVER_SENT as error:
            raise RetryLater(f"{self._service} cannot be reached: {error}") from error
        except httpx.TransportError as error:
            name = type(error).__name__
            raise OutcomeUnknown(f"{self._service} gave no answer: {name} {error}") from error
        reach("p6")
        return response


def _timeout(budget: timedelta) -> httpx.Timeout:
    """Divide the budget between the phases of a request, whose time-outs add up."""
    seconds = budget.total_seconds()
    return httpx.Timeout(
        connect=seconds * 0.2, pool=0.1 * seconds, write=0.1 * seconds, read=0.6 * seconds
    )


def _path(key: str, action: str = "") -> str:
    return f"/orders/by-key/{quote(key, safe='')}{action}"
