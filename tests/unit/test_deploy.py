"""The units of systemd start only what exists, under a user of their own that may do little."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration.definition import DEFAULT_TIMEOUT
from tests.support.deployment import ROOT, unknown, wrong_with

FOLDER = ROOT / "deploy/systemd"
COMMON = FOLDER / "atalaia-.service.d/common.conf"
SERVICES = sorted(FOLDER.glob("*.service"))
PROGRAMS = "/opt/atalaia/bin"
KEEPS_IN = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "CapabilityBoundingSet": "",
    "User": "atalaia",
}


def lines(path: Path) -> list[tuple[str, str]]:
    """Return the settings of a unit in their order; some may come more than once."""
    return re.findall(r"^(\w+)=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)


def only(path: Path, name: str) -> str:
    (value,) = [value for key, value in lines(path) if key == name]
    return value


def test_every_role_has_a_unit_of_its_own() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {
        "atalaia.target",
        "atalaia.env.example",
        "atalaia-.service.d",
        "atalaia-beat.service",
        "atalaia-flower.service",
        "atalaia-migrate.service",
        "atalaia-supervisor.service",
        "atalaia-web.service",
        "atalaia-worker@.service",
    }


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_every_command_exists_and_is_started_again(path: Path) -> None:
    words = only(path, "ExecStart").split()
    assert words[0].startswith(f"{PROGRAMS}/")
    assert list(wrong_with(words)) == []
    assert only(path, "Restart") == ("on-failure" if "migrate" in path.name else "always")


def test_all_of_them_are_kept_in() -> None:
    settings = dict(lines(COMMON))
    assert settings.items() >= KEEPS_IN.items()
    below = {name for path in SERVICES for name, _ in lines(path)}
    assert below & set(settings) <= {"Environment"}, "what is common stands above the units"


def test_a_worker_may_finish_the_longest_step_by_default() -> None:
    """SIGTERM goes to the parent alone, and what is left is killed only after a step's time."""
    assert dict(lines(COMMON))["KillMode"] == "mixed"
    seconds = int(only(FOLDER / "atalaia-worker@.service", "TimeoutStopSec"))
    assert seconds > DEFAULT_TIMEOUT.total_seconds()


def test_flower_and_the_web_app_are_for_this_machine_only() -> None:
    assert "--host 127.0.0.1 " in only(FOLDER / "atalaia-web.service", "ExecStart")
    flower = only(FOLDER / "atalaia-flower.service", "ExecStart")
    assert "--address=127.0.0.1 " in flower
    assert "--read_only=True" in flower


def test_the_example_of_an_environment_holds_settings_and_no_secret() -> None:
    text = (FOLDER / "atalaia.env.example").read_text(encoding="utf-8")
    given = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.MULTILINE))
    assert unknown([*given]) == []
    assert {"ATALAIA_DATABASE_URL", "ATALAIA_BROKER_URL", "FLOWER_BASIC_AUTH"} <= set(given)
    for name in ("ATALAIA_DATABASE_URL", "ATALAIA_BROKER_URL", "FLOWER_BASIC_AUTH"):
        assert given[name] == ""


def test_the_operator_is_told_of_every_unit() -> None:
    told = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    for path in [*SERVICES, FOLDER / "atalaia.target"]:
        assert path.name in told or path.name.replace("@.", "@payments.") in told, path.name


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="NOT TESTED: there is no systemd")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    units = tmp_path / "units"
    shutil.copytree(FOLDER, units)
    here = Path(sys.executable).parent
    for path in units.glob("*.service"):
        path.write_text(path.read_text().replace(PROGRAMS, str(here)))
    found = [str(path) for path in units.iterdir() if path.suffix in {".service", ".target"}]
    done = subprocess.run(
        ["systemd-analyze", "verify", *found],
        env={"SYSTEMD_UNIT_PATH": f"{units}:", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "atalaia" in line]
    assert (done.returncode, ours) == (0, []), done.stderr
