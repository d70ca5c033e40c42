"""Nothing is wrong here, but the partner does not say when a request comes in."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay


class Silent(Shop):
    def order(self, call: Call[Any], key: str = "") -> str:
        if not self.knows(call.key):
            self.add(call, call.key)
        return "ordered"

    def cancel(self, call: Call[Any], made: str | None) -> None:
        self.undo(call.action_key)


shop = Silent()


@agent("shop.order", idempotent=True)
def order(call: Call[Any]) -> str:
    return shop.order(call)


@agent("shop.charge", idempotent=True)
def charge(call: Call[Any]) -> str:
    return shop.order(call)


order.compensation(shop.cancel)

workflow = then_pay("silent", shop, pays="shop.charge")
