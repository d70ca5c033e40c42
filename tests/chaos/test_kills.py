"""An agent dies in mid-call, in each way that it can, and the saga still reaches its end.

In every test the partner has booked the room before the kill and holds its reply, so the outcome
is in doubt; what is asserted is how soon the doubt is acted on, that nothing is booked twice, and
every row that is left behind.
"""

import os
import signal
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import redis

from models.states import SagaState
from orchestration.handle import Handle
from orchestration.roster import Roster
from tests.support import databases
from tests.support.waiting import eventually
from tests.support.workers import Rig

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

HOLD = {"hold": {"hold": 60, "count": 1, "on": ["order"]}}


def start_and_hold(rig: Rig) -> tuple[Handle, Any]:
    """Start a trip and return it with its hotel step, once only the hotel is not reported."""
    rig.partners["hotels"].switch(**HOLD)
    handle = rig.start_trip()
    hold = rig.partners["hotels"].wait_for_hold()
    assert hold["saga"] == str(handle.saga_id)
    eventually(
        lambda: rig.step(handle.saga_id, "flight").state == "succeeded",
        within=10,
        describe="the flight, in the other branch, is booked",
    )
    step = rig.step(handle.saga_id, "hotel")
    assert step.state == "leased"
    return handle, step


def probed_at(rig: Rig, saga_id: UUID, within: float) -> datetime:
    """Return when the supervisor's question about the hotel was committed."""
    probes = eventually(
        lambda: rig.journal(saga_id, "hotel", "probe"),
        within=within,
        describe="the hotel is asked what happened",
    )
    at: datetime = probes[0].at
    return at


def assert_rescued(rig: Rig, handle: Handle) -> None:
    """Assert the saga's end, every row of its hotel, the hotel's own books and all invariants."""
    result = handle.wait(20)
    assert result.state is SagaState.COMPLETED
    assert set(result.results) == {"flight", "hotel", "car", "payment", "receipt"}
    step = rig.step(handle.saga_id, "hotel")
    assert (step.state, step.attempt, step.failure_count) == ("succeeded", 1, 1)
    assert (step.node_id, step.pid, step.deadline_at, step.wake_at) == (None, None, None, None)
    (attempt,) = rig.attempts(handle.saga_id, "hotel")
    assert attempt.state == "expired"
    assert attempt.error["type"] == "Lost"
    (adopted,) = rig.journal(handle.saga_id, "hotel", "adopt")
    assert (adopted.from_state, adopted.to_state, adopted.row) == ("unknown", "succeeded", "3")
    for path in ("flight", "car", "payment", "receipt"):
        (other,) = rig.attempts(handle.saga_id, path)
        assert other.state == "succeeded"
    booked = [
        effect
        for effect in rig.partners["hotels"].books()["effects"]
        if effect["saga"] == str(handle.saga_id)
    ]
    assert len(booked) == 1
    assert booked[0]["cancelled_at"] is None
    rig.assert_all_hold()


@pytest.mark.proves("D-07", "SAS-11", "row 3")
@pytest.mark.parametrize("database_url", databases.EVERY, indirect=True)
def test_a_killed_pool_child_is_being_resolved_within_a_second(rig: Rig) -> None:
    rig.worker("agents")
    handle, step = start_and_hold(rig)
    killed_at = rig.now()
    os.kill(step.pid, signal.SIGKILL)
    assert probed_at(rig, handle.saga_id, within=10) - killed_at < timedelta(seconds=1)
    assert_rescued(rig, handle)


@pytest.mark.proves("D-07", "REC-01", "REC-02")
def test_a_killed_worker_is_being_resolved_within_two_seconds_of_its_restart(rig: Rig) -> None:
    worker = rig.worker("agents")
    handle, _ = start_and_hold(rig)
    worker.kill()
    restarted_at = rig.now()
    rig.worker("agents", wait=False)
    assert probed_at(rig, handle.saga_id, within=20) - restarted_at < timedelta(seconds=2)
    assert_rescued(rig, handle)


@pytest.mark.proves("D-07", "SUP-02", "SUP-05")
@pytest.mark.parametrize("database_url", databases.EVERY, indirect=True)
def test_a_machine_that_is_gone_is_being_resolved_within_ten_seconds(rig: Rig) -> None:
    rig.supervisor()
    rig.beat()
    worker = rig.worker("agents")
    handle, _ = start_and_hold(rig)
    rig.worker("others")
    killed_at = rig.now()
    worker.kill()
    assert probed_at(rig, handle.saga_id, within=20) - killed_at < timedelta(seconds=10)
    assert_rescued(rig, handle)


