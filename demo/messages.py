"""The messages, as JSON: two of an order, by the order service; and parts of the revenue, by Spark."""

import msgspec

from demo.data import Basket


class OrderLine(msgspec.Struct):
    product_id: int
    quantity: int
    cents: int
    department: str


class OrderMessage(msgspec.Struct):
    basket_id: int
    household_id: int
    store_id: int
    sold_at: str
    total_cents: int
    lines: list[OrderLine]


class LoyaltyMessage(msgspec.Struct):
    basket_id: int
    household_id: int
    points: int
    total_cents: int


class RevenueMessage(msgspec.Struct):
    """A part of the revenue of a department on a day; all parts add up to it."""

    department: str
    day: str
    cents: int
    lines: int


def order_message(basket: Basket) -> OrderMessage:
    return OrderMessage(
        basket.basket_id,
        basket.household_id,
        basket.store_id,
        basket.sold_at,
        basket.total_cents,
        [OrderLine(*line) for line in basket.lines],
    )


def loyalty_message(basket: Basket) -> LoyaltyMessage:
    return LoyaltyMessage(basket.basket_id, basket.household_id, basket.points, basket.total_cents)
