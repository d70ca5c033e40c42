"""One partner service over HTTP: orders under idempotency keys, look-up, close and cancel by key.

The promises: one key makes at most one effect, the first result is the result, and a closed key
never takes effect. The switches (`PUT /faults`) break or delay everything else, never the books.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp

from examples.travel.connection import DroppableConnections, NoReply
from examples.travel.faults import (
    NO_TIME,
    Cached500,
    Down,
    FaultBoard,
    Faults,
    ForgetsKeys,
    Hold,
    InFlight409,
    LaggingReads,
    LostReply,
    Operation,
    Slow,
    SoldOut,
    Throttle429,
)
from examples.travel.ledger import Ledger, ago, now
from examples.travel.wire import Order, Reply, refusal

HungUp = Callable[[], Awaitable[object]]
"""Returns once the caller is gone."""
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]
Lifetime = Annotated[
    float | None, Header(alias="Atalaia-Expires-In", ge=0, le=86_400, allow_inf_nan=False)
]


class RefusedError(Exception):
    """The request is answered at once with the reply given."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply.body))
        self.reply = reply


class DroppedError(Exception):
    """The connection ends without a reply."""


@dataclass(frozen=True, eq=False)
class Held:
    """A reply that is being held: for whom, and how to learn that the caller hung up."""

    about: dict[str, str]
    hung_up: HungUp


class Partner:
    """What a partner does, apart from HTTP. All calls come from one event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.board = FaultBoard(ledger.stored_switches(), ledger.store_switches)
        self.held: list[Held] = []
        self._in_flight: dict[str, str] = {}
        self._released = asyncio.Event()
        self._changed = asyncio.Event()

    async def order(
        self, key: str, order: Order, lifetime: timedelta | None, hung_up: HungUp
    ) -> Reply:
        """Make the effect of an order once, within its lifetime if it has one."""
        arrived = time.monotonic()
        self._enter("order", key)
        if self.board.strikes(InFlight409, "order"):
            raise RefusedError(_in_flight())
        self._maybe_forget(key, "order")
        slow = self._slowness("order")
        reply = self.ledger.recall(key, order.fingerprint())
        if reply is None:
            with self._flight(key):
                await asyncio.sleep(slow.before.total_seconds())
                if lifetime is not None and time.monotonic() - arrived >= lifetime.total_seconds():
                    raise RefusedError(refusal(408, "request_expired", "this came too late"))
                reply = self._execute(key, order)
        held = Held({"key": key, "saga": order.saga, "step": order.step}, hung_up)
        await self._finish("order", reply, slow, held)
        return reply

    def _execute(self, key: str, order: Order) -> Reply:
        broken = self.board.strikes(Cached500, "order")
        error_500 = None if broken is None else ("made" if broken.effect else "not_made")
        refuse = self.board.strikes(SoldOut, "order") is not None
        return self.ledger.execute(key, order, refuse=refuse, error_500=error_500)

    async def find(self, key: str) -> Reply:
        """Say what became of a key: applied, rejected, pending, closed, cancelled, or absent."""
        self._enter("lookup", key)
        self._maybe_forget(key, "lookup")
        lag = self.board.strikes(LaggingReads, "lookup")
        staleness = NO_TIME if lag is None else lag.staleness
        slow = self._slowness("lookup")
        await asyncio.sleep(slow.before.total_seconds())
        taken_at = self._in_flight.get(key)
        if taken_at is not None and taken_at <= ago(staleness):
            reply = Reply(202, {"state": "pending"})
        else:
            reply = self.ledger.find(key, staleness=staleness)
        await self._finish("lookup", reply, slow)
        return reply

    async def close(self, key: str) -> Reply:
        """Close a key for good, or say that it was applied."""
        self._enter("close", key)
        slow = self._slowness("close")
        await asyncio.sleep(slow.before.total_seconds())
        reply = self.ledger.close(key)
        await self._finish("close", reply, slow)
        return reply

    async def cancel(self, key: str, cancel_key: str, hung_up: HungUp) -> Reply:
        """Undo the effect of a key if it has one, and close the key."""
        self._enter("cancel", key)
        slow = self._slowness("cancel")
        await asyncio.sleep(slow.before.total_seconds())
        reply = self.ledger.cancel(key, cancel_key)
        held = Held({"key": key, "cancel_key": cancel_key}, hung_up)
        await self._finish("cancel", reply, slow, held)
        return reply

    def switch(self, faults: Faults) -> None:
        """Set all switches; replies that are being held go out."""
        self.board.replace(faults)
        self._released.set()
        self._released = asyncio.Event()

    async def wait_for_hold(self, wait: timedelta) -> list[dict[str, str]]:
        """Return the replies being held; if there is none, wait this long for one."""
        try:
            async with asyncio.timeout(wait.total_seconds()):
                while not self.held:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return [held.about for held in self.held]

    def _enter(self, operation: Operation, key: str) -> None:
        down = self.board.strikes(Down, operation)
        if down is not None:
            if down.mode == "drop":
                raise DroppedError
            raise RefusedError(refusal(503, "unavailable", "out of service; nothing was done"))
        if operation == "order":
            self.ledger.count_delivery(key)
        # Rate limits come before the key is looked at, so a 429 is never a replay.
        throttle = self.board.strikes(Throttle429, operation)
        if throttle is not None:
            seconds = f"{throttle.retry_after.total_seconds():g}"
            raise RefusedError(refusal(429, "throttled", "too many requests", Retry_After=seconds))

    def _maybe_forget(self, key: str, operation: Operation) -> None:
        forgets = self.board.strikes(ForgetsKeys, operation)
        if forgets is not None:
            self.ledger.forget(key, older_than=forgets.after)

    @contextmanager
    def _flight(self, key: str) -> Iterator[None]:
        if key in self._in_flight:
            raise RefusedError(_in_flight())
        self._in_flight[key] = now()
        try:
            yield
        finally:
            del self._in_flight[key]

    def _slowness(self, operation: Operation) -> Slow:
        return self.board.strikes(Slow, operation) or Slow()

    async def _finish(
        self, operation: Operation, reply: Reply, slow: Slow, held: Held | None = None
    ) -> None:
        await asyncio.sleep(slow.after.total_seconds())
        if held is not None and reply.fresh:
            await self._hold(operation, held)
        if self.board.strikes(LostReply, operation):
            raise DroppedError

    async def _hold(self, operation: Operation, held: Held) -> None:
        hold = self.board.strikes(Hold, operation)
        if hold is None:
            return
        held.about["held_at"] = now()
        self.held.append(held)
        self._changed.set()
        self._changed = asyncio.Event()
        ends = [
            asyncio.ensure_future(self._released.wait()),
            asyncio.ensure_future(held.hung_up()),
        ]
        try:
            await asyncio.wait(
                ends, timeout=hold.hold.total_seconds(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self.held.remove(held)
            for end in ends:
                end.cancel()


def _in_flight() -> Reply:
    return refusal(409, "in_flight", "a request with this key is being worked on")


def _key(key: str | None) -> str:
    if key is None:
        raise RefusedError(refusal(400, "key_missing", "the header Idempotency-Key is missing"))
    return key


def _send(reply: Reply) -> JSONResponse:
    return JSONResponse(reply.body, status_code=reply.status, headers=reply.headers)


def create_app(ledger: Ledger) -> ASGIApp:
    """Build the HTTP face of one partner; the ledger is closed when the server stops."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        ledger.close_file()

    app = FastAPI(title=f"Travel partner: {ledger.service.name}", lifespan=lifespan)
    partner = Partner(ledger)
    _add_orders(app, partner)
    _add_books_and_switches(app, partner)
    _add_refusals(app)
    return DroppableConnections(app)


