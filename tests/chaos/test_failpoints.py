"""A crash, a pause, an error and a delay at every boundary, alone and in pairs, on real workers.

The processes of a database stay up from case to case; a case arms one or two failpoints, starts a
trip, and then only what holds at the end decides: the saga's rows and the partners' own books.
"""

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pytest

from examples.travel.books import reconcile
from models.states import SAGA_TERMINAL, SagaState
from orchestration.events import Remedy
from orchestration.failpoint import VARIABLE
from orchestration.handle import Handle
from tests.support import databases
from tests.support.partners import PartnerProcess
from tests.support.waiting import eventually
from tests.support.workers import ROOT, TRIP, Rig

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

WORKERS = ("p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9")
PAIRS = list(itertools.combinations(WORKERS, 2))
WITHIN = 60.0


@pytest.fixture(scope="module", params=databases.USUAL)
def armed(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    travel: Mapping[str, PartnerProcess],
) -> Iterator[Rig]:
    """A rig whose worker looks at a directory of failpoints; it stays up for the whole module."""
    home = tmp_path_factory.mktemp("failpoints")
    points = home / "armed"
    points.mkdir()
    for partner in travel.values():
        partner.switch()
    with databases.fresh_database(request, home) as url:
        rig = Rig(url, request.getfixturevalue("embedded_broker"), home, travel)
        rig.supervisor()
        rig.beat()
        rig.env_more = {VARIABLE: str(points)}
        rig.worker("agents", concurrency=3)
        yield rig
        rig.stop()


def _tended(rig: Rig) -> bool:
    """Let what was stopped go on, and start the worker again if its parent has died."""
    resumed(rig)
    worker = rig.processes[-1]
    assert worker.started is not None
    if worker.started.poll() is not None:
        worker.kill()
        rig.worker("agents", concurrency=3, wait=False)
    return True


def arm(rig: Rig, **actions: str) -> None:
    """Arm failpoints; each file appears as a whole."""
    for point, action in actions.items():
        draft = rig.home / f"{point}.draft"
        draft.write_text(action)
        draft.rename(rig.home / "armed" / point)


def armed_still(rig: Rig) -> list[str]:
    return sorted(path.name for path in (rig.home / "armed").iterdir())


def assert_ends_well(rig: Rig, handle: Handle) -> None:
    """Assert that the saga ended, no partner has an effect too many or few, and all invariants."""
    eventually(
        lambda: _tended(rig) and handle.state() in SAGA_TERMINAL,
        within=WITHIN,
        describe=lambda: f"the saga ends: {handle.result()}",
    )
    result = handle.result()
    assert result.state in SAGA_TERMINAL
    saga = str(handle.saga_id)
    books = [partner.books() for partner in rig.partners.values()]
    for book in books:
        book["effects"] = [effect for effect in book["effects"] if effect["saga"] == saga]
    found = reconcile(books, {saga: result.state})
    assert (found.orphaned, found.missing, found.duplicated) == ((), (), ())
    assert rig.open_incidents(handle.saga_id) == []
    assert result.state is SagaState.COMPLETED
    rig.assert_all_hold()


@pytest.mark.proves("D-02", "D-03", "D-06", "D-07", "D-08", "D-09", "REC-06", "INV-1", "INV-2")
@pytest.mark.parametrize("action", ["crash", "error", "delay 0.3"])
@pytest.mark.parametrize("point", WORKERS)
def test_one_fault_at_a_boundary(armed: Rig, point: str, action: str) -> None:
    arm(armed, **{point: action})
    handle = armed.start_trip()
    assert_ends_well(armed, handle)
    assert armed_still(armed) == []


@pytest.mark.proves("REC-06", "INV-1", "INV-2")
@pytest.mark.parametrize("armed", ["mariadb"], indirect=True)
@pytest.mark.parametrize("point", WORKERS)
def test_a_crash_at_a_boundary_on_mariadb(armed: Rig, point: str) -> None:
    arm(armed, **{point: "crash"})
    assert_ends_well(armed, armed.start_trip())
    assert armed_still(armed) == []


@pytest.mark.proves("D-12")
@pytest.mark.parametrize("point", WORKERS)
def test_a_pause_at_a_boundary(armed: Rig, point: str) -> None:
    arm(armed, **{point: "stop"})
    handle = armed.start_trip()
    eventually(lambda: resumed(armed), within=20, describe=f"a process stops at {point}")
    assert_ends_well(armed, handle)


@pytest.mark.proves("REC-06", "INV-1", "INV-2")
@pytest.mark.parametrize(
    ("first", "second"), [pytest.param(*pair, id="+".join(pair)) for pair in PAIRS]
)
def test_crashes_at_two_boundaries(armed: Rig, first: str, second: str) -> None:
    arm(armed, **{first: "crash", second: "crash"})
    handle = armed.start_trip()
    assert_ends_well(armed, handle)
    assert armed_still(armed) == []


