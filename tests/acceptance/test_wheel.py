"""The wheel, alone in a fresh environment and an empty folder, checks and runs."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def atalaia(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The console command of a new environment that has the wheel and the locked dependencies.

    The dependencies are those of this environment, found by their folder; the project itself is
    installed here in a way that does not come along with it.
    """
    home = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(home),
        str(ROOT),
    ]
    subprocess.run(build, check=True)
    (wheel,) = home.glob("atalaia-*.whl")
    fresh = home / "env"
    venv.create(fresh, with_pip=False)
    python = fresh / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = fresh / "lib" / version / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)],
        check=True,
    )
    return str(fresh / "bin" / "atalaia")


def sources_in(home: Path) -> Path:
    """Return a copy of the sources, so that no build leaves anything in this tree."""
    copy = home / "sources"
    copy.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("models", "orchestration", "tasks", "web", "migrations", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("pyproject.toml", "celeryconfig.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment that says nothing about the project."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ATALAIA_", "PYTHON"))
    } | {"HOME": str(tmp_path)}


def test_the_wheel_checks_in_an_empty_folder(
    atalaia: str, env: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [atalaia, "check"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def up(atalaia: str, env: dict[str, str], tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """``atalaia up`` in an empty folder, ended with SIGTERM."""
    ports = {"ATALAIA_WEB_PORT": "0", "ATALAIA_FLOWER_PORT": "0"}
    with (tmp_path / "up.log").open("w") as log:
        process = subprocess.Popen(
            [atalaia, "up"], cwd=tmp_path, env=env | ports, stdout=log, stderr=log, text=True
        )
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM


def test_the_wheel_comes_up_in_an_empty_folder(
    up: "subprocess.Popen[str]", atalaia: str, env: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "up.log"
    eventually(
        lambda: up.poll() is None and "http://127.0.0.1:" in log.read_text(),
        within=60,
        describe=lambda: f"it says where it is: {log.read_text()}",
    )
    listed = subprocess.run(
        [atalaia, "list", "--json"], cwd=tmp_path, env=env, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert listed.stdout.strip() == "[]"
