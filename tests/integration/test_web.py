"""The HTTP API on both databases: what is started, what is shown, and what is refused."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, func, select

from models import Saga
from orchestration import views
from orchestration.contract import AgentContract
from orchestration.database import open_engine
from orchestration.events import Remedy
from orchestration.ports import SilentDispatcher
from orchestration.registry import Registry
from orchestration.roster import Roster
from orchestration.scheduler import Scheduler
from orchestration.store import Store
from orchestration.workflows.trip import trip
from web.app import create_app, unsupervised

TRIP = {
    "traveller": "Ada",
    "origin": "LIS",
    "destination": "OPO",
    "departs_on": "2027-01-02",
    "nights": 2,
    "amount": 10_000,
}


def knowing_trips() -> Registry:
    registry = Registry()
    registry.add_workflow(trip)
    for step in trip.by_name.values():
        registry.add_agent(AgentContract(name=step.agent, idempotent=True, compensation=True))
    return registry


@pytest.fixture
def scheduler(store: Store) -> Scheduler:
    return Scheduler(store, SilentDispatcher(), knowing_trips())


@pytest.fixture
def client(scheduler: Scheduler) -> Iterator[TestClient]:
    with TestClient(create_app(scheduler), raise_server_exceptions=False) as client:
        yield client


def sagas_in(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(Saga.__table__)).scalar_one()


def started(client: TestClient, **more: Any) -> str:
    response = client.post("/sagas", json={"workflow": "trip", "input": TRIP, **more})
    assert response.status_code == 201, response.text
    saga_id: str = response.json()["id"]
    return saga_id


def test_a_start_answers_with_the_new_saga_and_its_links(client: TestClient) -> None:
    response = client.post("/sagas", json={"workflow": "trip", "input": TRIP})
    found = response.json()
    here = f"/sagas/{found['id']}"
    assert response.status_code == 201
    assert response.headers["location"] == here
    assert found == {
        "id": str(UUID(found["id"])),
        "state": "running",
        "links": {"self": here, "cancel": f"{here}/cancel"},
    }


def test_the_same_key_and_input_answer_with_the_saga_that_is_there(
    client: TestClient, engine: Engine
) -> None:
    saga_id = started(client, key="order-1")
    again = client.post("/sagas", json={"workflow": "trip", "input": TRIP, "key": "order-1"})
    assert (again.status_code, again.json()["id"]) == (200, saga_id)
    assert sagas_in(engine) == 1


def test_the_same_key_with_another_input_is_a_conflict_that_names_both(
    client: TestClient, engine: Engine
) -> None:
    saga_id = started(client, key="order-1")
    other = {**TRIP, "nights": 3}
    response = client.post("/sagas", json={"workflow": "trip", "input": other, "key": "order-1"})
    assert response.status_code == 409
    assert response.json()["detail"].startswith(
        f"key 'order-1' of workflow 'trip' belongs to saga {saga_id}, which was started with "
    )
    assert sagas_in(engine) == 1


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"workflow": "trip", "input": {**TRIP, "nights": 0}}, 422, "nights: "),
        ({"workflow": "trip", "input": [1]}, 422, "input of workflow 'trip'"),
        ({"workflow": "trp", "input": TRIP}, 404, "did you mean 'trip'?"),
        ({"input": TRIP}, 422, "workflow: Field required"),
        ({"workflow": "trip", "input": TRIP, "kee": "k"}, 422, "kee: "),
        ({"workflow": "trip", "input": TRIP, "key": ""}, 422, "key: "),
        ({"workflow": "trip", "input": TRIP, "key": "a\0b"}, 422, "key: "),
        ({"workflow": "trip", "input": TRIP, "key": "k" * 201}, 422, "key: "),
        ({"workflow": "t\0", "input": TRIP}, 422, "workflow: "),
        ([], 422, "body: "),
    ],
)
def test_a_bad_start_names_what_is_wrong_and_writes_nothing(
    client: TestClient, engine: Engine, body: Any, status: int, told: str
) -> None:
    response = client.post("/sagas", json=body)
    assert response.status_code == status
    assert told in response.json()["detail"]
    assert sagas_in(engine) == 0


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"workflow": ', "the body is not JSON"),
        (b'{"workflow": "trip", "input": {"nights": NaN}}', "input: "),
        (b"\xff", "parsing the body"),
    ],
)
def test_what_is_not_json_is_told_so(client: TestClient, body: bytes, told: str) -> None:
    response = client.post("/sagas", content=body, headers={"content-type": "application/json"})
    assert response.status_code in {400, 422}
    assert told in response.json()["detail"]


def test_sagas_are_listed_newest_first_and_by_state_and_workflow(client: TestClient) -> None:
    older, newer = started(client), started(client)
    client.post(f"/sagas/{older}/cancel", json={"reason": "changed my mind"})
    everything = client.get("/sagas").json()
    assert [saga["id"] for saga in everything] == [newer, older]
    assert everything[0]["created_at"].endswith("Z")
    running = client.get("/sagas", params={"state": "running", "workflow": "trip"}).json()
    assert [saga["id"] for saga in running] == [newer]
    assert len(client.get("/sagas", params={"limit": 1}).json()) == 1
    assert client.get("/sagas", params={"workflow": "other"}).json() == []


@pytest.mark.parametrize(
    ("query", "field"),
    [("state=jogging", "state"), ("limit=0", "limit"), ("workflow=%00", "workflow")],
)
def test_a_bad_filter_names_its_field(client: TestClient, query: str, field: str) -> None:
    response = client.get(f"/sagas?{query}")
    assert response.status_code == 422
    assert response.json()["detail"].startswith(f"{field}: ")


def test_one_saga_is_shown_whole(client: TestClient) -> None:
    shown = client.get(f"/sagas/{started(client, key='order-1')}").json()
    assert (shown["state"], shown["workflow"], shown["version"]) == ("running", "trip", 1)
    assert shown["input"] == {**TRIP, "currency": "EUR"}
    assert {step["path"]: step["state"] for step in shown["steps"]} == {
        "flight": "dispatched",
        "hotel": "dispatched",
        "car": "waiting",
        "payment": "waiting",
        "receipt": "waiting",
    }
    assert shown["results"] == {}
    assert shown["abort"] is None


def test_a_saga_that_is_not_there_is_not_found(client: TestClient) -> None:
    for request in (client.get, lambda path: client.post(f"{path}/cancel", json={})):
        response = request(f"/sagas/{uuid4()}")
        assert response.status_code == 404
        assert response.json()["detail"].startswith("there is no saga")
    assert client.get("/sagas/nonsense").status_code == 422


def test_a_cancelled_saga_turns_back_and_says_why(client: TestClient) -> None:
    saga_id = started(client)
    response = client.post(f"/sagas/{saga_id}/cancel", json={"reason": "rain", "by": "ada"})
    assert response.status_code == 202
    assert response.json()["state"] == client.get(f"/sagas/{saga_id}").json()["state"]
    shown = client.get(f"/sagas/{saga_id}").json()
    assert shown["abort"]["message"] == "cancelled by ada: rain"
    assert {entry["actor"] for entry in shown["timeline"]} == {"ada"}


def test_an_ended_saga_refuses_to_be_cancelled_and_says_so(client: TestClient) -> None:
    saga_id = started(client)
    assert client.post(f"/sagas/{saga_id}/cancel").json()["state"] == "cancelled"
    response = client.post(f"/sagas/{saga_id}/cancel")
    assert response.status_code == 409
    assert "has ended (cancelled)" in response.json()["detail"]


def test_incidents_are_listed_until_they_are_resolved(
    client: TestClient, scheduler: Scheduler
) -> None:
    saga_id = UUID(started(client))
    for _ in range(3):
        scheduler.crashed(saga_id, "flight", 1)
    (incident,) = client.get("/incidents").json()
    assert (incident["saga_id"], incident["path"], incident["kind"]) == (
        str(saga_id),
        "flight",
        "poison",
    )
    scheduler.resolve(saga_id, "flight", Remedy.RETRY, by="ada", reason="fixed")
    assert client.get("/incidents").json() == []
    (resolved,) = client.get("/incidents", params={"include_resolved": True}).json()
    assert (resolved["resolution"], resolved["resolved_by"]) == ("retry", "ada")


def test_health_fails_until_somebody_sweeps(client: TestClient, store: Store) -> None:
    response = client.get("/health")
    assert (response.status_code, response.json()["status"]) == (503, "failing")
    roster = Roster(store)
    node, _ = roster.register("w1@here", 1, [], [])
    roster.swept(node.id)
    response = client.get("/health")
    assert (response.status_code, response.json()["status"]) == (200, "ok")
    assert response.json()["nodes"] == 1
    with store.reading() as connection:
        assert len(views.list_nodes(connection)) == 1


def test_an_old_sweep_is_as_bad_as_none() -> None:
    assert unsupervised(timedelta(seconds=1)) is None
    assert unsupervised(timedelta(hours=1)) == "the last sweep was 3600 s ago: is a worker running?"


def test_without_a_database_every_answer_is_a_sentence(tmp_path: Path) -> None:
    store = Store(open_engine(f"sqlite:///{tmp_path}/nowhere/at.db"))
    app = create_app(Scheduler(store, SilentDispatcher(), knowing_trips()))
    client = TestClient(app, raise_server_exceptions=False)
    assert client.get("/health").json()["problems"] == ["the database is away"]
    response = client.post("/sagas", json={"workflow": "trip", "input": TRIP})
    assert response.status_code == 503
    assert response.json() == {
        "detail": "the database is away or not migrated; nothing was changed"
    }


def test_what_breaks_shows_no_traceback(
    client: TestClient, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "start", lambda *_, **__: 1 / 0)
    response = client.post("/sagas", json={"workflow": "trip", "input": TRIP})
    assert response.status_code == 500
    assert response.json() == {"detail": "something broke; the server's log says what"}


def test_the_reference_page_names_everything_and_loads_nothing(client: TestClient) -> None:
    page = client.get("/docs").text
    document = client.get("/openapi.json").json()
    assert all(path in page for path in document["paths"])
    assert all(f'id="{name}"' in page for name in document["components"]["schemas"])
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
