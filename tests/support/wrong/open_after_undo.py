"""The compensation is declared to close the key, and does not."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay


class Reopened(Shop):
    def cancel(self, call: Call[Any], made: str | None) -> None:
        with self.world.request():
            self.undo(call.action_key)


shop = Reopened()


@agent("shop.order")
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.compensation(shop.cancel, closes_key=True)


workflow = then_pay("open_after_undo", shop)
