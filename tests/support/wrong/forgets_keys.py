"""Declared to remember keys for a day, and the partner forgets them after five seconds."""

from datetime import timedelta
from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay


class Forgetful(Shop):
    def knows(self, key: str) -> bool:
        oldest = self.world.now() - timedelta(seconds=5)
        return any(line.key == key and line.at > oldest for line in self.lines)


shop = Forgetful()


@agent("shop.order", idempotent=True, key_retention=timedelta(days=1))
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.compensation(shop.cancel, closes_key=True)


workflow = then_pay("forgets_keys", shop)
