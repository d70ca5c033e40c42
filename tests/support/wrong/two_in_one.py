"""One call has two effects, and only one of them is ever undone."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay

shop = Shop()


@agent("shop.order", idempotent=True)
def order(call: Call[Any]) -> str:
    shop.order(call, key=f"{call.key}/insurance")
    return shop.order(call)


order.compensation(shop.cancel, closes_key=True)


workflow = then_pay("two_in_one", shop)
