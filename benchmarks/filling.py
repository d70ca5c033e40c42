"""Fill a database with copies of sagas that really ran, ended or under way, and make some stuck.

The copies are made by the server, a million in a minute or two. Those that ended were completed at
once, after a doubt, or compensated. Of those under way none is due for a day.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg

from benchmarks.places import plain
from models.base import Base
from orchestration import Step, Workflow, sequence
from orchestration.contract import AgentContract
from orchestration.database import open_engine
from orchestration.events import Done, Failed, FailureKind
from orchestration.lease import Leases
from orchestration.ports import SilentDispatcher
from orchestration.registry import Registry
from orchestration.roster import Roster
from orchestration.scheduler import Scheduler
from orchestration.signals import Applied
from orchestration.store import Store
from orchestration.supervisor import Supervisor

INTERVAL = 2.0
"""Seconds between two sweeps, as by default."""
STEPS = ("fetch", "pay", "tell")
WORK = AgentContract(name="work", queue="work", idempotent=True, probe=True, compensation=True)
GROWTH = Workflow(
    "growth", version=1, steps=sequence(*(Step(name, agent=WORK.name) for name in STEPS))
)
AHEAD = "interval '1 day'"
ENDED = {"completed": 8, "after a doubt": 1, "compensated": 1}
"""What ended sagas there are, and how many of ten."""
LIVE = ("dispatched", "leased", "retrying", "unknown")
"""Where the second step of a saga under way stands; a quarter of them each."""
OF_SAGAS = ("steps", "attempts", "journal")
NEW_ID = """
CREATE FUNCTION new_id(n bigint) RETURNS uuid IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
SELECT (lpad(to_hex(1790000000000 + n), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
        || substr(md5(n::text), 4, 15))::uuid $$;
CREATE TABLE stuck (saga_id uuid PRIMARY KEY, path text NOT NULL);
"""
"""The table tells the server's keeper, too, that the database is no longer of use to others."""


class Bench:
    """One process's scheduler, worker and supervisor over one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = Store(open_engine(url))
        registry = Registry()
        registry.add_agent(WORK)
        registry.add_workflow(GROWTH)
        self.scheduler = Scheduler(self.store, SilentDispatcher(), registry)
        self.known = set(self.scheduler.register_definitions())
        self.leases = Leases(self.scheduler)
        roster = Roster(self.store)
        for number in range(50):  # Workers come and go.
            node, _ = roster.register(f"ended{number}", 1, ["work"], sorted(self.known))
            roster.end(node.id)
        self.node, _ = roster.register("worker", 1, ["work"], sorted(self.known))
        self.supervisor = Supervisor(
            self.scheduler,
            SilentDispatcher(),
            node_timeout=timedelta(days=1),
            keep_ended=timedelta(days=30),
            go_on_for=timedelta(seconds=INTERVAL),
        )
        self.keys = 0

    def sql(self, statement: str, *given: Any) -> int:
        with psycopg.connect(plain(self.url), autocommit=True) as connection:
            # Rows are copied with what they refer to; checking each would take most of the time.
            connection.execute("SET session_replication_role = replica")
            connection.execute("SET synchronous_commit = off")
            return connection.execute(statement, given).rowcount

    # --- sagas that really run -------------------------------------------------------------------

    def start(self) -> UUID:
        self.keys += 1
        key = f"order-{self.keys}"
        return self.scheduler.start("growth", {"order": key, "amount": 4200}, key=key).saga_id

    def grant(self, saga: UUID, path: str, number: int = 1) -> Any:
        work = self.leases.grant(saga, path, number, self.node, self.known)
        assert work is not None, f"{path} was not granted"
        return work

    def report(self, work: Any, outcome: Any = None) -> None:
        self.leases.report(work, outcome or Done(result={"reference": "AB-1234567", "ok": True}))

    def ended(self, how: str) -> UUID:
        """Run a saga to one of its ends."""
        saga = self.start()
        self.report(self.grant(saga, "fetch"))
        if how == "after a doubt":
            self.grant(saga, "pay")
            self.scheduler.lost(saga, "pay", 1, "its worker process 1 is gone")
            self.leases.answer(saga, "pay", 1, Applied({"reference": "AB-1"}))
            self.report(self.grant(saga, "tell"))
        elif how == "compensated":
            refusal = Failed(kind=FailureKind.PERMANENT, type="SoldOut", message="no room left")
            self.report(self.grant(saga, "pay"), refusal)
            self.report(self.grant(saga, "fetch", 2))
        else:
            self.report(self.grant(saga, "pay"))
            self.report(self.grant(saga, "tell"))
        return saga

    def live(self, state: str) -> UUID:
        """Bring a saga to where its second step stands in a state, and is not due for a day."""
        saga = self.start()
        self.report(self.grant(saga, "fetch"))
        if state == "retrying":
            busy = Failed(kind=FailureKind.LATER, type="Busy", message="later")
            self.report(self.grant(saga, "pay"), busy)
        elif state != "dispatched":
            self.grant(saga, "pay")
        if state == "unknown":
            self.scheduler.lost(saga, "pay", 1, "its worker process 1 is gone")
        # A copy has no message: if it were counted in the queue, messages would seem to be lost.
        elsewhere = "CASE state WHEN 'dispatched' THEN 'elsewhere' ELSE queue END"
        found = self.sql(
            f"UPDATE steps SET queue = {elsewhere}, wake_at = now() + {AHEAD}, deadline_at = CASE "
            f"WHEN deadline_at IS NULL THEN NULL ELSE now() + {AHEAD} END "
            "WHERE saga_id = %s AND state = %s",
            saga,
            state,
        )
        assert found == 1, f"{state} was not reached"
        self.sql(f"UPDATE sagas SET wake_at = now() + {AHEAD} WHERE id = %s", saga)
        return saga

    # --- their copies ----------------------------------------------------------------------------

    def copy(self, saga: UUID, first: int, count: int, **changed: str) -> None:
        """Copy a saga with all its rows; ``changed`` are SQL expressions of ``n`` for its row."""
        own = {"id": "new_id(n)", "key": "'copy-' || n", **changed}
        self._copy("sagas", "id", own, saga, first, count)
        for table in OF_SAGAS:
            self._copy(table, "saga_id", {"saga_id": "new_id(n)"}, saga, first, count)

    def _copy(
        self, table: str, key: str, changed: dict[str, str], saga: UUID, first: int, count: int
    ) -> None:
        numbered = table == "journal"
        columns = [c.name for c in Base.metadata.tables[table].columns]
        names = [name for name in columns if not (numbered and name == "id")]
        chosen = ", ".join(changed.get(name, f'"{name}"') for name in names)
        listed = ", ".join(f'"{name}"' for name in names)
        self.sql(
            f"INSERT INTO {table} ({listed}) SELECT {chosen} FROM {table}, "
            f"generate_series({first}::bigint, {first + count - 1}) AS n WHERE {key} = %s",
            saga,
        )

    def settle(self) -> None:
        """Leave the tables as autovacuum would."""
        self.sql("VACUUM (ANALYZE)")


def fill_ended(bench: Bench, first: int, count: int) -> None:
    """Add ended sagas; their ends are spread over the month in which none is deleted yet."""
    begin = first
    for how, share in ENDED.items():
        some = count * share // 10
        ended = "now() - interval '29 days' + interval '1 second' * mod(n, 2400000)"
        saga = bench.ended(how)
        # Otherwise every copy is kept for minutes, for its processes might still report.
        bench.sql(
            "UPDATE steps SET granted_at = now() - interval '29 days' WHERE saga_id = %s", saga
        )
        bench.copy(saga, begin, some, created_at=ended, ended_at=ended)
        begin += some
    bench.settle()


def fill_live(bench: Bench, first: int, count: int) -> None:
    """Add sagas under way, none of which is due."""
    some = count // len(LIVE)
    for number, state in enumerate(LIVE):
        bench.copy(bench.live(state), first + number * some, some)
    bench.settle()


# --- what is stuck --------------------------------------------------------------------------------

# What was acted on and is due again, since no worker takes it, is not stuck.
OVERDUE = (
    f"SELECT count(*) FROM steps WHERE state IN {LIVE} AND wake_at < now() - interval '30 minutes'"
)
_MAKE_STUCK = """
WITH found AS (
    UPDATE steps SET queue = %s, wake_at = now() - interval '1 hour', deadline_at =
        CASE WHEN deadline_at IS NULL THEN NULL ELSE now() - interval '1 hour' END
    WHERE (saga_id, path) IN (
        SELECT saga_id, path FROM steps
        WHERE state = %s AND wake_at > now() + interval '6 hours' LIMIT %s
    ) RETURNING saga_id, path
) INSERT INTO stuck SELECT saga_id, path FROM found
"""


def make_stuck(bench: Bench, count: int) -> None:
    """Let so many steps be overdue, of each state as many; the table ``stuck`` names them."""
    bench.sql("DELETE FROM stuck")
    for state in LIVE:
        found = bench.sql(_MAKE_STUCK, WORK.queue, state, count // len(LIVE))
        assert found == count // len(LIVE), f"not so many are {state}"
