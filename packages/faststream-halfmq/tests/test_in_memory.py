"""``TestHalfmqBroker``: handlers are called without a broker, with the same messages as from one."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import SubscriberNotFound
from faststream.message import AckStatus
from pydantic import BaseModel, ValidationError

from faststream_halfmq import HalfmqBroker, HalfmqResponse, HalfmqRouter, TestHalfmqBroker
from faststream_halfmq.annotations import HalfmqMessage as TheMessage
from faststream_halfmq.testing import InMemoryProducer
from halfmq import UsageError
from halfmq.client.retry_policy import NotDecoded
from halfmq.testing import Sent


class Order(BaseModel):
    id: int


class Shop:
    """A broker with handlers that publish to each other."""

    def __init__(self, url: str) -> None:
        self.broker = HalfmqBroker(url, group="shop", logger=None)
        self.seen: list[Any] = []
        self.status: AckStatus | None = None
        broker = self.broker

        @broker.subscriber("orders", group="billing")
        @broker.publisher("invoices", tag="paper")
        async def bill(order: Order, message: TheMessage) -> dict[str, int]:
            self.seen.append((order.id, message.raw_message.key, message.headers.get("source")))
            if order.id < 0:
                raise RuntimeError("no money")
            return {"of": order.id}

        @broker.subscriber("invoices", group="printing", tags="paper")
        async def print_out(invoice: dict[str, int], message: TheMessage) -> None:
            self.seen.append((invoice, message.raw_message.tag))

        @broker.subscriber("settled", ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def settle(how: str, message: TheMessage) -> None:
            await getattr(message, how)()
            self.status = message.committed

        self.bill = bill
        self.print_out = print_out


@pytest.fixture(params=["in memory", "real"])
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    """The same tests with both."""
    is_real = request.param == "real"
    shop = Shop(request.getfixturevalue("halfmq_url") if is_real else "rocketmq://127.0.0.1:1")
    async with TestHalfmqBroker(shop.broker, with_real=is_real):
        yield shop


@pytest.fixture
async def in_memory() -> AsyncIterator[Shop]:
    shop = Shop("rocketmq://127.0.0.1:1")
    async with TestHalfmqBroker(shop.broker):
        yield shop


async def test_a_handler_and_what_it_publishes_are_called(shop: Shop) -> None:
    await shop.broker.publish({"id": 7}, "orders", key=7, headers={"source": "web"})
    await shop.print_out.wait_call(60)
    shop.bill.mock.assert_called_once_with({"id": 7})
    assert shop.seen == [(7, "7", "web"), ({"of": 7}, "paper")]


async def test_a_request_gets_what_the_handler_returned(shop: Shop) -> None:
    reply = await shop.broker.request({"id": 7}, "orders", timeout=60)
    assert await reply.decode() == {"of": 7}


async def test_an_exception_of_a_handler_is_raised_where_the_message_was_published(in_memory: Shop) -> None:
    with pytest.raises(RuntimeError, match="no money"):
        await in_memory.broker.publish({"id": -1}, "orders")


async def test_a_body_that_cannot_be_decoded_is_an_exception(in_memory: Shop) -> None:
    with pytest.raises(ValidationError):
        await in_memory.broker.publish({"id": "none"}, "orders")
    with pytest.raises(NotDecoded):
        await in_memory.broker.publish(b"{", "orders", headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("how", "status"),
    [("ack", AckStatus.ACKED), ("nack", AckStatus.NACKED), ("reject", AckStatus.REJECTED)],
)
async def test_a_message_knows_how_it_was_settled(in_memory: Shop, how: str, status: AckStatus) -> None:
    await in_memory.broker.publish(how, "settled")
    assert in_memory.status == status


async def test_each_group_gets_a_message_once_and_other_tags_are_not_delivered(in_memory: Shop) -> None:
    seen = []
    for group in ("a", "b", "b"):

        @in_memory.broker.subscriber("numbers", group=group, tags="one || two")
        async def handle(number: int) -> None:
            seen.append(number)

    async with TestHalfmqBroker(in_memory.broker) as broker:
        await broker.publish_batch(1, 2, topic="numbers", tag="one")
        await broker.publish(3, "numbers", tag="three")
        await broker.publish(4, "numbers")
    assert seen == [1, 1, 2, 2]


async def test_a_response_whose_sharding_key_keeps_no_order_is_refused(in_memory: Shop) -> None:
    @in_memory.broker.subscriber("numbers")
    @in_memory.broker.publisher("sums")
    async def add(number: int) -> HalfmqResponse:
        return HalfmqResponse(number, sharding_key="")

    async with TestHalfmqBroker(in_memory.broker) as broker:
        with pytest.raises(UsageError, match="sharding_key '' is empty"):
            await broker.publish(1, "numbers")


async def test_a_request_without_a_subscriber_is_an_exception(in_memory: Shop) -> None:
    with pytest.raises(SubscriberNotFound):
        await in_memory.broker.request(1, "nobody")


async def test_a_router_is_included(in_memory: Shop) -> None:
    router = HalfmqRouter(prefix="eu-")
    seen = []

    @router.subscriber("orders")
    async def bill(order: Order) -> None:
        seen.append(order.id)

    in_memory.broker.include_router(router)
    async with TestHalfmqBroker(in_memory.broker) as broker:
        await broker.publish({"id": 1}, "eu-orders")
    assert seen == [1]


async def test_the_broker_is_as_before_after_the_block(halfmq_url: str, halfmq_sent: Sent) -> None:
    shop = Shop(halfmq_url)
    async with TestHalfmqBroker(shop.broker):
        await shop.broker.publish({"id": 1}, "orders")
    assert not isinstance(shop.broker.config.producer, InMemoryProducer)
    assert not shop.broker.client.is_open
    halfmq_sent.nothing()
