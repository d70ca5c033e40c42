"""Each attempt sends a key of its own making."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay

shop = Shop()


@agent("shop.order", idempotent=True)
def order(call: Call[Any]) -> str:
    return shop.order(call, key=f"{call.saga_id}/{call.step}/{call.attempt}")


order.compensation(shop.cancel, closes_key=True)


workflow = then_pay("own_keys", shop)
