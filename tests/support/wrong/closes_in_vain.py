"""The close answers Closed, and a request that is on its way takes effect all the same."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay


class Open(Shop):
    def order(self, call: Call[Any], key: str = "") -> str:
        with self.world.request():
            if not self.knows(call.key):
                self.add(call, call.key)
        return "ordered"


shop = Open()


@agent("shop.order")
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.probe(shop.find)
order.close(shop.close)
order.compensation(shop.cancel)


workflow = then_pay("closes_in_vain", shop)
