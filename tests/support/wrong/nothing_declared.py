"""Of this agent nothing is declared but how to undo: no key, no close."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay

shop = Shop()


@agent("shop.order")
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.compensation(shop.cancel)


workflow = then_pay("nothing_declared", shop)
