"""A partner's books: keys, effects, stock and money, in one SQLite file.

Every public method is one transaction, so what has been answered survives a SIGKILL of the
partner and nothing is ever half done. Effects and transfers are only added to or marked as
cancelled, never deleted: they are what an auditor counts.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from examples.travel.wire import Order, Reply, Service, refusal

SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    key TEXT PRIMARY KEY, fingerprint TEXT, state TEXT NOT NULL, status INTEGER, body TEXT,
    recorded_at TEXT NOT NULL, settled_state TEXT, settled_at TEXT
);
CREATE TABLE IF NOT EXISTS effects (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, reference TEXT NOT NULL UNIQUE,
    saga TEXT NOT NULL, step TEXT NOT NULL, request TEXT NOT NULL,
    created_at TEXT NOT NULL, cancelled_at TEXT, cancel_key TEXT
);
CREATE INDEX IF NOT EXISTS ix_effects_key ON effects (key);
CREATE TABLE IF NOT EXISTS transfers (
    id INTEGER PRIMARY KEY, reference TEXT NOT NULL, debit TEXT NOT NULL, credit TEXT NOT NULL,
    amount INTEGER NOT NULL CHECK (amount > 0), currency TEXT NOT NULL, made_at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS deliveries (key TEXT PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, remaining INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS switches (id INTEGER PRIMARY KEY CHECK (id = 1), document TEXT);
"""
ANY_ITEM = "*"  # the stock of each item that is not named
MERCHANT = "merchant"


def now() -> str:
    """Return the present instant as sortable text; only this clock stamps the books."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def ago(duration: timedelta) -> str:
    """Return the instant this long in the past, in the books' notation."""
    return (datetime.now(UTC) - duration).isoformat(timespec="microseconds")


