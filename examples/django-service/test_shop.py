import pytest

from halfmq.testing import TRANSACTION_POINTS, crash

pytestmark = pytest.mark.django_db(transaction=True)  # a TestCase would commit nothing, so no message would appear


def test_an_order_is_announced(client, halfmq_sent):
    placed = client.post("/orders", {"item": "tea"})
    assert placed.status_code == 201
    (message,) = halfmq_sent("orders")
    assert message.json() == {"id": placed.json(), "item": "tea"}


@pytest.mark.parametrize("point", TRANSACTION_POINTS)
def test_orders_and_messages_agree_after_a_crash(client, halfmq_broker, halfmq_sent, point):
    client.post("/orders", {"item": "tea"})
    with crash(point):
        client.post("/orders", {"item": "milk"})
    halfmq_broker.settle()
    assert sorted(one.json()["id"] for one in halfmq_sent("orders")) == client.get("/orders").json()
