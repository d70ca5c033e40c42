"""The probe reads what is a month old, and says nothing of it."""

from datetime import timedelta
from typing import Any

from orchestration import Absent, Answer
from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay


class Stale(Shop):
    def find(self, call: Call[Any]) -> Answer:
        with self.world.request():
            return Absent()


shop = Stale()


@agent("shop.order", idempotent=True, request_lifetime=timedelta(minutes=1))
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.probe(shop.find)
order.compensation(shop.cancel)


workflow = then_pay("looks_in_the_wrong_place", shop)
