"""What each of Celery's pools does with a step over its time and with replaced children."""

import pytest

from models.states import SagaState
from tests.support.releases import Fleet, effects
from tests.support.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


@pytest.mark.parametrize(
    ("database_url", "broker_url", "pool"),
    [
        ("postgres", "redis", "prefork"),
        ("sqlite", "valkey", "threads"),
        ("postgres", "redis", "gevent"),
        ("sqlite", "valkey", "gevent"),
        ("postgres", "redis", "solo"),
    ],
    indirect=["database_url", "broker_url"],
)
@pytest.mark.proves("D-27", "SUP-03")
def test_a_step_over_its_time_is_settled_while_its_call_still_hangs(
    fleet: Fleet, pool: str
) -> None:
    more = {"PARCEL_TIMEOUT": "1", "ATALAIA_SWEEP_INTERVAL": "0.5"}
    fleet.worker(fleet.old, 1, more=more, pool=pool, concurrency=4)
    gate = fleet.old.gate("pick")
    gate.touch()
    handle = fleet.start(1)
    eventually(lambda: fleet.done(handle, "pick"), within=20, describe="the call hangs")
    if pool == "solo":  # The only process hangs; another one has to ask.
        fleet.worker(fleet.old, 2, more=more, pool=pool)
    assert handle.wait(30).state is SagaState.COMPLETED
    gate.unlink()
    eventually(
        lambda: fleet.rig.journal(handle.saga_id, "pick", "refuse"),
        within=20,
        describe="the call ends, and its report comes too late",
    )
    log = (fleet.rig.home / "old1.log").read_text()
    assert ("no processes that could be watched" in log) == (pool != "prefork")
    first, *_ = fleet.attempts(handle)
    assert (first.path, first.state, first.late["outcome"]) == ("pick", "expired", "succeeded")
    assert sorted(effects(fleet.old).values()) == [1, 1]


@pytest.mark.parametrize(
    ("database_url", "broker_url", "option"),
    [
        ("sqlite", "valkey", "--max-tasks-per-child=1"),
        ("postgres", "redis", "--max-memory-per-child=1"),
    ],
    indirect=["database_url", "broker_url"],
)
@pytest.mark.proves("D-27")
def test_children_that_are_replaced_between_tasks_lose_and_repeat_nothing(
    fleet: Fleet, option: str
) -> None:
    fleet.worker(fleet.old, 1, options=[option])
    handles = [fleet.start(1) for _ in range(8)]
    for handle in handles:
        fleet.assert_done_once(handle, "pick", "send", by=("old",))
    pids = [attempt.pid for handle in handles for attempt in fleet.attempts(handle)]
    assert len(pids) == len(set(pids)) == 2 * len(handles)