class Ledger:
    """The books of one partner. One process owns the file; calls come from one thread."""

    def __init__(self, path: Path, service: Service, stock: Mapping[str, int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.service = service
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(SCHEMA)
        # Stock is set by the first start only: a restart must not fill the shelves again.
        self._db.executemany("INSERT OR IGNORE INTO stock VALUES (?, ?)", list(stock.items()))

    def close_file(self) -> None:
        """Close the database file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _row(self, sql: str, *values: object) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._db.execute(sql, values).fetchone()
        return row

    # -- switches and deliveries

    def stored_switches(self) -> str | None:
        """Return the document last given to `store_switches`, or None."""
        row = self._row("SELECT document FROM switches")
        return None if row is None else row["document"]

    def store_switches(self, document: str) -> None:
        """Keep the switches over a restart."""
        self._db.execute("INSERT OR REPLACE INTO switches VALUES (1, ?)", (document,))

    def count_delivery(self, key: str) -> None:
        """Count one arrival of an order with this key, whatever becomes of it."""
        self._db.execute(
            "INSERT INTO deliveries VALUES (?, 1) ON CONFLICT DO UPDATE SET count = count + 1",
            (key,),
        )

    # -- orders

    def forget(self, key: str, *, older_than: timedelta) -> None:
        """Drop the result stored under a key if it is that old; a closed key stays closed."""
        self._db.execute(
            "DELETE FROM keys WHERE key = ? AND recorded_at < ? AND settled_state IS NULL",
            (key, ago(older_than)),
        )

    def recall(self, key: str, fingerprint: str) -> Reply | None:
        """Return the stored first result of a key, a refusal to reuse it, or None."""
        row = self._row("SELECT * FROM keys WHERE key = ?", key)
        if row is None:
            return None
        if row["settled_state"]:
            return refusal(410, "key_closed", f"this key was {row['settled_state']}")
        if row["fingerprint"] != fingerprint:
            return refusal(422, "key_reused", "this key was used for another request")
        return Reply(row["status"], json.loads(row["body"]), {"Idempotent-Replayed": "true"})

    def execute(
        self, key: str, order: Order, *, refuse: bool = False, error_500: str | None = None
    ) -> Reply:
        """Make the effect and store the reply under the key, unless the key is taken.

        `refuse` makes it a business refusal. `error_500` makes the stored reply a 500: "made"
        after the effect was made, "not_made" without it.
        """
        with self._transaction():
            taken = self.recall(key, order.fingerprint())
            if taken is not None:
                return taken
            reply, state = self._decide(key, order, refuse=refuse, error_500=error_500)
            self._db.execute(
                "INSERT INTO keys (key, fingerprint, state, status, body, recorded_at)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (key, order.fingerprint(), state, reply.status, json.dumps(reply.body), now()),
            )
            return reply

    def _decide(
        self, key: str, order: Order, *, refuse: bool, error_500: str | None
    ) -> tuple[Reply, str]:
        broken = refusal(500, "internal_error", "something went wrong here")
        if error_500 == "not_made":
            return broken, "rejected"
        if refuse or not self._take_stock(order):
            code = self.service.refusal
            return refusal(409, code, f"{order.item}: {code}"), "rejected"
        reply = self._make_effect(key, order)
        return (broken if error_500 else reply), "applied"

    def _make_effect(self, key: str, order: Order) -> Reply:
        last = self._row("SELECT coalesce(max(id), 0) AS id FROM effects")
        number = (last["id"] if last else 0) + 1
        reference = f"{self.service.prefix}-{number:06d}"
        made_at = now()
        self._db.execute(
            "INSERT INTO effects (id, key, reference, saga, step, request, created_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, key, reference, order.saga, order.step, order.model_dump_json(), made_at),
        )
        if self.service.charges and order.amount and order.currency:
            customer = f"customer:{order.customer}"
            self._transfer(reference, customer, MERCHANT, order.amount, order.currency)
        body = {"state": "applied", "reference": reference, "created_at": made_at}
        return Reply(201, {**body, "request": order.model_dump()}, fresh=True)

    def _transfer(
        self, reference: str, debit: str, credit: str, amount: int, currency: str
    ) -> None:
        self._db.execute(
            "INSERT INTO transfers (reference, debit, credit, amount, currency, made_at)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (reference, debit, credit, amount, currency, now()),
        )

    def _take_stock(self, order: Order) -> bool:
        """Take the quantity off the shelf; False if there is not enough. Unlisted is unlimited."""
        self._db.execute(
            "INSERT OR IGNORE INTO stock SELECT ?, remaining FROM stock WHERE item = ?",
            (order.item, ANY_ITEM),
        )
        listed = self._row("SELECT remaining FROM stock WHERE item = ?", order.item)
        if listed is None:
            return True
        if listed["remaining"] < order.quantity:
            return False
        self._return_stock(order.item, -order.quantity)
        return True

    def _return_stock(self, item: str, quantity: int) -> None:
        self._db.execute(
            "UPDATE stock SET remaining = remaining + ? WHERE item = ?", (quantity, item)
        )

    # -- look-up, close, cancel

    def find(self, key: str, *, staleness: timedelta) -> Reply:
        """Say what is known of a key, as the books stood `staleness` ago."""
        seen_at = ago(staleness)
        row = self._row("SELECT * FROM keys WHERE key = ? AND recorded_at <= ?", key, seen_at)
        if row is None:
            return refusal(404, "absent", "no order with this key")
        if row["settled_at"] and row["settled_at"] <= seen_at:
            return Reply(200, {"state": row["settled_state"]})
        if row["state"] == "rejected":
            return Reply(200, {"state": "rejected", **json.loads(row["body"])})
        if row["state"] != "applied":
            return refusal(404, "absent", "no order with this key")
        return Reply(200, self._applied(self._effects(key)[-1]))

    def close(self, key: str) -> Reply:
        """Make sure that the key never takes effect from now on, or say that it has."""
        with self._transaction():
            live = [effect for effect in self._effects(key) if effect["cancelled_at"] is None]
            if live:
                return Reply(200, self._applied(live[-1]))
            self._settle(key, "closed")
            return Reply(200, {"state": "closed"})

    def cancel(self, key: str, cancel_key: str) -> Reply:
        """Undo the effect of a key, if there is one, and close the key in either case."""
        with self._transaction():
            stored = self.recall(cancel_key, f"cancel {key}")
            if stored is not None:
                return stored
            live = [effect for effect in self._effects(key) if effect["cancelled_at"] is None]
            for effect in live:
                self._undo(effect, cancel_key)
            state = "cancelled" if live else "closed"
            self._settle(key, state)
            reply = Reply(
                200,
                {"state": state, "references": [effect["reference"] for effect in live]},
                fresh=bool(live),
            )
            self._db.execute(
                "INSERT INTO keys (key, fingerprint, state, status, body, recorded_at)"
                " VALUES (?, ?, 'cancel', ?, ?, ?)",
                (cancel_key, f"cancel {key}", reply.status, json.dumps(reply.body), now()),
            )
            return reply

    def _undo(self, effect: sqlite3.Row, cancel_key: str) -> None:
        self._db.execute(
            "UPDATE effects SET cancelled_at = ?, cancel_key = ? WHERE id = ?",
            (now(), cancel_key, effect["id"]),
        )
        order = Order.model_validate_json(effect["request"])
        self._return_stock(order.item, order.quantity)
        if self.service.charges and order.amount and order.currency:
            customer = f"customer:{order.customer}"
            self._transfer(effect["reference"], MERCHANT, customer, order.amount, order.currency)

    def _settle(self, key: str, state: str) -> None:
        """Leave a tombstone: from now on an order with this key is answered 410."""
        self._db.execute(
            "INSERT INTO keys (key, state, recorded_at, settled_state, settled_at)"
            " VALUES (:key, :state, :at, :state, :at) ON CONFLICT DO UPDATE"
            " SET settled_state = :state, settled_at = :at WHERE settled_state IS NULL",
            {"key": key, "state": state, "at": now()},
        )

    def _effects(self, key: str) -> list[sqlite3.Row]:
        return self._db.execute(
            "SELECT * FROM effects WHERE key = ? ORDER BY id", (key,)
        ).fetchall()

    @staticmethod
    def _applied(effect: sqlite3.Row) -> dict[str, Any]:
        return {
            "state": "applied",
            "reference": effect["reference"],
            "created_at": effect["created_at"],
            "request": json.loads(effect["request"]),
        }

    # -- the auditor's view

    def books(self) -> dict[str, Any]:
        """Everything that was ever done here, read in one transaction."""
        with self._transaction():
            effects = self._all("SELECT * FROM effects ORDER BY id")
            return {
                "service": self.service.name,
                "effects": [
                    {**effect, "request": json.loads(effect["request"])} for effect in effects
                ],
                "deliveries": {
                    row["key"]: row["count"] for row in self._all("SELECT * FROM deliveries")
                },
                "closed": [
                    row["key"]
                    for row in self._all("SELECT key FROM keys WHERE settled_state IS NOT NULL")
                ],
                "transfers": self._all("SELECT * FROM transfers ORDER BY id"),
                "stock": {
                    row["item"]: row["remaining"] for row in self._all("SELECT * FROM stock")
                },
            }

    def _all(self, sql: str) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.execute(sql)]
