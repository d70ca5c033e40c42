"""Three web apps: a saga is committed or rolled back with its request, shown, and rung for."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import ColumnElement, Engine, bindparam, func, select, text

from examples.webapps import fastapi_app, flask_app, shop
from models import JournalEntry, Saga, Step
from models.base import Instant
from models.states import Operation
from orchestration.errors import InputError, NotFoundError
from orchestration.events import Dispatch
from orchestration.handle import Handle
from orchestration.lease import Leases
from orchestration.registry import Registry
from orchestration.roster import Roster
from orchestration.scheduler import Scheduler
from orchestration.settings import settings
from orchestration.store import Store
from orchestration.supervisor import Supervisor
from tasks.agent import AGENTS
from tasks.envelope import Envelope
from tests.support import databases

Send = Callable[..., tuple[int, Any]]

# The apps are written for these two.
pytestmark = pytest.mark.parametrize("database_url", databases.USUAL, indirect=True)


class Shop:
    """The sagas of the shop, with a worker that works when it is told to."""

    def __init__(self, engine: Engine) -> None:
        self.now = datetime(2027, 1, 1, 12, tzinfo=UTC)
        self.sent: list[Dispatch] = []
        self.unseen: list[UUID] = []
        self.store = Store(engine, now=self._clock)
        registry = Registry()
        registry.add_workflow(shop.order)
        for agent in (shop.reserve, shop.pay):
            registry.add_agent(agent.contract)
        self.scheduler = Scheduler(self.store, self, registry)
        known = self.scheduler.register_definitions()
        node, _ = Roster(self.store).register("shop", 1, list(registry.contracts), known)
        self.envelope = Envelope(Leases(self.scheduler), node, set(known))
        self.supervisor = Supervisor(self.scheduler, self)

    def _clock(self) -> ColumnElement[datetime]:
        return bindparam("clock", callable_=lambda: self.now, type_=Instant(), unique=True)

    def publish(self, dispatches: Sequence[Dispatch]) -> None:
        """Keep the messages, and those whose saga nobody else can see yet."""
        for dispatch in dispatches:
            self.sent.append(dispatch)
            try:
                Handle(self.store, dispatch.saga_id).state()
            except NotFoundError:
                self.unseen.append(dispatch.saga_id)

    def depth(self, queue: str) -> int | None:
        return None

    def news(self) -> list[str]:
        return [dispatch.name for dispatch in self.sent]

    def work(self) -> None:
        """Run what was sent, and what comes of it."""
        while self.sent:
            message = self.sent.pop(0)
            name, _, what = message.name.rpartition(".")
            operation = Operation(what) if name in AGENTS else Operation.ACTION
            agent = AGENTS.get(name) or AGENTS[message.name]
            asks = operation is Operation.PROBE
            run = self.envelope.inquire if asks else self.envelope.attempt
            run(agent, operation, str(message.saga_id), message.path, message.number)

    def count(self, table: str) -> int:
        with self.store.reading() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())

    def payment(self, saga: str) -> Any:
        table: Any = Step.__table__
        with self.store.reading() as connection:
            query = select(table).where(table.c.saga_id == UUID(saga), table.c.path == "payment")
            return connection.execute(query).one()


@pytest.fixture
def the_shop(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("ATALAIA_HOME", str(tmp_path))
    settings.cache_clear()
    yield Shop(engine)
    settings.cache_clear()


def told(content: bytes) -> Any:
    return json.loads(content) if content.startswith(b"{") else None


def fastapi_client(the_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Send:
    app = TestClient(fastapi_app.create_app(the_shop.scheduler), raise_server_exceptions=False)

    def send(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        response = app.request(method, path, json=body)
        return response.status_code, told(response.content)

    return send


def flask_client(the_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Send:
    app = flask_app.create_app(the_shop.scheduler).test_client()

    def send(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        response = app.open(path, method=method, json=body)
        return response.status_code, told(response.data)

    return send


def django_client(the_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Send:
    app = django_app(the_shop, monkeypatch)
    app.lay_table()
    from django.test import Client

    client = Client(raise_request_exception=False)

    def send(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        given = "" if body is None else json.dumps(body)
        response = client.generic(method, path, given, "application/json")
        return response.status_code, told(response.content)

    return send


def django_app(the_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the Django app with its connection to the shop's own database."""
    from django.db import connections

    from examples.webapps import django_app as app

    url = the_shop.store.engine.url.render_as_string(hide_password=False)
    connections["default"].close()
    del connections["default"]
    connections.settings = connections.configure_settings({"default": app.database(url)})
    monkeypatch.setattr(app, "runtime", lambda: the_shop)
    return app


