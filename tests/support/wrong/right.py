"""Nothing is wrong here: whatever is declared is kept."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay

shop = Shop()


@agent("shop.order", idempotent=True)
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.probe(shop.find)
order.close(shop.close)
order.compensation(shop.cancel, closes_key=True)


workflow = then_pay("right", shop)