@pytest.mark.proves("D-25", "row 25")
def test_a_message_that_kills_every_child_that_takes_it_is_put_aside(armed: Rig) -> None:
    handle = armed.start_trip()

    def poisoned() -> list[Any]:
        arm(armed, p3="crash")
        return armed.open_incidents(handle.saga_id)

    def cured() -> bool:
        """Both branches may have been put aside, one of them later than the other."""
        for incident in armed.open_incidents(handle.saga_id):
            assert incident.kind == "poison"
            armed.scheduler.resolve(
                handle.saga_id, incident.path, Remedy.RETRY, by="ada", reason="was repaired"
            )
        return handle.state() in SAGA_TERMINAL

    poison = eventually(poisoned, within=WITHIN, describe="a step is put aside")[0]
    (armed.home / "armed" / "p3").unlink(missing_ok=True)
    assert armed.attempts(handle.saga_id, poison.path) == []
    assert_ends_well(armed, armed.start_trip())
    eventually(cured, within=WITHIN, describe="it goes on after its repair")
    assert_ends_well(armed, handle)


ACTIONS = ("crash", "stop", "error", "delay 0.3")
MIXED = [pair for pair in itertools.product(ACTIONS, repeat=2) if pair != ("crash", "crash")]


@pytest.mark.proves("REC-06", "D-12", "INV-1", "INV-2")
@pytest.mark.parametrize(
    ("points", "actions"),
    [
        pytest.param(points, actions, id="+".join(map("".join, zip(points, actions, strict=True))))
        for points, actions in zip(PAIRS, itertools.cycle(MIXED), strict=False)
    ],
)
def test_two_different_faults_at_two_boundaries(
    armed: Rig, points: tuple[str, str], actions: tuple[str, str]
) -> None:
    """Every two actions meet at some two points, and every two points with some two actions."""
    arm(armed, **dict(zip(points, actions, strict=True)))
    handle = armed.start_trip()
    assert_ends_well(armed, handle)
    assert armed_still(armed) == []


START = """
import json, os, sys
from tests.support.workers import Rig
from pathlib import Path
rig = Rig(sys.argv[1], sys.argv[2], Path(sys.argv[3]), {})
print(rig.scheduler.start("trip", json.loads(sys.argv[4]), key=sys.argv[5]).saga_id)
"""


def starting(rig: Rig, key: str, fault: str) -> "subprocess.Popen[str]":
    """A process that starts a trip, with a fault between its commit and its message."""
    arm(rig, p0=fault)
    command = [sys.executable, "-c", START, rig.database_url, rig.broker_url, str(rig.home)]
    env = rig.env | {VARIABLE: str(rig.home / "armed")}
    return subprocess.Popen(
        [*command, json.dumps(TRIP), key], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.proves("D-01", "REC-01")
@pytest.mark.parametrize("action", ["crash", "error"])
def test_a_caller_that_dies_after_its_start_was_committed_has_started_one_saga(
    armed: Rig, action: str
) -> None:
    key = f"start-{action}"
    first = starting(armed, key, action)
    first.communicate(timeout=WITHIN)
    assert first.returncode != 0
    again = starting(armed, key, "delay 0.3")
    said, _ = again.communicate(timeout=WITHIN)
    handle = armed.start_trip(key=key)
    assert said.strip() == str(handle.saga_id)
    assert_ends_well(armed, handle)
    assert armed_still(armed) == []


@pytest.mark.proves("D-02", "D-05")
def test_a_message_of_a_caller_that_was_paused_until_the_saga_had_ended_is_refused(
    armed: Rig,
) -> None:
    caller = starting(armed, "start-stop", "stop")
    process = psutil.Process(caller.pid)
    eventually(
        lambda: process.status() == psutil.STATUS_STOPPED, within=20, describe="the caller stops"
    )
    handle = armed.start_trip(key="start-stop")
    assert_ends_well(armed, handle)
    process.resume()
    caller.communicate(timeout=WITHIN)
    assert caller.returncode == 0
    eventually(
        lambda: armed.journal(handle.saga_id, "flight", "refuse"),
        within=20,
        describe="the message that came too late is refused",
    )
    armed.assert_all_hold()


def resumed(rig: Rig) -> list[int]:
    """Let every stopped process of the rig go on; return their pids."""
    stopped = []
    for root in [psutil.Process(one.pid) for one in rig.processes if one.started]:
        # A child may be gone before it is asked.
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (root, *root.children(recursive=True)):
                if process.status() == psutil.STATUS_STOPPED:
                    process.resume()
                    stopped.append(process.pid)
    return stopped
