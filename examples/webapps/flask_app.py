"""Flask and a plain DB-API connection: its commit tells nobody, so the view publishes after it.

``ATALAIA_WORKFLOWS=examples.webapps.shop ATALAIA_AGENTS=examples.webapps.shop
flask --app examples.webapps.flask_app run``
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

import psycopg
from flask import Flask, abort, request
from pydantic import ValidationError
from sqlalchemy import URL

from examples.webapps import shop
from orchestration.handle import Handle
from orchestration.scheduler import Scheduler
from tasks.app import runtime

TABLE = "CREATE TABLE IF NOT EXISTS shop_orders (number INTEGER PRIMARY KEY, saga_id CHAR(36))"


def connect(url: URL) -> Any:
    """Open the database of the sagas, as the driver itself does it."""
    if url.get_backend_name() == "sqlite":
        return sqlite3.connect(url.database or "", timeout=30, isolation_level="IMMEDIATE")
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain)


def execute(connection: Any, statement: str, *values: Any) -> Any:
    """Run a statement; psycopg writes ``%s`` where sqlite3 writes ``?``."""
    own = isinstance(connection, sqlite3.Connection)
    return connection.execute(statement if own else statement.replace("?", "%s"), values)


@contextmanager
def transaction(url: URL) -> Iterator[Any]:
    """Yield the transaction of a request: an exception rolls it back."""
    with closing(connect(url)) as connection, connection:
        yield connection


def create_app(scheduler: Scheduler | None = None) -> Flask:
    """Return the app; the sagas are those of ``ATALAIA_DATABASE_URL`` unless told otherwise."""
    scheduler = scheduler or runtime().scheduler
    url = scheduler.store.engine.url
    app = Flask("shop")
    with transaction(url) as connection:
        execute(connection, TABLE)

    @app.post("/orders")
    def place() -> Any:
        try:
            asked = shop.Order.model_validate(request.get_json())
        except ValidationError as error:
            abort(422, str(error))
        with transaction(url) as connection:
            handle = scheduler.start(
                "order", asked, key=f"order-{asked.number}", connection=connection
            )
            row = asked.number, str(handle.saga_id)
            execute(connection, "INSERT INTO shop_orders VALUES (?, ?)", *row)
            if asked.amount > shop.CREDIT:
                abort(403, "over the credit limit")
        handle.publish()
        return {"number": asked.number, "saga": handle.saga_id}, 201

    @app.get("/orders/<int:number>")
    def show(number: int) -> Any:
        with transaction(url) as connection:
            query = "SELECT saga_id FROM shop_orders WHERE number = ?"
            row = execute(connection, query, number).fetchone()
        if row is None:
            abort(404, "no such order")
        saga = Handle(scheduler.store, UUID(row[0])).result()
        return {"number": number, "state": saga.state, "results": saga.results}

    @app.post("/webhooks/bank/<uuid:saga_id>/<step>")
    def bank_rings(saga_id: UUID, step: str) -> Any:
        scheduler.hasten(saga_id, step, by="bank")
        return "", 204

    return app
