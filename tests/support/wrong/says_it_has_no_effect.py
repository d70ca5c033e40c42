"""Declared effect=False, and the partner acts."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay

shop = Shop()


@agent("shop.order", effect=False)
def order(call: Call[Any]) -> str:
    return shop.order(call)


workflow = then_pay("says_it_has_no_effect", shop)
