"""Dropping a connection without a reply, which no web framework offers.

A lost reply must look to the caller as it does in life: the connection ends and nothing was said.
"""

from asyncio import Transport
from typing import Any, cast

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

EXTENSION = "travel.transport"


class DroppableConnections:
    """The outermost ASGI layer: makes the connection under a request reachable from its scope."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with the transport in the scope, as far as the server has one."""
        # uvicorn's `send` is a bound method of the cycle that owns the transport.
        cycle = cast("Any", getattr(send, "__self__", None))
        if scope["type"] == "http" and cycle is not None:
            scope[EXTENSION] = cycle.transport
        await self._app(scope, receive, send)


class NoReply(Response):
    """In place of a response: the connection is cut, and the caller never hears."""

    async def __call__(self, scope: Scope, receive: Receive, _send: Send) -> None:
        """Cut the connection and return once the server has noticed."""
        transport = cast("Transport", scope[EXTENSION])
        transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass
