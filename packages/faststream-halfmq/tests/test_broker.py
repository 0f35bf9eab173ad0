"""Publishing and subscribing at a real broker: what handlers get, and what becomes of a message that one fails on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from faststream import AckPolicy, BaseMiddleware, Depends, FastStream
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, StopConsume
from pydantic import BaseModel

from faststream_halfmq import (
    HalfmqBroker,
    HalfmqMessage,
    HalfmqPublisherArgs,
    HalfmqResponse,
    HalfmqRoute,
    HalfmqRouter,
)
from faststream_halfmq.annotations import Client
from faststream_halfmq.annotations import HalfmqMessage as TheMessage
from halfmq import Retry, UsageError
from halfmq.testing import Sent

#: Of a test that has failed: nothing here takes seconds.
WITHIN_S = 60.0
#: A failed message comes again at once.
AT_ONCE = Retry(times=3, delays=(0,))


class Order(BaseModel):
    id: int


class Seen:
    """What handlers have seen. A test waits for it, not for time."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def __call__(self, what: Any) -> None:
        self._queue.put_nowait(what)

    async def next(self) -> Any:
        async with asyncio.timeout(WITHIN_S):
            return await self._queue.get()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def broker(halfmq_url: str) -> AsyncIterator[HalfmqBroker]:
    broker = HalfmqBroker(halfmq_url, group="shop", logger=None)
    yield broker
    await broker.stop()


async def dead_letters(broker: HalfmqBroker, group: str, count: int) -> list[Any]:
    """The next ``count`` dead letters of ``group``."""
    async with broker.client.consumer(f"%DLQ%{group}", group="undertaker") as messages:
        found = []
        async with asyncio.timeout(WITHIN_S):
            while len(found) < count:
                found.append(await anext(messages))
        return found


async def test_a_handler_gets_the_body_as_it_is_annotated_and_its_result_is_published(
    broker: HalfmqBroker, seen: Seen
) -> None:
    @broker.subscriber("orders", group="billing")
    @broker.publisher("invoices", tag="paper")
    async def bill(order: Order, message: TheMessage) -> dict[str, int]:
        seen((order, message.headers["source"], message.raw_message.tag, message.raw_message.key))
        return {"of": order.id}

    @broker.subscriber("invoices", group="printing", tags="paper || email")
    async def print_out(invoice: dict[str, int], message: TheMessage) -> None:
        seen((invoice, message.correlation_id))

    await broker.start()
    receipt = await broker.publish(
        Order(id=7), "orders", headers={"source": "web"}, tag="new", key=7, correlation_id="c-7"
    )
    assert await seen.next() == (Order(id=7), "web", "new", "7")
    assert await seen.next() == ({"of": 7}, "c-7")
    assert receipt.topic == "orders"


@pytest.mark.parametrize("body", [b"\x00\xff", "text", {"a": [1]}, [1, 2], 7, None, True], ids=repr)
async def test_a_body_arrives_as_it_was_published(broker: HalfmqBroker, seen: Seen, body: Any) -> None:
    @broker.subscriber("things", group="readers")
    async def read(body: Any) -> None:
        seen(body)

    await broker.start()
    await broker.publish(body, "things")
    assert await seen.next() == body


async def test_what_another_client_of_halfmq_sends_is_decoded(broker: HalfmqBroker, seen: Seen) -> None:
    @broker.subscriber("orders", group="billing")
    async def bill(order: Order) -> None:
        seen(order)

    await broker.start()
    await broker.client.send("orders", {"id": 8})
    assert await seen.next() == Order(id=8)


async def test_what_is_published_is_read_by_another_client_of_halfmq(broker: HalfmqBroker, halfmq_sent: Sent) -> None:
    await broker.start()
    await broker.publish({"id": 9}, "orders", headers={"source": "web"})
    (message,) = halfmq_sent("orders")
    assert message.json() == {"id": 9}
    assert message.properties["source"] == "web"
    assert message.properties["content-type"] == "application/json"


async def test_several_messages_are_published_in_order(broker: HalfmqBroker, halfmq_sent: Sent) -> None:
    await broker.start()
    receipts = await broker.publish_batch(1, 2, 3, topic="numbers")
    assert [message.json() for message in halfmq_sent("numbers")] == [1, 2, 3]
    assert len(receipts) == 3