def _add_orders(app: FastAPI, partner: Partner) -> None:
    charges = partner.ledger.service.charges

    @app.post("/orders", status_code=201)
    async def place(
        request: Request, order: Order, key: Key = None, lifetime: Lifetime = None
    ) -> Response:
        if charges and (order.amount is None or order.currency is None):
            raise RefusedError(refusal(400, "invalid_request", "amount and currency are needed"))
        lives = None if lifetime is None else timedelta(seconds=lifetime)
        return _send(await partner.order(_key(key), order, lives, request.receive))

    @app.get("/orders/by-key/{key}")
    async def find(key: str) -> Response:
        return _send(await partner.find(key))

    @app.post("/orders/by-key/{key}/close")
    async def close(key: str) -> Response:
        return _send(await partner.close(key))

    @app.post("/orders/by-key/{key}/cancel")
    async def cancel(request: Request, key: str, cancel_key: Key = None) -> Response:
        return _send(await partner.cancel(key, _key(cancel_key), request.receive))


def _add_books_and_switches(app: FastAPI, partner: Partner) -> None:
    def switches() -> dict[str, Any]:
        faults = partner.board.faults.model_dump(mode="json", exclude_none=True)
        return {"faults": faults, "struck": partner.board.struck()}

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"service": partner.ledger.service.name}

    @app.get("/books")
    async def books() -> dict[str, Any]:
        return partner.ledger.books()

    @app.get("/faults")
    async def get_faults() -> dict[str, Any]:
        return switches()

    @app.put("/faults")
    async def put_faults(faults: Faults) -> dict[str, Any]:
        partner.switch(faults)
        return switches()

    @app.get("/holds")
    async def holds(wait: Annotated[float, Query(ge=0, le=60)] = 0) -> list[dict[str, str]]:
        return await partner.wait_for_hold(timedelta(seconds=wait))


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(RefusedError)
    async def refused(_request: Request, error: RefusedError) -> Response:
        return _send(error.reply)

    @app.exception_handler(DroppedError)
    async def dropped(_request: Request, _error: DroppedError) -> Response:
        return NoReply()

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
            for problem in error.errors()
        )
        return _send(refusal(400, "invalid_request", problems))
