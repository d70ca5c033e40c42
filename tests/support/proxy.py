"""A TCP proxy that can be slow, silent or gone: the network between a program and its services."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK = 65536


class Proxy:
    """Forwards a port of 127.0.0.1 to another. Safe to use from any thread.

    ``slow`` delays every chunk, ``freeze`` keeps connections open and forwards nothing (half-open),
    ``drop`` closes them all; ``heal`` undoes the first two.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay = 0.0
        self.thawed = threading.Event()
        self.thawed.set()
        self.closed = threading.Event()
        self.pairs: set[tuple[socket.socket, socket.socket]] = set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed.set()
        self.thawed.set()
        self.listener.close()
        self.drop()

    def slow(self, seconds: float) -> None:
        self.delay = seconds

    def freeze(self) -> None:
        self.thawed.clear()

    def drop(self) -> None:
        for pair in list(self.pairs):
            self._part(pair)

    def heal(self) -> None:
        """Forward at full speed again; what was frozen is dropped, as a network would after all."""
        self.delay = 0.0
        if not self.thawed.is_set():
            self.drop()
            self.thawed.set()

    def _accept(self) -> None:
        while not self.closed.is_set():
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            pair = (client, server)
            self.pairs.add(pair)
            for source, sink in (pair, pair[::-1]):
                threading.Thread(target=self._pump, args=(source, sink, pair), daemon=True).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]
    ) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK):
                self.thawed.wait()
                if self.delay:
                    self.closed.wait(self.delay)
                sink.sendall(chunk)
        self._part(pair)

    def _part(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self.pairs.discard(pair)
        for end in pair:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
