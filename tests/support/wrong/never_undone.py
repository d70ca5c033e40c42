"""An effect before the pivot that has no compensation."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay

shop = Shop()


@agent("shop.order", idempotent=True)
def order(call: Call[Any]) -> str:
    return shop.order(call)


workflow = then_pay("never_undone", shop)
