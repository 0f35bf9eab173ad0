import orders
import pytest
from sqlalchemy import select

from halfmq.testing import TRANSACTION_POINTS, crash


def test_an_order_is_announced(halfmq_client, sessions, halfmq_sent):
    number = orders.place(halfmq_client, sessions, "tea")
    (message,) = halfmq_sent("orders")
    assert (message.json(), message.key) == ({"id": number, "item": "tea"}, str(number))


@pytest.mark.parametrize("point", TRANSACTION_POINTS)
def test_orders_and_messages_agree_after_a_crash(halfmq_client, sessions, halfmq_broker, halfmq_sent, point):
    orders.place(halfmq_client, sessions, "tea")
    with crash(point):
        orders.place(halfmq_client, sessions, "milk")
    halfmq_broker.settle()
    with sessions() as session:
        placed = session.scalars(select(orders.Order.id))
        assert sorted(one.json()["id"] for one in halfmq_sent("orders")) == sorted(placed)