@pytest.mark.proves("SUP-09", "D-27", "ORCH-01")
def test_sweeps_go_on_when_beat_and_the_supervisor_are_killed(rig: Rig) -> None:
    beat, supervisor = rig.beat(), rig.supervisor()
    worker = rig.worker("agents")
    eventually(
        lambda: _since_sweep(rig) < timedelta(seconds=3),
        within=20,
        describe="beat makes the supervisor sweep",
    )
    handle, _ = start_and_hold(rig)
    rig.worker("others")
    beat.kill()
    supervisor.kill()
    killed_at = rig.now()
    worker.kill()
    # Nobody sweeps for three intervals of two seconds before another node does.
    assert probed_at(rig, handle.saga_id, within=30) - killed_at < timedelta(seconds=16)
    assert_rescued(rig, handle)


@pytest.mark.proves("D-12", "SAS-10", "INV-5")
def test_a_paused_machine_that_comes_back_changes_nothing(rig: Rig) -> None:
    rig.supervisor()
    rig.beat()
    worker = rig.worker("agents")
    handle, step = start_and_hold(rig)
    rig.worker("others")
    worker.signal_group(signal.SIGSTOP)
    probed_at(rig, handle.saga_id, within=20)
    assert_rescued(rig, handle)
    before = rig.step(handle.saga_id, "hotel")
    rig.partners["hotels"].switch()  # the held reply goes out to the paused agent
    worker.signal_group(signal.SIGCONT)
    (refused,) = eventually(
        lambda: rig.journal(handle.saga_id, "hotel", "refuse"),
        within=20,
        describe="the late report is refused",
    )
    assert refused.reason == "lease_lost"
    (attempt,) = rig.attempts(handle.saga_id, "hotel")
    assert attempt.late["outcome"] == "succeeded"
    assert rig.step(handle.saga_id, "hotel") == before
    assert handle.state() is SagaState.COMPLETED
    node = eventually(
        lambda: rig.node_of(worker.pid), within=10, describe="the node counts as alive again"
    )
    assert node.id == step.node_id
    rig.assert_all_hold()


@pytest.mark.proves("D-27")
def test_a_worker_that_is_told_to_end_finishes_its_step_first(rig: Rig) -> None:
    worker = rig.worker("agents")
    handle, _ = start_and_hold(rig)
    rig.worker("others")
    os.kill(worker.pid, signal.SIGTERM)
    log = rig.home / "agents.log"
    eventually(lambda: "Warm shutdown" in log.read_text(), within=20, describe="the worker is told")
    rig.partners["hotels"].switch()  # the held reply goes out
    assert worker.started is not None
    assert worker.started.wait(30) == 0
    assert handle.wait(20).state is SagaState.COMPLETED
    (attempt,) = rig.attempts(handle.saga_id, "hotel")
    assert attempt.state == "succeeded"
    rig.assert_all_hold()


@pytest.mark.proves("D-27", "D-07")
def test_the_step_of_a_worker_that_is_made_to_end_at_once_is_rescued(rig: Rig) -> None:
    rig.supervisor()
    rig.beat()
    worker = rig.worker("agents")
    handle, _ = start_and_hold(rig)
    rig.worker("others")
    os.kill(worker.pid, signal.SIGQUIT)
    assert_rescued(rig, handle)


@pytest.mark.proves("D-27")
def test_no_step_waits_behind_one_that_takes_long(rig: Rig) -> None:
    rig.worker("agents", concurrency=2)
    long, step = start_and_hold(rig)
    for handle in [rig.start_trip() for _ in range(4)]:
        assert handle.wait(20).state is SagaState.COMPLETED
    assert rig.step(long.saga_id, "hotel") == step
    rig.partners["hotels"].switch()
    assert long.wait(20).state is SagaState.COMPLETED
    rig.assert_all_hold()


@pytest.mark.proves("D-04", "D-05", "O-1")
def test_a_flushed_broker_loses_no_saga(rig: Rig) -> None:
    rig.supervisor()
    rig.beat()
    rig.worker("agents").kill()
    handles = [rig.start_trip() for _ in range(5)]
    with redis.Redis.from_url(rig.broker_url) as client:
        client.flushdb()
    rig.worker("others")
    for handle in handles:
        assert handle.wait(60).state is SagaState.COMPLETED
        assert len(rig.attempts(handle.saga_id, "hotel")) == 1
    rig.assert_all_hold()


@pytest.mark.proves("D-02", "D-04", "REC-02")
def test_a_restarted_worker_rings_at_once_for_what_its_predecessor_had_in_its_hands(
    rig: Rig,
) -> None:
    rig.worker("agents").kill()
    handle = rig.start_trip()
    with redis.Redis.from_url(rig.broker_url) as client:
        client.flushdb()
    node = rig.node_of(rig.worker("agents").pid)
    assert handle.wait(30).state is SagaState.COMPLETED
    for path in ("flight", "hotel"):
        rung = rig.journal(handle.saga_id, path, "redeliver")[0]
        assert rung.at - node.started_at < timedelta(seconds=2)
    rig.assert_all_hold()


def _since_sweep(rig: Rig) -> timedelta:
    return Roster(rig.store).since_last_sweep() or timedelta.max
