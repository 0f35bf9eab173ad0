"""Iterating over messages: one by one, in batches, with time limits."""

import asyncio
from datetime import datetime
from typing import Any

import pytest
from tests.support.scripted_broker import ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time

from halfmq.client.consumer import Consumer, ConsumerSpec
from halfmq.errors import InvalidName, UsageError
from halfmq.wire.remoting.codes import RequestCode

PULL = RequestCode.PULL_MESSAGE


def filled(count: int) -> ScriptedBroker:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    for number in range(count):
        broker.append("t", 0, str(number).encode())
    return broker


@in_virtual_time
async def test_iteration_gives_messages_in_the_order_of_the_queue() -> None:
    async with client_of(filled(5).network()) as mq, mq.consumer("t", group="g") as messages:
        got = []
        async for message in messages:
            async with message.processing():
                got.append(message.text())
            if len(got) == 5:
                break
        assert got == ["0", "1", "2", "3", "4"]


@in_virtual_time
async def test_batches_are_bounded_in_size_and_time() -> None:
    broker = filled(5)
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        await asyncio.sleep(1)
        now = asyncio.get_running_loop().time
        sizes = []
        async for batch in messages.batches(max=2, wait=1.0):
            batch.ack()
            sizes.append((len(batch), now()))
            if len(sizes) == 5:
                break
        assert [size for size, _ in sizes] == [2, 2, 1, 0, 0]
        assert sizes[4][1] - sizes[3][1] == pytest.approx(1.0, abs=0.01)


@in_virtual_time
async def test_batch_can_be_handed_back_whole() -> None:
    async with client_of(filled(3).network()) as mq, mq.consumer("t", group="g") as messages:
        await asyncio.sleep(1)
        await (await messages.take(3, wait=5)).retry(1)
        again = await messages.take(3, wait=5)
        assert {message.attempt for message in again} == {2}


@in_virtual_time
async def test_stop_ends_the_iteration_and_late_acknowledgements_count() -> None:
    broker = filled(1)
    async with client_of(broker.network()) as mq:
        async with mq.consumer("t", group="g") as messages:
            message = await messages.get(5)
            assert message is not None
            messages.stop()
            assert [m async for m in messages] == []
            message.ack()
        assert broker.offsets["g", "t", 0] == 1


@pytest.mark.parametrize("waiting", [True, False])
@in_virtual_time
async def test_stop_ends_the_iteration_under_a_backlog_and_the_rest_comes_again(waiting: bool) -> None:
    """``waiting``: messages wait here when it is stopped; else the pull that brings them is under way."""
    broker = filled(600)
    async with client_of(broker.network()) as mq:
        async with mq.consumer("t", group="g", prefetch=10) as messages:
            got = await messages.take(100 if waiting else 256, wait=5)
            messages.stop()
            assert [message async for message in messages] == []
            await asyncio.sleep(20)
            pulls = [pull for pull in broker.requests(PULL) if pull.ext.topic == "t"]
            assert len(pulls) <= 2
            assert await messages.get(0) is None
            assert await messages.take(10, wait=0) == []
            got.ack()
        assert broker.offsets["g", "t", 0] == len(got)
        async with mq.consumer("t", group="g") as messages:
            while len(got) < 600:
                got += await messages.take(600, wait=5)
        assert [message.text() for message in got] == [str(number) for number in range(600)]


@pytest.mark.parametrize("stalled", [True, False])
@in_virtual_time
async def test_stop_of_one_consumer_leaves_the_retries_of_another_one_alone(stalled: bool) -> None:
    """``stalled``: before it was stopped, its own retries held up those of the other one."""
    broker = ScriptedBroker(queues=1)
    broker.topics.update(("a", "b"))

    def came_back(topic: bytes, count: int) -> None:
        for _ in range(count):
            broker.append("%RETRY%g", 0, b"x", b"RETRY_TOPIC\x01" + topic + b"\x02UNIQ_KEY\x01U\x02", 1)

    async with (
        client_of(broker.network()) as mq,
        mq.consumer("a", group="g") as a,
        mq.consumer("b", group="g") as b,
    ):
        await asyncio.sleep(1)
        if stalled:
            came_back(b"a", 2_000)
            await asyncio.sleep(1)
            came_back(b"b", 1)
            assert await b.get(30) is None
        a.stop()
        for _ in range(3):
            came_back(b"b", 1)
            assert await b.get(5) is not None
        b.stop()
        pulls = len(broker.requests(PULL))
        came_back(b"b", 2_000)
        await asyncio.sleep(60)
        assert len(broker.requests(PULL)) <= pulls + 1  # the one that was under way


