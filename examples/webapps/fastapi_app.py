"""FastAPI and SQLAlchemy: the order and its saga are committed in one session, or neither is.

``ATALAIA_WORKFLOWS=examples.webapps.shop ATALAIA_AGENTS=examples.webapps.shop
uvicorn --factory examples.webapps.fastapi_app:create_app``
"""

from collections.abc import Iterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException, Request
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from examples.webapps import shop
from orchestration.handle import Handle
from orchestration.scheduler import Scheduler
from tasks.app import runtime


class Base(DeclarativeBase):
    """The app's own tables."""


class Order(Base):
    """An order, and the saga that delivers it."""

    __tablename__ = "shop_orders"

    number: Mapped[int] = mapped_column(primary_key=True)
    saga_id: Mapped[UUID]


def _session(request: Request) -> Iterator[Session]:
    """Yield the transaction of a request: an exception rolls it back."""
    with Session(request.app.state.scheduler.store.engine) as session, session.begin():
        yield session


# With this scope the commit comes before the answer, and not after it.
Transaction = Annotated[Session, Depends(_session, scope="function")]


def create_app(scheduler: Scheduler | None = None) -> FastAPI:
    """Return the app; the sagas are those of ``ATALAIA_DATABASE_URL`` unless told otherwise."""
    scheduler = scheduler or runtime().scheduler
    app = FastAPI(title="Shop")
    app.state.scheduler = scheduler
    Base.metadata.create_all(scheduler.store.engine)

    @app.post("/orders", status_code=201)
    def place(asked: shop.Order, session: Transaction) -> dict[str, Any]:
        handle = scheduler.start("order", asked, key=f"order-{asked.number}", session=session)
        session.add(Order(number=asked.number, saga_id=handle.saga_id))
        if asked.amount > shop.CREDIT:
            raise HTTPException(403, "over the credit limit")
        return {"number": asked.number, "saga": handle.saga_id}

    @app.get("/orders/{number}")
    def show(number: int, session: Transaction) -> dict[str, Any]:
        order = session.get(Order, number)
        if order is None:
            raise HTTPException(404, "no such order")
        saga = Handle(scheduler.store, order.saga_id).result()
        return {"number": number, "state": saga.state, "results": saga.results}

    @app.post("/webhooks/bank/{saga_id}/{step}", status_code=204)
    def bank_rings(saga_id: UUID, step: str) -> None:
        scheduler.hasten(saga_id, step, by="bank")

    return app
