"""Nothing is wrong here: each step is settled in another way, and each way is kept."""

from datetime import datetime, timedelta
from typing import Any

from orchestration import (
    Absent,
    Answer,
    Applied,
    OutcomeUnknown,
    PermanentFailure,
    RetryPolicy,
    Step,
    Workflow,
    parallel,
    sequence,
)
from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop

LIFETIME = timedelta(minutes=1)
LAG = timedelta(seconds=20)
RETENTION = timedelta(hours=2)


class Careful(Shop):
    """It forgets keys, refuses what is too old, and shows what it has done only after a while."""

    def order_in_time(self, call: Call[Any]) -> str:
        expires_at = self.world.now() + call.time_left + LIFETIME
        with self.world.request():
            if self.world.now() > expires_at:
                raise PermanentFailure("too old")
            if not self.knows(call.key):
                self.add(call, call.key)
        return "ordered"

    def find_late(self, call: Call[Any]) -> Answer:
        with self.world.request():
            shown = self.since(self.world.now() - LAG, call.key)
            return Applied("ordered") if shown else Absent()

    def since(self, at: datetime, key: str) -> bool:
        return any(line.key == key and line.at <= at for line in self.lines)

    def order_remembered(self, call: Call[Any]) -> str:
        with self.world.request():
            oldest = self.world.now() - RETENTION
            if not any(line.key == call.key and line.at > oldest for line in self.lines):
                self.add(call, call.key)
        return "ordered"

    def undo_only(self, call: Call[Any], made: str | None) -> None:
        with self.world.request():
            self.undo(call.action_key)


shop = Careful()


@agent("kept.closed")
def closed(call: Call[Any]) -> str:
    return shop.order(call)


closed.close(shop.close)
closed.compensation(shop.undo_only)


@agent("kept.barred")
def barred(call: Call[Any]) -> str:
    return shop.order(call)


barred.compensation(shop.cancel, closes_key=True)


@agent("kept.in_time", idempotent=True, request_lifetime=LIFETIME)
async def in_time(call: Call[Any]) -> str:
    try:
        return shop.order_in_time(call)
    except TimeoutError as error:
        raise OutcomeUnknown(str(error)) from error


in_time.probe(shop.find_late, staleness=LAG)
in_time.compensation(shop.undo_only)


@agent("kept.remembered", idempotent=True, key_retention=RETENTION)
def remembered(call: Call[Any]) -> str:
    return shop.order_remembered(call)


remembered.compensation(shop.cancel, closes_key=True)


@agent("kept.query", effect=False)
def query(call: Call[Any]) -> str:
    with shop.world.request():
        return "nothing is done"


@agent("kept.paid", idempotent=True)
def paid(call: Call[Any]) -> str:
    return shop.order(call)


twice = RetryPolicy(max_attempts=2)
workflow = Workflow(
    "kept",
    version=1,
    steps=sequence(
        Step("query", agent="kept.query"),
        parallel(
            Step("closed", agent="kept.closed", retry=twice),
            Step("barred", agent="kept.barred", retry=twice),
        ),
        Step("in_time", agent="kept.in_time", timeout=timedelta(minutes=1)),
        Step("remembered", agent="kept.remembered"),
        Step("paid", agent="kept.paid", pivot=True),
        Step("sent", agent="kept.paid"),
    ),
)
