"""A trip through real workers on every broker and pool that is supported."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from amqp.exceptions import NotFound
from sqlalchemy import select

from models import Saga
from models.states import SagaState
from orchestration.handle import Handle
from tests.support import services
from tests.support.partners import PartnerProcess
from tests.support.waiting import eventually
from tests.support.workers import TRIP, Rig

DELAYED = "celery_delayed_{}"
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


@pytest.fixture
def any_rig(
    database_url: str, broker_url: str, tmp_path: Path, travel: Mapping[str, PartnerProcess]
) -> Iterator[Rig]:
    """A rig on each pair of a database and a broker."""
    for partner in travel.values():
        partner.switch()
    rig = Rig(database_url, broker_url, tmp_path, travel)
    yield rig
    rig.stop()


@pytest.mark.proves("SAS-12", "SAS-13", "D-27")
def test_trips_complete_on_every_broker_and_database(any_rig: Rig) -> None:
    any_rig.supervisor()
    any_rig.beat()
    any_rig.worker("agents")
    handles = [any_rig.start_trip() for _ in range(4)]
    for handle in handles:
        assert handle.wait(30).state is SagaState.COMPLETED
        assert [attempt.state for attempt in any_rig.attempts(handle.saga_id, "car")] == [
            "succeeded"
        ]
    any_rig.assert_all_hold()


@pytest.mark.proves("SAS-15")
def test_an_app_that_shares_only_the_broker_starts_a_saga_by_name(any_rig: Rig) -> None:
    any_rig.worker("agents")
    for _ in range(2):
        any_rig.celery.send_task(
            "atalaia.start",
            kwargs={"workflow": "trip", "input": TRIP, "key": "order-1"},
            queue="atalaia",
        )
    saga_id = eventually(
        lambda: _saga_of(any_rig, "order-1"), within=20, describe="the saga is started"
    )
    assert saga_id is not None
    handle = Handle(any_rig.store, saga_id)
    assert handle.wait(30).state is SagaState.COMPLETED
    assert any_rig.start_trip(key="order-1").saga_id == handle.saga_id
    any_rig.assert_all_hold()


@pytest.mark.xdist_group("rabbitmq")
def test_a_worker_on_rabbitmq_declares_no_queue_for_delayed_messages(
    database_url: str, tmp_path: Path, travel: Mapping[str, PartnerProcess]
) -> None:
    rig = Rig(database_url, services.rabbitmq(), tmp_path, travel)
    try:
        with rig.celery.connection_for_write() as connection:
            _delete_delayed(connection.default_channel)
            rig.worker("agents")
            assert rig.start_trip().wait(30).state is SagaState.COMPLETED
            channel: Any = connection.channel()
            with pytest.raises(NotFound):
                channel.queue_declare(DELAYED.format(27), passive=True)
    finally:
        rig.stop()


def _delete_delayed(channel: Any) -> None:
    """Delete what an earlier worker left behind; RabbitMQ does not mind if there is nothing."""
    for level in range(28):
        channel.queue_delete(DELAYED.format(level))
        channel.exchange_delete(DELAYED.format(level))


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_pools_without_children_run_trips_and_are_noticed_when_killed(rig: Rig, pool: str) -> None:
    worker = rig.worker("agents", pool=pool, concurrency=4)
    assert rig.start_trip().wait(30).state is SagaState.COMPLETED
    rig.partners["hotels"].switch(hold={"hold": 60, "count": 1, "on": ["order"]})
    handle = rig.start_trip()
    rig.partners["hotels"].wait_for_hold()
    worker.kill()
    rig.worker("agents", pool=pool, concurrency=4)
    assert handle.wait(30).state is SagaState.COMPLETED
    executions = rig.partners["hotels"].books()["effects"]
    assert len([e for e in executions if e["saga"] == str(handle.saga_id)]) == 1
    rig.assert_all_hold()


@pytest.mark.proves("D-22", "GM-08")
def test_a_version_that_no_worker_knows_waits_for_one_and_an_incident_says_so(
    rig: Rig, tmp_path: Path
) -> None:
    rig.supervisor()
    rig.beat()
    rig.worker("old").kill()
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "other.py").write_text(
        "from orchestration import Step, Workflow\n"
        'other = Workflow("other", version=1, steps=Step("car", agent="cars.book"))\n'
    )
    rig.env_more = {
        "ATALAIA_WORKFLOWS": "other",
        "PYTHONPATH": f"{modules}:{Path(__file__).parents[2]}",
    }
    rig.worker("other")
    handle = rig.start_trip()
    eventually(
        lambda: rig.journal(handle.saga_id, "flight", "alert"),
        within=60,
        describe="an incident says that nobody knows this version",
    )
    step = rig.step(handle.saga_id, "flight")
    assert (step.state, step.attempt) == ("dispatched", 0)
    rig.env_more = {}
    rig.worker("knows")
    assert handle.wait(30).state is SagaState.COMPLETED
    assert rig.open_incidents(handle.saga_id) == []
    rig.assert_all_hold()


def _saga_of(rig: Rig, key: str) -> UUID | None:
    with rig.store.reading() as connection:
        query = select(Saga.id).where(Saga.key == key)
        return connection.execute(query).scalar_one_or_none()
