"""Each web app is run by the command that its docstring gives, and takes an order."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from examples.webapps import fastapi_app, flask_app
from tests.support.partners import free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
APPS = ROOT / "examples/webapps"
DJANGO = (APPS / "django_app.py").read_text(encoding="utf-8")
DOCUMENT = (ROOT / "docs/web-apps.md").read_text(encoding="utf-8")
PORT = {"fastapi": "--port={}", "flask": "--port={}", "django": "127.0.0.1:{}"}
TOLD = {"fastapi": fastapi_app.__doc__, "flask": flask_app.__doc__, "django": DJANGO}


def command(app: str, port: int) -> list[str]:
    """Return the command that a docstring gives, for this interpreter and a port of its own."""
    words = re.findall(r"\n(uvicorn|flask|python) (.*)``", TOLD[app] or "")
    ((program, arguments),) = words
    module = [] if program == "python" else ["-m", program]
    more = ["--noreload"] if app == "django" else []
    return [sys.executable, *module, *arguments.split(), PORT[app].format(port), *more]


@contextmanager
def served(app: str, environment: dict[str, str], log: Path) -> Iterator[str]:
    port = free_port()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(app, port), cwd=ROOT, env=environment, stdout=out, stderr=out
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def answered(url: str) -> httpx.Response | None:
    try:
        return httpx.get(f"{url}/orders/1")
    except httpx.TransportError:
        return None


def test_what_the_document_shows_is_taken_from_the_apps_that_run_here() -> None:
    shown = re.findall(r"(?ms)^```python\n(.*?)^```", DOCUMENT)
    remark = re.compile(r'^ +""".*"""\n', re.MULTILINE)
    apps = [remark.sub("", (APPS / f"{app}_app.py").read_text("utf-8")) for app in TOLD]
    assert len(shown) == 5
    assert [code for code in shown if not any(code in app for app in apps)] == []


@pytest.mark.slow
@pytest.mark.parametrize("app", list(TOLD))
def test_a_web_app_runs_and_takes_an_order(
    app: str, sqlite_template: Path, valkey_url: str, tmp_path: Path
) -> None:
    (tmp_path / "atalaia.db").write_bytes(sqlite_template.read_bytes())
    environment = os.environ | {
        "ATALAIA_HOME": str(tmp_path),
        "ATALAIA_BROKER_URL": valkey_url,
        "ATALAIA_WORKFLOWS": "examples.webapps.shop",
        "ATALAIA_AGENTS": "examples.webapps.shop",
    }
    environment.pop("ATALAIA_DATABASE_URL", None)
    log = tmp_path / "log"
    with served(app, environment, log) as url:
        first = eventually(lambda: answered(url), within=30, describe=log.read_text)
        assert first is not None
        assert first.status_code == 404, log.read_text()
        placed = httpx.post(f"{url}/orders", json={"number": 1, "article": "lamp", "amount": 5})
        assert placed.status_code == 201, log.read_text()
        assert httpx.get(f"{url}/orders/1").json() == {
            "number": 1,
            "state": "running",
            "results": {},
        }
