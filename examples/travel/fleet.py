"""The five partners as processes, with their switches and their books within reach."""

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from examples.travel.books import Books
from examples.travel.wire import SERVICES
from tasks.processes import Child, free_ports, stop, wait_until_ready

READY_WITHIN_SECONDS = 30.0
STOP_WITHIN_SECONDS = 3.0


class Fleet:
    """Every partner on a free port; ``stock`` gives the units of single items by service."""

    def __init__(self, home: Path, stock: Mapping[str, Mapping[str, int]]) -> None:
        ports = free_ports(len(SERVICES))
        self.urls = {
            name: f"http://127.0.0.1:{port}"
            for name, port in zip(SERVICES, ports, strict=True)
        }  # fmt: skip
        self.http = httpx.Client(trust_env=False, timeout=10)
        self.children = [
            self._child(home, name, port, stock.get(name, {}))
            for name, port in zip(SERVICES, ports, strict=True)
        ]

    def _child(self, home: Path, name: str, port: int, stock: Mapping[str, int]) -> Child:
        command = [sys.executable, "-P", "-m", "examples.travel.serve", name, "--port", str(port)]
        command += ["--data", str(home / "partners")]
        for item, units in stock.items():
            command += ["--stock", f"{item}={units}"]
        log = home / "logs" / f"partner-{name}.log"
        return Child(f"partner {name}", command, log=log, ready=lambda _: self._answers(name))

    def _answers(self, name: str) -> bool:
        try:
            answer = self.http.get(f"{self.urls[name]}/healthz", timeout=1)
        except httpx.TransportError:
            return False
        return bool(answer.json() == {"service": name})

    @property
    def environment(self) -> dict[str, str]:
        """Return what tells the travel agents where the partners are."""
        return {f"ATALAIA_TRAVEL_{name.upper()}_URL": url for name, url in self.urls.items()}

    def __enter__(self) -> Self:
        """Start the partners, without waiting for them."""
        for child in self.children:
            child.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the partners."""
        stop(self.children, time.monotonic() + STOP_WITHIN_SECONDS)
        self.http.close()

    def wait_until_ready(self) -> None:
        """Wait for all of them; raise ``StartError``."""
        wait_until_ready(self.children, READY_WITHIN_SECONDS)

    def tend(self) -> Iterator[str]:
        """Start again what has died; yield a line for each."""
        for child in self.children:
            if line := child.tend():
                yield line

    def switch(self, name: str, faults: Mapping[str, Any]) -> None:
        """Set all switches of one partner; what is not named is off."""
        self.http.put(f"{self.urls[name]}/faults", json=faults).raise_for_status()

    def holds(self, name: str) -> list[dict[str, str]]:
        """Return the replies that a partner holds back after it has done what was asked."""
        held: list[dict[str, str]] = self.http.get(f"{self.urls[name]}/holds").json()
        return held

    def books(self) -> list[Books]:
        """Return what each partner has in its books."""
        return [
            self.http.get(f"{url}/books").raise_for_status().json() for url in self.urls.values()
        ]
