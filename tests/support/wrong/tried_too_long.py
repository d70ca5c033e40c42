"""The key is forgotten before the last attempt is over."""

from datetime import timedelta
from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay

shop = Shop()


@agent("shop.order", idempotent=True, key_retention=timedelta(minutes=20))
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.compensation(shop.cancel)


workflow = then_pay("tried_too_long", shop, timeout=timedelta(minutes=10))