@pytest.fixture(params=["fastapi", "flask", "django"])
def send(
    request: pytest.FixtureRequest, the_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Send]:
    makers = {"fastapi": fastapi_client, "flask": flask_client, "django": django_client}
    yield makers[request.param](the_shop, monkeypatch)
    if request.param == "django":
        from django.db import connections

        connections.close_all()


def order(number: int = 1, amount: int = 10) -> dict[str, Any]:
    return {"number": number, "article": "lamp", "amount": amount}


@pytest.mark.proves("COL-01", "D-01")
def test_a_request_commits_its_order_and_its_saga_and_then_sends(
    the_shop: Shop, send: Send
) -> None:
    status, placed = send("POST", "/orders", order())
    assert status == 201
    assert (the_shop.count("shop_orders"), the_shop.count("sagas")) == (1, 1)
    assert the_shop.news() == ["shelf.reserve"]
    assert the_shop.unseen == []
    assert UUID(placed["saga"]) == the_shop.sent[0].saga_id


@pytest.mark.proves("COL-01", "D-01")
def test_a_request_that_fails_leaves_neither_an_order_nor_a_saga_nor_a_message(
    the_shop: Shop, send: Send
) -> None:
    assert send("POST", "/orders", order(amount=shop.CREDIT + 1))[0] == 403
    assert (the_shop.count("shop_orders"), the_shop.count("sagas")) == (0, 0)
    assert the_shop.news() == []
    assert send("POST", "/orders", order())[0] == 201
    assert the_shop.news() == ["shelf.reserve"]


def test_an_order_that_is_placed_twice_is_refused_and_starts_nothing(
    the_shop: Shop, send: Send
) -> None:
    assert send("POST", "/orders", order())[0] == 201
    the_shop.sent.clear()
    assert send("POST", "/orders", order())[0] == 500
    assert (the_shop.count("shop_orders"), the_shop.count("sagas")) == (1, 1)
    assert the_shop.news() == []


def test_a_bad_order_is_refused_before_anything_is_written(the_shop: Shop, send: Send) -> None:
    assert send("POST", "/orders", order(amount=0))[0] == 422
    assert (the_shop.count("shop_orders"), the_shop.count("sagas")) == (0, 0)


def test_the_state_of_an_orders_saga_is_shown(the_shop: Shop, send: Send) -> None:
    send("POST", "/orders", order())
    assert send("GET", "/orders/1") == (200, {"number": 1, "state": "running", "results": {}})
    the_shop.work()
    _, shown = send("GET", "/orders/1")
    assert shown == {"number": 1, "state": "running", "results": {"goods": "one lamp"}}
    assert send("GET", "/orders/2")[0] == 404


def accepted(the_shop: Shop, send: Send) -> tuple[str, Path]:
    """Place an order that the bank has accepted a while ago; return its saga and the payment."""
    saga = send("POST", "/orders", order())[1]["saga"]
    the_shop.work()
    for _ in range(8):
        the_shop.now += timedelta(minutes=5)
        the_shop.supervisor.sweep()
        the_shop.work()
    the_shop.now += timedelta(seconds=2)
    payment = the_shop.payment(saga)
    assert payment.state == "unknown"
    assert payment.wake_at > the_shop.now + timedelta(minutes=1)
    (file,) = shop.bank("").iterdir()
    return saga, file


@pytest.mark.parametrize(
    ("decided", "state"), [(shop.PAID, "completed"), (shop.REFUSED, "compensated")]
)
def test_a_webhook_has_the_partner_asked_at_once(
    the_shop: Shop, send: Send, decided: str, state: str
) -> None:
    saga, payment = accepted(the_shop, send)
    payment.write_text(decided)
    assert send("POST", f"/webhooks/bank/{saga}/payment", {"what": "it says"})[0] == 204
    assert the_shop.news() == ["bank.pay.probe"]
    the_shop.work()
    assert send("GET", "/orders/1")[1]["state"] == state