async def test_a_request_gets_what_the_handler_returned(broker: HalfmqBroker) -> None:
    @broker.subscriber("doubling", group="doublers")
    async def double(number: int) -> int:
        return 2 * number

    await broker.start()
    reply = await broker.request(21, "doubling", timeout=WITHIN_S)
    assert await reply.decode() == 42


async def test_a_message_whose_handler_raises_comes_again_as_its_policy_says_and_then_is_a_dead_letter(
    broker: HalfmqBroker, seen: Seen
) -> None:
    @broker.subscriber("orders", group="billing", retry=AT_ONCE)
    async def bill(order: Order, message: TheMessage) -> None:
        seen(message.raw_message.attempt)
        raise RuntimeError("no money")

    await broker.start()
    await broker.publish(Order(id=1), "orders")
    assert [await seen.next() for _ in range(4)] == [1, 2, 3, 4]
    (dead,) = await dead_letters(broker, "billing", 1)
    assert dead.json() == {"id": 1}
    assert "no money" in dead.properties["HMQ_DEAD_REASON"]


async def test_messages_of_one_sharding_key_are_handled_in_order_though_one_fails(
    broker: HalfmqBroker, seen: Seen
) -> None:
    failed = []

    @broker.subscriber("orders", group="billing", max_workers=8, retry=AT_ONCE)
    async def bill(number: int) -> None:
        if number == 1 and not failed:
            failed.append(number)
            raise RuntimeError
        seen(number)

    await broker.start()
    for number in range(5):
        await broker.publish(number, "orders", sharding_key="k")
    assert [await seen.next() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert failed == [1]


@pytest.mark.parametrize("body", [{"id": "none"}, b"{"], ids=["not an order", "not JSON"])
async def test_what_cannot_be_decoded_is_a_dead_letter_at_once(
    broker: HalfmqBroker, seen: Seen, body: dict[str, str] | bytes
) -> None:
    @broker.subscriber("orders", group="billing")
    async def bill(order: Order) -> None:
        seen(order)

    await broker.start()
    await broker.publish(body, "orders", headers={"content-type": "application/json"})
    await broker.publish(Order(id=2), "orders")
    assert await seen.next() == Order(id=2)
    (dead,) = await dead_letters(broker, "billing", 1)
    assert dead.properties["HMQ_DEAD_REASON"].startswith("NotDecoded: its body ")
    assert dead.body == (body if isinstance(body, bytes) else msgspec.json.encode(body))


async def test_an_error_of_the_handler_itself_that_looks_like_one_of_decoding_is_no_dead_letter(
    broker: HalfmqBroker, seen: Seen
) -> None:
    @broker.subscriber("orders", group="billing", retry=AT_ONCE)
    async def bill(order: Order, message: TheMessage) -> None:
        seen(message.raw_message.attempt)
        if message.raw_message.attempt == 1:
            Order.model_validate({"id": "the answer of another service"})

    await broker.start()
    await broker.publish(Order(id=1), "orders")
    assert [await seen.next(), await seen.next()] == [1, 2]


_ERROR = RuntimeError("no")


@pytest.mark.parametrize(
    ("policy", "raised", "becomes"),
    [
        (AckPolicy.NACK_ON_ERROR, _ERROR, "again"),
        (AckPolicy.REJECT_ON_ERROR, _ERROR, "dead"),
        (AckPolicy.ACK, _ERROR, "done"),
        (AckPolicy.ACK_FIRST, _ERROR, "done"),
        (AckPolicy.MANUAL, _ERROR, "again"),
        (AckPolicy.MANUAL, None, "again"),
        (AckPolicy.NACK_ON_ERROR, None, "done"),
        (AckPolicy.REJECT_ON_ERROR, None, "done"),
        (AckPolicy.REJECT_ON_ERROR, NackMessage(), "again"),
        (AckPolicy.REJECT_ON_ERROR, NackMessage(delay=0), "again"),
        (AckPolicy.NACK_ON_ERROR, RejectMessage(), "dead"),
        (AckPolicy.NACK_ON_ERROR, AckMessage(), "done"),
    ],
)
@pytest.mark.parametrize("sharding_key", [None, "k"])
async def test_what_becomes_of_a_message(
    broker: HalfmqBroker,
    seen: Seen,
    policy: AckPolicy,
    raised: Exception | None,
    becomes: str,
    sharding_key: str | None,
) -> None:
    attempts = 0

    @broker.subscriber("orders", group="billing", retry=AT_ONCE, ack_policy=policy)
    async def bill(number: int, message: TheMessage) -> None:
        nonlocal attempts
        attempts += number == 1
        seen((number, attempts))
        if number == 1 and attempts == 1 and raised is not None:
            raise raised
        if number == 2 or attempts == 2:
            await message.ack()

    await broker.start()
    await broker.publish(1, "orders", sharding_key=sharding_key)
    assert await seen.next() == (1, 1)
    if becomes == "again":
        assert await seen.next() == (1, 2)
    if becomes == "dead":
        (dead,) = await dead_letters(broker, "billing", 1)
        assert dead.json() == 1
        assert dead.properties["HMQ_DEAD_REASON"].startswith("Rejected: ")
    # Nothing comes again of what is done: that would be before the next one of its queue.
    await broker.publish(2, "orders", sharding_key=sharding_key)
    assert await seen.next() == (2, attempts)


@pytest.mark.parametrize(("call", "becomes"), [("ack", "done"), ("nack", "again"), ("reject", "dead")])
async def test_a_handler_settles_its_message_itself(broker: HalfmqBroker, seen: Seen, call: str, becomes: str) -> None:
    attempts = 0

    @broker.subscriber("orders", group="billing", retry=AT_ONCE, ack_policy=AckPolicy.MANUAL)
    async def bill(message: TheMessage) -> None:
        nonlocal attempts
        attempts += 1
        seen(attempts)
        await getattr(message, call if attempts == 1 else "ack")()
        await message.nack()  # what was said first counts

    await broker.start()
    await broker.publish(1, "orders")
    assert await seen.next() == 1
    if becomes == "again":
        assert await seen.next() == 2
    if becomes == "dead":
        assert len(await dead_letters(broker, "billing", 1)) == 1


async def test_a_handler_that_is_a_plain_function_settles_its_message_by_its_exception(
    broker: HalfmqBroker, seen: Seen
) -> None:
    @broker.subscriber("orders", group="billing", retry=AT_ONCE)
    def bill(number: int, message: TheMessage) -> None:
        seen(message.raw_message.attempt)
        if message.raw_message.attempt == 1:
            raise RuntimeError

    await broker.start()
    await broker.publish(1, "orders")
    assert [await seen.next(), await seen.next()] == [1, 2]


async def test_stop_consume_ends_one_subscriber(broker: HalfmqBroker, seen: Seen) -> None:
    @broker.subscriber("orders", group="billing", ack_policy=AckPolicy.ACK)
    async def bill(number: int) -> None:
        seen(number)
        raise StopConsume

    @broker.subscriber("others", group="others")
    async def other(number: int) -> None:
        seen(number)

    await broker.start()
    (subscriber,) = [one for one in broker.subscribers if one.topic == "orders"]  # type: ignore[attr-defined]
    await broker.publish(1, "orders")
    assert await seen.next() == 1
    assert subscriber._ending is not None  # type: ignore[attr-defined]
    await subscriber._ending  # type: ignore[attr-defined]
    await broker.publish(2, "orders")
    await broker.publish(3, "others")
    assert await seen.next() == 3
    async with broker.client.consumer("orders", group="billing") as messages:
        async with asyncio.timeout(WITHIN_S):
            assert (await anext(messages)).json() == 2  # and 1 was acknowledged


async def test_stop_waits_for_a_running_handler_and_acknowledges_its_message(
    broker: HalfmqBroker, halfmq_url: str, seen: Seen
) -> None:
    go_on = asyncio.Event()

    @broker.subscriber("orders", group="billing")
    async def bill(number: int) -> None:
        seen(number)
        await go_on.wait()
        seen("ended")

    await broker.start()
    await broker.publish(1, "orders")
    assert await seen.next() == 1
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0)
    go_on.set()
    await stopping
    assert await seen.next() == "ended"
    async with HalfmqBroker(halfmq_url, group="shop", logger=None) as other:
        await other.publish(2, "orders")
        async with other.client.consumer("orders", group="billing") as messages, asyncio.timeout(WITHIN_S):
            assert (await anext(messages)).json() == 2