@pytest.mark.parametrize("waited_s", [1, 20])  # the pull that waits for retries is under way, or has ended
@in_virtual_time
async def test_consumer_that_joins_while_another_one_is_stopped_and_not_left_gets_its_retries(waited_s: int) -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.update(("a", "b"))
    broker.append("b", 0, b"x")
    async with client_of(broker.network()) as mq, mq.consumer("a", group="g") as stopped:
        await asyncio.sleep(1)
        stopped.stop()
        await asyncio.sleep(waited_s)
        async with mq.consumer("b", group="g") as messages:
            for attempt in (1, 2, 3):
                message = await messages.get(20)
                assert message is not None
                assert message.attempt == min(attempt, 2)  # the scripted broker counts to 2
                await message.retry(1)


@in_virtual_time
async def test_get_waits_no_longer_than_it_may() -> None:
    async with client_of(filled(0).network()) as mq, mq.consumer("t", group="g") as messages:
        start = asyncio.get_running_loop().time()
        assert await messages.get(2.0) is None
        assert asyncio.get_running_loop().time() - start == pytest.approx(2.0, abs=0.01)


@in_virtual_time
async def test_consumer_outside_its_block_says_so() -> None:
    async with client_of(filled(0).network()) as mq:
        consumer = mq.consumer("t", group="g")
        with pytest.raises(UsageError, match="not open"):
            await consumer.get()
        with pytest.raises(UsageError, match="not open"):
            consumer.member  # noqa: B018


@in_virtual_time
async def test_consumer_that_is_entered_twice_refuses_the_second_time_and_goes_on() -> None:
    broker = filled(1)
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        with pytest.raises(UsageError, match="open already"):
            await messages.__aenter__()
        assert [message.text() for message in await messages.take(1, wait=5)] == ["0"]
        broker.append("t", 0, b"1")
        assert [message.text() for message in await messages.take(1, wait=5)] == ["1"]
        assert not messages.is_closed


@in_virtual_time
async def test_consumer_is_entered_once_when_two_tasks_enter_it_at_once() -> None:
    async with client_of(filled(1).network()) as mq:
        messages = mq.consumer("t", group="g")
        came = await asyncio.gather(messages.__aenter__(), messages.__aenter__(), return_exceptions=True)
        assert [type(one) for one in came] == [Consumer, UsageError]
        assert await messages.get(5) is not None
        await messages.close()


@in_virtual_time
async def test_consumer_whose_entering_failed_is_not_open_and_can_be_entered_later() -> None:
    async with client_of(filled(1).network()) as mq:
        late = mq.consumer("t", group="g")
        async with mq.consumer("t", group="g"):
            with pytest.raises(UsageError, match="already"):
                await late.__aenter__()
            with pytest.raises(UsageError, match="not open"):
                await late.get(1)
            with pytest.raises(UsageError, match="not open"):
                late.is_closed  # noqa: B018
        async with late:
            assert await late.get(5) is not None
        assert await late.get(0) is None
        async with late:  # again, when it was left
            assert await late.get(5) is not None


@in_virtual_time
async def test_stop_while_the_consumer_is_entered_ends_its_iteration() -> None:
    async with client_of(filled(1).network()) as mq:
        messages = mq.consumer("t", group="g")
        entering = asyncio.ensure_future(messages.__aenter__())
        await asyncio.sleep(0)
        messages.stop()
        await entering
        assert await messages.get(5) is None
        assert messages.is_closed
        await messages.close()


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"topics": []}, UsageError),
        ({"topics": "a b"}, InvalidName),
        ({"group": ""}, UsageError),
        ({"group": "a b"}, InvalidName),
        ({"start": "middle"}, UsageError),
        ({"start": datetime(2026, 1, 1)}, UsageError),  # noqa: DTZ001
        ({"retries": -1}, UsageError),
        ({"prefetch": 0}, UsageError),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], kind: type[UsageError]) -> None:
    with pytest.raises(kind):
        ConsumerSpec(**({"topics": "t", "group": "g"} | arguments))


@in_virtual_time
async def test_consumer_without_a_group_is_told_that_it_needs_one() -> None:
    async with client_of(filled(0).network(), group="") as mq:
        with pytest.raises(UsageError, match=r"a consumer needs a group.*group=\"billing\""):
            mq.consumer("t")
    async with client_of(filled(0).network(), group="orders") as mq:
        assert mq.consumer("t").spec.group == "orders"


@pytest.mark.parametrize("wait_s", [-1, "x", float("nan"), True])
@in_virtual_time
async def test_wrong_timeout_is_refused_whether_something_waits_or_not(wait_s: Any) -> None:
    async with client_of(filled(1).network()) as mq, mq.consumer("t", group="g") as messages:
        await asyncio.sleep(1)
        with pytest.raises(UsageError, match="timeout"):
            await messages.get(wait_s)
        assert await messages.get(0) is not None
        with pytest.raises(UsageError, match="timeout"):
            await messages.get(wait_s)
        messages.stop()
        with pytest.raises(UsageError, match="timeout"):
            await messages.get(wait_s)