def test_a_webhook_that_lies_changes_nothing(the_shop: Shop, send: Send) -> None:
    saga, _ = accepted(the_shop, send)
    assert send("POST", f"/webhooks/bank/{saga}/payment", {"paid": True})[0] == 204
    the_shop.work()
    assert send("GET", "/orders/1")[1]["state"] == "running"
    assert the_shop.payment(saga).state == "unknown"


def test_a_webhook_about_what_is_not_in_doubt_or_not_there_is_harmless(
    the_shop: Shop, send: Send
) -> None:
    saga = send("POST", "/orders", order())[1]["saga"]
    the_shop.sent.clear()
    for path in (f"{saga}/goods", f"{saga}/payment", f"{saga}/nothing", f"{uuid4()}/payment"):
        assert send("POST", f"/webhooks/bank/{path}")[0] == 204
    assert the_shop.news() == []


def test_the_journal_says_who_rang(the_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    send = fastapi_client(the_shop, monkeypatch)
    saga, _ = accepted(the_shop, send)
    send("POST", f"/webhooks/bank/{saga}/payment")
    table: Any = JournalEntry.__table__
    with the_shop.store.reading() as connection:
        mine = table.c.actor == "bank"
        (entry,) = connection.execute(select(table).where(mine)).all()
    assert (entry.verb, entry.path) == ("probe", "payment")
    assert entry.reason == "its partner says that there is news"


# --- Django's own ways ---------------------------------------------------------------------------


@pytest.fixture
def djangos(the_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    app = django_app(the_shop, monkeypatch)
    app.lay_table()
    from django.db import connection, connections, transaction

    yield SimpleNamespace(
        Order=app.Order,
        connection=connection,
        atomic=transaction.atomic,
        set_rollback=transaction.set_rollback,
    )
    connections.close_all()


def start(the_shop: Shop, djangos: SimpleNamespace, number: int = 1) -> Handle:
    return the_shop.scheduler.start(
        "order", order(number), key=f"order-{number}", connection=djangos.connection
    )


def sagas(the_shop: Shop) -> int:
    with the_shop.store.reading() as connection:
        return connection.execute(select(func.count()).select_from(Saga.__table__)).scalar_one()


def test_django_without_an_atomic_block_is_refused(
    the_shop: Shop, djangos: SimpleNamespace
) -> None:
    with pytest.raises(InputError, match=r"with transaction\.atomic"):
        start(the_shop, djangos)
    assert sagas(the_shop) == 0


def test_djangos_savepoint_takes_its_saga_and_its_message_with_it(
    the_shop: Shop, djangos: SimpleNamespace
) -> None:
    with djangos.atomic():
        kept = start(the_shop, djangos, 1)
        with djangos.atomic():
            start(the_shop, djangos, 2)
            djangos.set_rollback(True)
        assert the_shop.sent == []
    assert [message.saga_id for message in the_shop.sent] == [kept.saga_id]
    assert sagas(the_shop) == 1


def test_a_transaction_that_django_has_given_up_is_refused_in_its_own_words(
    the_shop: Shop, djangos: SimpleNamespace
) -> None:
    from django.db import IntegrityError
    from django.db.transaction import TransactionManagementError

    with djangos.atomic():
        djangos.Order.objects.create(number=1, saga_id=uuid4())
        with pytest.raises(IntegrityError):
            djangos.Order.objects.create(number=1, saga_id=uuid4())
        with pytest.raises(TransactionManagementError):
            start(the_shop, djangos)
        djangos.set_rollback(True)
    assert sagas(the_shop) == 0


def test_an_error_of_the_database_is_djangos(the_shop: Shop, djangos: SimpleNamespace) -> None:
    from django.db import DatabaseError

    with djangos.atomic():
        with djangos.connection.cursor() as cursor:
            cursor.execute("ALTER TABLE sagas RENAME TO hidden")
        with pytest.raises(DatabaseError, match="sagas"):
            start(the_shop, djangos)
        djangos.set_rollback(True)


def test_django_without_time_zones_does_not_disturb_what_is_read(
    the_shop: Shop, djangos: SimpleNamespace
) -> None:
    from django.test import override_settings

    the_shop.scheduler.store = store = Store(the_shop.store.engine)
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"), djangos.atomic():
        start(the_shop, djangos)
    with store.reading() as connection:
        table: Any = Saga.__table__
        (saga,) = connection.execute(select(table)).all()
        assert abs(store.time(connection) - saga.created_at) < timedelta(minutes=1)
