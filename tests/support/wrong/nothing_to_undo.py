"""The compensation fails where there is nothing to undo."""

from typing import Any

from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay


class Strict(Shop):
    def cancel(self, call: Call[Any], made: str | None) -> None:
        if not any(line.key == call.action_key and not line.undone for line in self.lines):
            raise LookupError("no such order")
        super().cancel(call, made)


shop = Strict()


@agent("shop.order", idempotent=True)
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.compensation(shop.cancel, closes_key=True)


workflow = then_pay("nothing_to_undo", shop)
