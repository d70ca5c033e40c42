"""docker-compose.yml and the Dockerfile name only what exists, and open and tell nothing."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from tests.support.deployment import ROOT, queues, unknown, wrong_with

FILE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"
TOP = {"name", "services", "volumes"}
KEYS = {
    "image", "build", "command", "entrypoint", "environment", "depends_on", "healthcheck",
    "restart", "ports", "volumes", "init", "stop_grace_period", "deploy", "cap_drop",
    "security_opt",
}  # fmt: skip
HEALTH = {"test", "interval", "timeout", "retries", "start_period"}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
OURS = [
    "migrate", "worker", "worker-cars", "worker-flights", "worker-hotels", "worker-mail",
    "worker-payments", "supervisor", "beat", "web", "flower",
]  # fmt: skip
ONCE = {"migrate"}
DURATION = re.compile(r"(\d+m)?(\d+s)?")
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|AUTH|KEY")
FROM_OUTSIDE = re.compile(r"\$\{\w+:\?[^}]+\}")


@cache
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return document


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def command(service: dict[str, Any]) -> list[str]:
    (entrypoint,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$', DOCKERFILE.read_text(), re.MULTILINE)
    return [*service.get("entrypoint", [entrypoint]), *service["command"]]


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a document."""
    if isinstance(value, dict):
        for one in value.values():
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)
    else:
        yield str(value)


# --- the file itself -----------------------------------------------------------------------------


def test_every_role_is_there() -> None:
    assert sorted(services()) == sorted(["postgres", "broker", *OURS])
    assert services()["beat"]["deploy"] == {"replicas": 2}


def test_only_known_keys_are_used() -> None:
    assert {key for key in compose() if not key.startswith("x-")} == TOP
    assert {key for service in services().values() for key in service} <= KEYS
    for service in services().values():
        assert set(service.get("healthcheck", {})) <= HEALTH
        # With both, a stranger's image of that name could be fetched.
        assert ("image" in service) != ("build" in service)


def test_what_is_waited_for_is_there_and_can_come_about() -> None:
    for name, service in services().items():
        for other, how in service.get("depends_on", {}).items():
            assert set(how) == {"condition"}
            assert how["condition"] in CONDITIONS, name
            assert (how["condition"] == "service_healthy") <= ("healthcheck" in services()[other])
            assert (how["condition"] == "service_completed_successfully") == (other in ONCE)


def test_all_that_runs_is_looked_after_and_started_again() -> None:
    for name, service in services().items():
        assert ("healthcheck" in service) == (name not in ONCE), name
        assert service["restart"] == ("no" if name in ONCE else "unless-stopped"), name


def test_times_are_written_as_compose_reads_them() -> None:
    for service in services().values():
        health = service.get("healthcheck", {})
        times = [health.get(key) for key in ("interval", "timeout", "start_period")]
        for time in [*times, service.get("stop_grace_period")]:
            assert time is None or (time and DURATION.fullmatch(time)), time


def test_volumes_are_declared() -> None:
    used = {one.partition(":")[0] for s in services().values() for one in s.get("volumes", [])}
    assert used == set(compose()["volumes"])


# --- what is kept in ------------------------------------------------------------------------------


def test_ports_are_open_on_this_machine_only() -> None:
    opened = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert set(opened) == {"web", "flower"}
    for port in (port for ports in opened.values() for port in ports):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


def test_no_secret_is_in_the_file() -> None:
    for name, service in services().items():
        for variable, value in service.get("environment", {}).items():
            if SECRET.search(variable):
                assert FROM_OUTSIDE.fullmatch(value), f"{name}: {variable}"
    for text in texts(compose()):
        for password in re.findall(r"//[^/:@]*:(.*?)@", text):
            assert FROM_OUTSIDE.fullmatch(password), text


def test_a_value_from_outside_is_required_and_documented() -> None:
    told = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    for text in texts(compose()):
        for name, rest in re.findall(r"(?<!\$)\$\{?(\w+)(:\?)?", text):
            assert rest == ":?", f"${name} may be left out"
            assert f"`{name}`" in told, f"{name} is not in docs/operations.md"


