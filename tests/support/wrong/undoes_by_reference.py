"""The compensation needs the result, and does nothing where it was never learnt."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay


class ByReference(Shop):
    def cancel(self, call: Call[Any], made: str | None) -> None:
        if made is not None:
            super().cancel(call, made)


shop = ByReference()


@agent("shop.order")
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.compensation(shop.cancel, closes_key=True)


workflow = then_pay("undoes_by_reference", shop)