@pytest.mark.parametrize(("policy", "next_one"), [(AckPolicy.NACK_ON_ERROR, 1), (AckPolicy.ACK_FIRST, 2)])
async def test_a_message_whose_handler_is_too_slow_for_stop_goes_to_another_member_unless_it_is_acknowledged(
    halfmq_url: str, seen: Seen, policy: AckPolicy, next_one: int
) -> None:
    broker = HalfmqBroker(halfmq_url, group="shop", logger=None, graceful_timeout=0.0)

    @broker.subscriber("orders", group="billing", ack_policy=policy)
    async def bill(number: int) -> None:
        seen(number)
        await asyncio.Event().wait()

    await broker.start()
    await broker.publish(1, "orders", sharding_key="k")
    assert await seen.next() == 1
    await broker.publish(2, "orders", sharding_key="k")
    await broker.stop()
    async with (
        HalfmqBroker(halfmq_url, group="shop", logger=None) as other,
        other.client.consumer("orders", group="billing") as messages,
    ):
        async with asyncio.timeout(WITHIN_S):
            assert (await anext(messages)).json() == next_one


async def test_a_broker_is_started_again_after_its_stop(broker: HalfmqBroker, seen: Seen) -> None:
    @broker.subscriber("orders", group="billing")
    async def bill(number: int) -> None:
        seen(number)

    for number in (1, 2):
        await broker.start()
        assert await broker.ping(WITHIN_S)
        await broker.publish(number, "orders")
        assert await seen.next() == number
        await broker.stop()
        assert not await broker.ping(WITHIN_S)