def test_flower_wants_a_password_and_only_shows() -> None:
    assert FROM_OUTSIDE.fullmatch(services()["flower"]["environment"]["FLOWER_BASIC_AUTH"])
    assert "--read_only=True" in services()["flower"]["command"]


def test_our_roles_may_do_no_more_than_they_need() -> None:
    for name in OURS:
        assert services()[name]["cap_drop"] == ["ALL"]
        assert services()[name]["security_opt"] == ["no-new-privileges:true"]


# --- what it starts -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_every_command_and_option_exists(name: str) -> None:
    service = services()[name]
    assert list(wrong_with(command(service))) == []
    health = service.get("healthcheck", {"test": ["CMD", "python", "-m", "tasks.alive"]})["test"]
    assert health[0] == "CMD"
    assert list(wrong_with(health[1:])) == []


@pytest.mark.parametrize(
    "words",
    [
        ["atalaia", "works"],
        ["atalaia", "worker", "--que", "cars"],
        ["atalaia", "worker", "--queue", "ships"],
        ["atalaia", "web", "--port", "many"],
        ["celery", "-A", "task.app", "flower"],
        ["celery", "-A", "tasks.app", "flowers"],
        ["celery", "-A", "tasks.app", "flower", "--readonly=True"],
        ["python", "-m", "tasks.live"],
        ["python", "-c", "import htpx; htpx.get('')"],
        ["bash", "-c", "true"],
    ],
)
def test_what_does_not_exist_is_noticed(words: list[str]) -> None:
    assert list(wrong_with(words))


def test_every_setting_exists() -> None:
    used = [name for service in services().values() for name in service.get("environment", {})]
    assert unknown(used) == []
    assert unknown(["ATALAIA_BROKER", "ATALAIA_HOME", "POSTGRES_DB"]) == ["ATALAIA_BROKER"]
    for name in OURS:
        assert {"ATALAIA_DATABASE_URL", "ATALAIA_BROKER_URL"} <= set(
            services()[name]["environment"]
        )


def test_the_addresses_are_those_of_the_services() -> None:
    for name in OURS:
        for variable in ("ATALAIA_DATABASE_URL", "ATALAIA_BROKER_URL"):
            host = re.sub(r".*@", "", services()[name]["environment"][variable]).partition(":")[0]
            assert host in services()


def test_there_is_a_worker_for_each_queue_of_agents_and_one_that_can_be_scaled() -> None:
    of_agents = {name for name in queues() if not name.endswith(".recovery")}
    own = {name.removeprefix("worker-") for name in services() if name.startswith("worker-")}
    assert own == of_agents - {"atalaia", "supervisor"}
    assert all(services()[f"worker-{name}"]["command"][-1] == name for name in own)
    assert services()["worker"]["command"] == ["worker"]
    for key in ("ports", "container_name", "hostname"):  # Which two of them could not share.
        assert key not in services()["worker"]


# --- the image ------------------------------------------------------------------------------------


def test_the_image_is_small_and_runs_as_nobody_in_particular() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(stages) == 2
    assert all(stage.endswith("-slim") for stage in stages)
    last = text.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (\S+)", last, re.MULTILINE) == ["atalaia"]
    assert last.index("USER atalaia") < last.index("ENTRYPOINT")
    assert re.findall(r"^(?:RUN|COPY)(?!.*--from=build).*(?:pip|apt|\. )", last, re.MULTILINE) == []
    assert "--require-hashes" in text


def test_all_that_is_installed_gets_into_the_image() -> None:
    let_in = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!").rstrip("/") for line in let_in if line.startswith("!")}
    needed = {"models", "orchestration", "tasks", "web", "migrations", "examples"}
    files = {"celeryconfig.py", "pyproject.toml", "requirements.txt", "README.md", "LICENSE"}
    assert allowed == needed | files
    assert all((ROOT / name).exists() for name in allowed)
