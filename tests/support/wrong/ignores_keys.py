"""Declared idempotent, and the partner does not look at keys."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay


class Careless(Shop):
    def knows(self, key: str) -> bool:
        return False


shop = Careless()


@agent("shop.order", idempotent=True)
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.compensation(shop.cancel, closes_key=True)


workflow = then_pay("ignores_keys", shop)