async def test_an_app_starts_and_stops_the_broker(broker: HalfmqBroker, seen: Seen) -> None:
    app = FastStream(broker, logger=None)

    @broker.subscriber("orders", group="billing")
    async def bill(number: int) -> None:
        seen(number)
        app.exit()

    @app.after_startup
    async def first() -> None:
        await broker.publish(1, "orders")

    async with asyncio.timeout(WITHIN_S):
        await app.run()
    assert await seen.next() == 1
    assert not broker.client.is_open


async def test_a_middleware_sees_what_is_received_and_what_is_published(broker: HalfmqBroker, seen: Seen) -> None:
    class Notes(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen(("received", await msg.decode()))
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.headers["by"] = "middleware"
            seen(("published", cmd.destination, cmd.body))
            return await call_next(cmd)

    broker.add_middleware(Notes)

    @broker.subscriber("orders", group="billing")
    @broker.publisher("bills")
    async def bill(number: int, message: TheMessage) -> int:
        seen(message.headers["by"])
        return number + 1

    await broker.start()
    await broker.publish(1, "orders")
    expected = [("published", "orders", 1), ("received", 1), "middleware", ("published", "bills", 2)]
    assert [await seen.next() for _ in expected] == expected


async def test_dependencies_are_injected(broker: HalfmqBroker, seen: Seen) -> None:
    async def twice(number: int) -> int:
        return 2 * number

    @broker.subscriber("orders", group="billing")
    async def bill(number: int, client: Client, doubled: int = Depends(twice)) -> None:
        seen((number, doubled, client is broker.client))

    await broker.start()
    await broker.publish(4, "orders")
    assert await seen.next() == (4, 8, True)


async def test_a_router_puts_its_prefix_before_topics_and_its_group_is_that_of_the_broker(
    broker: HalfmqBroker, seen: Seen
) -> None:
    router = HalfmqRouter(prefix="eu-")

    @router.subscriber("orders")
    @router.publisher("bills")
    async def bill(number: int) -> HalfmqResponse:
        return HalfmqResponse(number + 1, tag="t", key="k", headers={"h": "v"})

    @broker.subscriber("eu-bills", group="readers")
    async def read(number: int, message: TheMessage) -> None:
        seen((number, message.raw_message.tag, message.raw_message.key, message.headers["h"]))

    broker.include_router(router)
    await broker.start()
    await broker.publish(1, "eu-orders")
    assert await seen.next() == (2, "t", "k", "v")
    assert {one.group for one in broker.subscribers} == {"shop", "readers"}  # type: ignore[attr-defined]


async def test_a_subscriber_without_handlers_is_read_one_message_at_a_time(broker: HalfmqBroker) -> None:
    subscriber = broker.subscriber("orders", group="billing")
    await broker.start()
    await broker.publish({"id": 1}, "orders", sharding_key="k")
    await broker.publish({"id": 2}, "orders", sharding_key="k")
    first = await subscriber.get_one(timeout=WITHIN_S)
    assert isinstance(first, HalfmqMessage)
    assert await first.decode() == {"id": 1}
    await first.ack()
    async with asyncio.timeout(WITHIN_S):
        async for message in subscriber:
            assert await message.decode() == {"id": 2}
            await message.reject()
            break
    assert [one.json() for one in await dead_letters(broker, "billing", 1)] == [{"id": 2}]


async def test_a_sharding_key_that_keeps_no_order_is_refused(broker: HalfmqBroker, halfmq_sent: Sent) -> None:
    publisher = broker.publisher("orders")

    await broker.start()
    with pytest.raises(UsageError, match="sharding_key '' is empty"):
        await broker.publish(1, "orders", sharding_key="")
    with pytest.raises(UsageError, match="sharding_key '' is empty"):
        await publisher.publish(1, sharding_key="")
    halfmq_sent.nothing()


def test_a_wrong_argument_is_refused_where_it_is_written() -> None:
    broker = HalfmqBroker(group="shop")
    with pytest.raises(UsageError, match="start='now'"):
        broker.subscriber("orders", start="now")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="prefetch"):
        broker.subscriber("orders", prefetch=0)
    with pytest.raises(UsageError, match="max_workers=0"):
        broker.subscriber("orders", max_workers=0)
    for retry in (5, 0):
        with pytest.raises(UsageError, match=f"retry={retry} is no Retry") as raised:
            broker.subscriber("orders", retry=retry)  # type: ignore[arg-type]
        assert raised.value.hint == "retry=Retry(times=5, delays=(1, 10, 60))"
    with pytest.raises(UsageError, match="graceful_timeout='5' is not a duration"):
        HalfmqBroker(group="shop", graceful_timeout="5")  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["subscriber", "broker", "router", "route"])
