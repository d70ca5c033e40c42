"""The stack as a process manager: real processes, killed and looked for."""

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from orchestration import views
from orchestration.database import open_engine
from orchestration.store import Store
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
UP_WITHIN = 60
STOPPED_WITHIN = 15
ROLES = ("worker1", "supervisor", "flower", "web")

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@dataclass
class Up:
    """One `up` in a process of its own; ``names`` finds the children by what they were told."""

    home: Path
    more: dict[str, str]
    started: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self.started is not None
        return self.started

    def start(self) -> "Up":
        code = "from tasks.stack import up; from orchestration.settings import settings as s"
        with (self.home.parent / "up.out").open("ab") as out:
            self.started = subprocess.Popen(
                [sys.executable, "-u", "-c", f"{code}; up(s())"],
                cwd=ROOT,
                env=self.environment,
                stdout=out,
                stderr=out,
            )
        return self

    @property
    def environment(self) -> dict[str, str]:
        rest = {name: v for name, v in os.environ.items() if not name.startswith("ATALAIA_")}
        module = "tests.support.sleeper"
        return rest | {
            "ATALAIA_HOME": str(self.home),
            "ATALAIA_WEB_PORT": "0",
            "ATALAIA_FLOWER_PORT": "0",
            "ATALAIA_AGENTS": module,
            "ATALAIA_WORKFLOWS": module,
        } | self.more  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        return (self.home.parent / "up.out").read_text()

    def until(self, words: str) -> "Up":
        def there() -> bool:
            assert self.process.poll() is None or words in self.said, self.said
            return words in self.said

        eventually(there, within=UP_WITHIN, describe=lambda: f"{words!r} in:\n{self.said}")
        return self

    def address(self, name: str) -> str:
        line = next(line for line in self.said.splitlines() if line.startswith(name))
        return line.split()[1].removesuffix("/docs")

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def child(self, *words: str) -> psutil.Process:
        return next(
            process
            for process in psutil.Process(self.pid).children()
            if all(any(word in part for part in process.cmdline()) for word in words)
        )

    def wait(self) -> int:
        return self.process.wait(STOPPED_WITHIN)

    def end(self) -> None:
        if self.started is not None and self.started.poll() is None:
            self.started.terminate()
            self.started.wait(STOPPED_WITHIN)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    up = Up(tmp_path / "home", {})
    yield up
    up.end()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One stack for all tests that leave it as they found it: running."""
    up = Up(tmp_path_factory.mktemp("running") / "home", {})
    yield up.start().until("ready")
    up.end()


def all_gone(family: list[psutil.Process]) -> None:
    def none_left() -> bool:
        return not any(runs(process) for process in family)

    told = f"all of {[process.pid for process in family]} are gone"
    eventually(none_left, within=STOPPED_WITHIN, describe=told)


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def open_store(up: Up) -> Store:
    return Store(open_engine(f"sqlite:///{up.home / 'atalaia.db'}"))


def sleep_for(up: Up, seconds: float) -> str:
    body = {"workflow": "nap", "input": {"seconds": seconds}}
    answer = httpx.post(f"{up.address('web')}/sagas", json=body, trust_env=False)
    saga: str = answer.raise_for_status().json()["id"]
    return saga


def state_of(up: Up, saga: str) -> str:
    shown = httpx.get(f"{up.address('web')}/sagas/{saga}", trust_env=False)
    state: str = shown.raise_for_status().json()["state"]
    return state


def completes(up: Up, saga: str) -> None:
    eventually(lambda: state_of(up, saga) == "completed", within=20, describe="the saga completes")


def test_all_roles_start_work_and_stop_on_ctrl_c(up: Up) -> None:
    up.start().until("ready")
    family = up.family()
    logs = {path.stem for path in (up.home / "logs").iterdir()}
    assert logs == set(ROLES)
    completes(up, sleep_for(up, 0.01))

    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 0
    all_gone(family)

    up.start().until("ready")  # and at once again, in the same home


def test_sigterm_stops_everything_also_while_an_agent_is_at_work(up: Up) -> None:
    up.start().until("ready")
    sleep_for(up, 60)
    log = up.home / "logs" / "worker1.log"
    eventually(lambda: "sleeper.sleep" in log.read_text(), within=10, describe="it is at work")
    family = up.family()
    up.process.terminate()
    assert up.wait() == 128 + signal.SIGTERM
    all_gone(family)


def test_a_second_ctrl_c_stops_everything_at_once(up: Up) -> None:
    up.start().until("ready")
    sleep_for(up, 60)
    log = up.home / "logs" / "worker1.log"
    eventually(lambda: "sleeper.sleep" in log.read_text(), within=10, describe="it is at work")
    family = up.family()
    web = up.child("tasks.serve")
    up.process.send_signal(signal.SIGINT)
    eventually(lambda: not runs(web), within=5, describe="the web app has stopped")
    up.process.send_signal(signal.SIGINT)
    up.process.wait(4)
    all_gone(family)


def test_everything_ends_when_up_itself_is_killed(up: Up) -> None:
    if sys.platform != "linux":
        pytest.skip("NOT TESTED: only Linux ends children with their parent")
    up.start().until("ready")
    family = up.family()
    up.process.kill()
    all_gone(family)


@pytest.mark.parametrize("name", ROLES)
def test_a_killed_child_is_started_again(running: Up, name: str) -> None:
    word = {"worker1": "worker1@%h", "supervisor": "supervisor@%h", "web": "tasks.serve"}
    victim = running.child(word.get(name, name))
    group = [victim, *victim.children()]
    victim.kill()
    running.until(f"{name} has ended (SIGKILL)").until(f"{name} was started again")
    assert running.child(word.get(name, name)).pid != victim.pid
    all_gone(group)  # no pool process outlives its worker

    def works() -> bool:
        try:
            saga = sleep_for(running, 0.01)
        except httpx.TransportError:
            return False
        completes(running, saga)
        return True

    eventually(works, within=20, describe="a saga completes afterwards")


def test_beat_ends_with_the_supervisor_that_rings_and_comes_back_with_it(running: Up) -> None:
    logs = running.home / "logs"
    rings = {name: "beat: Starting" in (logs / f"{name}.log").read_text() for name in ROLES}
    assert [name for name in ROLES if rings[name]] == ["supervisor"]
    victim = running.child("supervisor@%h")
    victim.kill()
    all_gone([victim])

    store = open_store(running)

    def sweeps_again() -> bool:
        with store.reading() as connection:
            nodes = views.list_nodes(connection)
        others = [node for node in nodes if node.pid != victim.pid and node.swept_at is not None]
        return any(node.name.startswith("supervisor@") for node in others)

    eventually(sweeps_again, within=20, describe="what it rings for is swept")
    store.engine.dispose()
    looked_at = psutil.process_iter(["environ", "ppid"])
    assert [p for p in looked_at if _in_home(p, running.home) and p.info["ppid"] == 1] == []


def test_a_killed_broker_is_started_again_with_what_it_held(running: Up) -> None:
    running.child("valkey-server").kill()
    running.until("the broker has ended and was started again")
    completes(running, sleep_for(running, 0.01))


def test_a_second_up_in_the_same_home_is_refused_in_one_line(running: Up) -> None:
    code = (
        "from tasks.stack import Stack; from orchestration.settings import settings as s\n"
        "from orchestration.errors import AtalaiaError\n"
        "try:\n    Stack(s()).__enter__()\nexcept AtalaiaError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env=running.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == (
        f"another `atalaia up` (pid {running.pid}) runs in {running.home}; "
        "stop it, or set ATALAIA_HOME to another folder\n"
    )
    completes(running, sleep_for(running, 0.01))  # and the first one was not disturbed


def test_a_child_that_does_not_start_is_named_with_its_log_and_all_others_stop(up: Up) -> None:
    up.more["FLOWER_MAX_TASKS"] = "many"  # Flower wants a number
    up.start()
    assert up.wait() == 1
    assert "StartError: flower did not start (exit status 1); the end of" in up.said
    assert "invalid literal for int() with base 10: 'many'" in up.said
    pids = [p for p in psutil.process_iter(["environ"]) if _in_home(p, up.home)]
    assert pids == []


def _in_home(process: psutil.Process, home: Path) -> bool:
    environment = process.info["environ"] or {}
    return bool(environment.get("ATALAIA_HOME") == str(home))


def test_a_taken_port_is_refused_before_anything_starts(up: Up) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up.more["ATALAIA_WEB_PORT"] = str(port)
        up.start()
        assert up.wait() == 1
    assert f"port {port} of 127.0.0.1 is taken; set ATALAIA_WEB_PORT" in up.said
    assert not (up.home / "logs").exists()


def test_flower_wants_its_password_which_only_its_owner_can_read(running: Up) -> None:
    where = running.home / "flower.json"
    password = httpx.Response(200, content=where.read_bytes()).json()["atalaia"]
    for name in ("flower.json", "flower.conf"):
        assert stat.S_IMODE((running.home / name).stat().st_mode) == 0o600
    assert not any(password in part for p in running.family() for part in p.cmdline())

    address = running.address("flower")
    assert httpx.get(f"{address}/tasks", trust_env=False).status_code == 401
    login = ("atalaia", password)
    assert httpx.get(f"{address}/tasks", auth=login, trust_env=False).status_code == 200
    shutdown = f"{address}/api/worker/shutdown/worker1@{socket.gethostname()}"
    assert httpx.post(shutdown, auth=login, trust_env=False).status_code == 403


def test_flower_shows_the_queues(running: Up) -> None:
    """It reads them by the scheme of the broker's URL."""
    passwords = httpx.Response(200, content=(running.home / "flower.json").read_bytes()).json()
    url = f"{running.address('flower')}/api/queues/length"

    def supervisors_queue() -> bool:
        told = httpx.get(url, auth=("atalaia", passwords["atalaia"]), trust_env=False)
        queues = told.json()["active_queues"] if told.status_code == 200 else []
        return {"name": "supervisor", "messages": 0} in queues

    eventually(supervisors_queue, within=UP_WITHIN, describe="Flower tells the queues' lengths")
