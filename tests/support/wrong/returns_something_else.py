"""What it returns is not what it declares."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay

shop = Shop()


@agent("shop.order", idempotent=True)
def order(call: Call[Any]) -> int:
    return shop.order(call)  # type: ignore[return-value]


order.compensation(shop.cancel, closes_key=True)


workflow = then_pay("returns_something_else", shop)