def test_a_policy_that_is_none_is_refused_where_it_is_written(what: str) -> None:
    made: dict[str, Callable[..., object]] = {
        "subscriber": partial(HalfmqBroker(group="shop").subscriber, "orders"),
        "broker": HalfmqBroker,
        "router": HalfmqRouter,
        "route": lambda ack_policy: HalfmqRouter(handlers=[HalfmqRoute(print, "orders", ack_policy=ack_policy)]),
    }
    with pytest.raises(UsageError, match="ack_policy='NACK' is no AckPolicy") as raised:
        made[what](ack_policy="NACK")
    assert raised.value.hint == "ack_policy=AckPolicy.NACK_ON_ERROR"


async def handle(number: int) -> None: ...


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("HalfmqBroker", lambda **wrong: HalfmqBroker("rocketmq://127.0.0.1:9876", **wrong)),
        ("HalfmqRoute", lambda **wrong: HalfmqRoute(handle, "orders", **wrong)),
        ("HalfmqPublisherArgs", lambda **wrong: HalfmqPublisherArgs("orders", **wrong)),
    ],
)
def test_an_unknown_option_is_refused_by_what_was_called(name: str, make: Any) -> None:
    with pytest.raises(
        UsageError, match=rf"^{name} got an unexpected option 'descripton'; did you mean 'description'\?"
    ):
        make(descripton="x")


async def test_a_subscriber_without_any_group_is_refused_at_the_start(halfmq_url: str) -> None:
    broker = HalfmqBroker(halfmq_url, logger=None)

    @broker.subscriber("orders")
    async def bill(number: int) -> None: ...

    with pytest.raises(UsageError, match="a consumer needs a group"):
        await broker.start()
    await broker.stop()
