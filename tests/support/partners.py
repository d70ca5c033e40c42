"""Partner services as real processes on free ports of 127.0.0.1, for tests."""

import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
READY_WITHIN = 20.0  # seconds


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class PartnerProcess:
    """One partner; `start` after `kill` brings it back on the same port with the same books."""

    service: str
    data: Path
    stock: Mapping[str, int] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        command = [sys.executable, "-m", "examples.travel.serve", self.service]
        command += ["--port", str(self.port), "--data", str(self.data)]
        for item, units in self.stock.items():
            command += ["--stock", f"{item}={units}"]
        self.process = subprocess.Popen(command, cwd=ROOT)
        self.http = httpx.Client(base_url=self.url, timeout=20, trust_env=False)
        self._wait_until_ready(self.process)
        return self

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        eventually(
            lambda: self._is_ready(process),
            within=READY_WITHIN,
            describe=f"{self.service} answers on port {self.port}",
        )

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{self.service} ended at once with {process.returncode}")
        try:
            answer = self.http.get("/healthz")
        except httpx.TransportError:
            return False
        if answer.json() != {"service": self.service}:
            raise RuntimeError(f"port {self.port} was taken by somebody else")
        return True

    def kill(self) -> None:
        """SIGKILL, as a power cut would do it."""
        if self.process is not None:
            self.http.close()
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def books(self) -> dict[str, Any]:
        books: dict[str, Any] = self.http.get("/books").raise_for_status().json()
        return books

    def switch(self, **faults: dict[str, Any]) -> None:
        """Set all switches; those not named are off."""
        self.http.put("/faults", json=faults).raise_for_status()

    def wait_for_hold(self) -> dict[str, str]:
        """Wait for a reply that the partner holds after its effect, and return the first."""
        holds: list[dict[str, str]] = self.http.get("/holds", params={"wait": 15}).json()
        if not holds:
            raise TimeoutError(f"{self.service} held no reply within 15 s")
        return holds[0]
