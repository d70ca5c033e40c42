"""A step after the pivot that can neither be repeated nor closed."""

from typing import Any

from orchestration import Step, Workflow, sequence
from tasks.agent import Call, agent
from tests.support.wrong.shop import Shop, then_pay

shop = Shop()


@agent("shop.order", idempotent=True)
def order(call: Call[Any]) -> str:
    return shop.order(call)


order.compensation(shop.cancel, closes_key=True)


@agent("shop.letter")
def letter(call: Call[Any]) -> str:
    return shop.order(call)


workflow = Workflow(
    "after_the_pivot",
    version=1,
    steps=sequence(then_pay("paid", shop).steps, Step("letter", agent="shop.letter")),
)
