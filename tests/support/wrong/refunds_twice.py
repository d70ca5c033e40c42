"""The compensation pays back as often as it is called."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay


class Generous(Shop):
    def undo(self, key: str) -> None:
        for line in self.lines:
            line.undone += line.key == key


shop = Generous()


@agent("shop.order", idempotent=True)
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.compensation(shop.cancel, closes_key=True)


workflow = then_pay("refunds_twice", shop)
