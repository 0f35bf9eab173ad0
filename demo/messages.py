"""What the order service says: the two messages of an order, as JSON."""

import msgspec

from demo.data import Basket


class OrderMessage(msgspec.Struct):
    basket_id: int
    household_id: int
    store_id: int
    sold_at: str
    total_cents: int
    #: (product, quantity, cents, department)
    lines: list[tuple[int, int, int, str]]


class LoyaltyMessage(msgspec.Struct):
    basket_id: int
    household_id: int
    points: int
    total_cents: int


def order_message(basket: Basket) -> OrderMessage:
    return OrderMessage(
        basket.basket_id,
        basket.household_id,
        basket.store_id,
        basket.sold_at,
        basket.total_cents,
        [tuple(line) for line in basket.lines],
    )


def loyalty_message(basket: Basket) -> LoyaltyMessage:
    return LoyaltyMessage(basket.basket_id, basket.household_id, basket.points, basket.total_cents)
