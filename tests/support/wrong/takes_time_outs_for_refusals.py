"""A time-out is reported as if certainly nothing had happened."""

from typing import Any

from orchestration import PermanentFailure
from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay

shop = Shop()


@agent("shop.order", idempotent=True)
def order(call: Call[Any]) -> str:
    try:
        return shop.order(call)
    except TimeoutError as error:
        raise PermanentFailure("the shop did not answer") from error


order.compensation(shop.cancel, closes_key=True)


workflow = then_pay("takes_time_outs_for_refusals", shop)
