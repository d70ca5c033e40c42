"""A deploy: two releases beside each other on one broker and one database, and one too hasty."""

from datetime import timedelta

import pytest

from models.states import SagaState
from tests.support.releases import Fleet, effects, told_to_end
from tests.support.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

on_both = pytest.mark.parametrize(
    ("database_url", "broker_url"),
    [("sqlite", "valkey"), ("postgres", "redis")],
    indirect=True,
)
on_every_broker = pytest.mark.parametrize(
    ("database_url", "broker_url"),
    [("sqlite", "valkey"), ("postgres", "redis"), ("postgres", "rabbitmq")],
    indirect=True,
)


@on_both
@pytest.mark.proves("D-22", "GM-08", "D-27")
def test_a_rolling_deploy_of_a_new_version_loses_no_saga_and_repeats_no_step(fleet: Fleet) -> None:
    fleet.rig.supervisor()
    fleet.rig.beat()
    old = [fleet.worker(fleet.old, number) for number in (1, 2)]
    first = [fleet.start(1) for _ in range(4)]
    new = [fleet.worker(fleet.new, 1)]
    second = [fleet.start(2) for _ in range(4)]
    for worker in old:
        first += [fleet.start(1) for _ in range(4)]
        second += [fleet.start(2) for _ in range(4)]
        told_to_end(worker)
        new.append(fleet.worker(fleet.new, len(new) + 1))
    first.append(fleet.start(1))
    second.append(fleet.start(2))
    for handle in first:
        fleet.assert_done_once(handle, "pick", "send", by=("old", "new"))
    for handle in second:
        fleet.assert_done_once(handle, "pick", "wrap", "send", by=("new",))
    for worker in old:
        assert worker.started is not None
        assert worker.started.wait(10) == 0


@on_every_broker
@pytest.mark.proves("D-22", "GM-08")
def test_what_the_wrong_worker_takes_waits_for_the_right_one_and_is_refused_once(
    fleet: Fleet,
) -> None:
    fleet.worker(fleet.old, 1)
    fleet.worker(fleet.new, 1, concurrency=1)
    gate = fleet.new.gate("wrap")
    gate.touch()
    busy = fleet.start(2)
    eventually(
        lambda: fleet.done(busy, "wrap"), within=20, describe="the only right worker is busy"
    )
    other = fleet.start(2)
    eventually(
        lambda: fleet.refused(other, "pick"), within=20, describe="the wrong worker has refused it"
    )
    gate.unlink()
    for handle in (busy, other):
        fleet.assert_done_once(handle, "pick", "wrap", "send", by=("new",))
        for step in ("pick", "wrap", "send"):
            assert fleet.refused(handle, step) in ([], ["unknown_definition"])
            assert fleet.rig.journal(handle.saga_id, step, "redeliver") == []
    assert fleet.refused(other, "pick") == ["unknown_definition"]


@pytest.mark.parametrize(("database_url", "broker_url"), [("postgres", "redis")], indirect=True)
@pytest.mark.proves("D-22", "GM-08")
def test_sagas_whose_version_a_deploy_has_dropped_wait_until_a_worker_has_it_again(
    fleet: Fleet,
) -> None:
    fleet.rig.supervisor()
    fleet.rig.beat()
    old = fleet.worker(fleet.old, 1)
    gate = fleet.old.gate("pick")
    gate.touch()
    handle = fleet.start(1)
    eventually(lambda: fleet.done(handle, "pick"), within=20, describe="its first step runs")
    fleet.worker(fleet.hasty, 1)
    told_to_end(old)
    gate.unlink()
    assert old.started is not None
    assert old.started.wait(20) == 0
    eventually(
        lambda: fleet.rig.open_incidents(handle.saga_id),
        within=60,
        describe="an incident says that nobody knows this version",
    )
    (incident,) = fleet.rig.open_incidents(handle.saga_id)
    assert incident.kind == "unserved"
    assert set(fleet.refused(handle, "send")) == {"unknown_definition"}
    step = fleet.rig.step(handle.saga_id, "send")
    assert (step.state, step.attempt) == ("dispatched", 0)
    assert "1 saga of parcel version 1 has not ended" in fleet.check(fleet.hasty)
    fleet.worker(fleet.old, 2)
    fleet.assert_done_once(handle, "pick", "send", by=("old",))


@on_both
@pytest.mark.proves("D-27")
def test_a_worker_that_is_told_to_end_begins_no_step_and_finishes_the_one_that_runs(
    fleet: Fleet,
) -> None:
    first = fleet.worker(fleet.old, 1)
    gate = fleet.old.gate("pick")
    gate.touch()
    running = fleet.start(1)
    eventually(lambda: fleet.done(running, "pick"), within=20, describe="a step runs")
    told_to_end(first)
    log = fleet.rig.home / "old1.log"
    eventually(lambda: "Warm shutdown" in log.read_text(), within=20, describe="it was told")
    eventually(
        lambda: fleet.rig.node_of(first.pid).agents == [],
        within=10,
        describe="nothing more is to be sent to it",
    )
    waiting = fleet.start(1)
    gate.unlink()
    assert first.started is not None
    assert first.started.wait(20) == 0
    (attempt,) = fleet.attempts(running)
    assert (attempt.path, attempt.state) == ("pick", "succeeded")
    assert fleet.attempts(waiting) == []
    fleet.worker(fleet.old, 2)
    for handle in (running, waiting):
        fleet.assert_done_once(handle, "pick", "send", by=("old",))


@pytest.mark.parametrize(
    ("database_url", "broker_url", "pool"),
    [
        ("sqlite", "valkey", "prefork"),
        ("postgres", "redis", "prefork"),
        ("sqlite", "valkey", "threads"),
        ("postgres", "redis", "solo"),
    ],
    indirect=["database_url", "broker_url"],
)
@pytest.mark.proves("D-27", "D-07")
def test_a_step_that_outlasts_its_workers_end_is_cut_off_and_asked_about_elsewhere(
    fleet: Fleet, pool: str
) -> None:
    worker = fleet.worker(fleet.old, 1, more={"ATALAIA_STOP_TIMEOUT": "1"}, pool=pool)
    gate = fleet.old.gate("pick")
    gate.touch()
    handle = fleet.start(1)
    eventually(lambda: fleet.done(handle, "pick"), within=20, describe="a step runs")
    fleet.worker(fleet.old, 2)
    told_at = fleet.rig.now()
    told_to_end(worker)
    assert worker.started is not None
    assert worker.started.wait(20) == 0
    assert handle.wait(20).state is SagaState.COMPLETED
    cut, *others = sorted(fleet.attempts(handle), key=lambda attempt: attempt.granted_at)
    assert (cut.path, cut.state) == ("pick", "expired")
    assert timedelta(seconds=1) <= cut.ended_at - told_at < timedelta(seconds=5)
    assert "told to end" in cut.error["message"]
    (probe,) = fleet.rig.journal(handle.saga_id, "pick", "probe")
    (adopted,) = fleet.rig.journal(handle.saga_id, "pick", "adopt")
    assert cut.ended_at <= probe.at <= adopted.at
    assert [(attempt.path, attempt.state) for attempt in others] == [("send", "succeeded")]
    done = effects(fleet.old)
    assert sorted(done.values()) == [1, 1]
    gate.unlink()
