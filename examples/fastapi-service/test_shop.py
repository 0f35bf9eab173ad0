import asyncio

import httpx2
import pytest

from halfmq.testing import TRANSACTION_POINTS, crash


@pytest.fixture
async def http(api):
    """The service on the event loop of the test, so that a crash ends the request that it is in."""
    transport = httpx2.ASGITransport(api)
    async with (
        api.router.lifespan_context(api),
        httpx2.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        yield client


async def test_an_order_is_announced(http, halfmq_sent):
    placed = await http.post("/orders", json={"item": "tea"})
    assert placed.status_code == 201
    (message,) = halfmq_sent("orders")
    assert message.json() == {"id": placed.json(), "item": "tea"}


async def test_what_is_no_order_is_not_announced(http, halfmq_sent):
    assert (await http.post("/orders", json={})).status_code == 422
    halfmq_sent.nothing()


@pytest.mark.parametrize("point", TRANSACTION_POINTS)
async def test_orders_and_messages_agree_after_a_crash(http, halfmq_broker, halfmq_sent, point):
    await http.post("/orders", json={"item": "tea"})
    async with crash(point):
        await http.post("/orders", json={"item": "milk"})
    await asyncio.to_thread(halfmq_broker.settle)
    assert sorted(one.json()["id"] for one in halfmq_sent("orders")) == (await http.get("/orders")).json()
