"""Members of a group share its queues, notice each other, and give them up when they leave."""

import asyncio
from typing import Any

import pytest
from tests.support.scripted_broker import ScriptedBroker, client_of
from tests.support.virtual_time import run

from halfmq.errors import UsageError
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import encode_response
from halfmq.wire.remoting.heartbeat import decode_heartbeat


def owned(messages: Any, topic: str = "t") -> list[int]:
    return [queue.queue for queue in messages.member.assigned() if queue.topic == topic]


def broker_with(queues: int = 4, *topics: str) -> ScriptedBroker:
    broker = ScriptedBroker(queues=queues)
    broker.topics.update(topics or ("t",))
    return broker


def test_heartbeat_names_the_subscriptions_and_the_retry_topic() -> None:
    async def test() -> None:
        broker = broker_with()
        async with client_of(broker.network()) as mq, mq.consumer("t", group="g", tags="a || b", start="latest"):
            pass
        (consumer,) = decode_heartbeat(broker.requests(RequestCode.HEART_BEAT)[-1].body).consumer_groups
        assert (consumer.group, consumer.message_model) == ("g", "CLUSTERING")
        assert (consumer.consume_type, consumer.from_where) == ("CONSUME_PASSIVELY", "CONSUME_FROM_LAST_OFFSET")
        found = {item.topic: (item.expression, item.tags) for item in consumer.subscriptions}
        assert found == {"t": ("a || b", ("a", "b")), "%RETRY%g": ("*", ())}

    run(test())


def test_two_members_share_and_the_rest_takes_over_when_one_leaves() -> None:
    async def test() -> None:
        broker = broker_with()
        async with (
            client_of(broker.network(), seed=1) as one,
            client_of(broker.network(), seed=2) as two,
            one.consumer("t", group="g") as first,
        ):
            await asyncio.sleep(1)
            assert owned(first) == [0, 1, 2, 3]
            async with two.consumer("t", group="g") as second:
                broker.notify_members("g")
                await asyncio.sleep(1)
                assert sorted(owned(first) + owned(second)) == [0, 1, 2, 3]
                assert len(owned(first)) == len(owned(second)) == 2
            broker.notify_members("g")
            await asyncio.sleep(1)
            assert owned(first) == [0, 1, 2, 3]

    run(test())


def test_without_notice_members_agree_after_the_next_rebalance() -> None:
    async def test() -> None:
        broker = broker_with()
        async with (
            client_of(broker.network(), seed=1) as one,
            client_of(broker.network(), seed=2) as two,
            one.consumer("t", group="g") as first,
        ):
            await asyncio.sleep(1)
            async with two.consumer("t", group="g") as second:
                await asyncio.sleep(25)
                assert sorted(owned(first) + owned(second)) == [0, 1, 2, 3]

    run(test())


def test_leaving_commits_and_unregisters_at_once() -> None:
    async def test() -> None:
        broker = broker_with(1)
        broker.append("t", 0, b"x")
        async with client_of(broker.network()) as mq:
            async with mq.consumer("t", group="g") as messages:
                message = await messages.get(5)
                assert message is not None
                message.ack()
            left = broker.requests(RequestCode.UNREGISTER_CLIENT)
            assert [request.ext.consumer_group for request in left] == ["g"]
        assert broker.offsets["g", "t", 0] == 1

    run(test())


def test_first_commits_of_a_topic_do_not_meet_at_a_broker_that_keeps_one_of_them() -> None:
    """As an Apache RocketMQ broker does: it looks for the group's map, makes one, and puts it there, in three steps."""

    async def test() -> None:
        broker = broker_with()
        for queue in range(4):
            broker.append("t", queue, b"x")

        def in_steps(peer: Any, request: Any) -> bytes | None:
            known = any((group, topic) == ("g", request.ext.topic) for group, topic, _ in broker.offsets)

            def put() -> None:
                if not known:
                    for key in [key for key in broker.offsets if key[:2] == ("g", request.ext.topic)]:
                        del broker.offsets[key]
                peer.send(broker.usual(peer, request))

            asyncio.get_running_loop().call_later(0.001, put)
            return None

        broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = in_steps
        async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
            (await messages.take(4, wait=5)).ack()
        assert [broker.offsets.get(("g", "t", queue)) for queue in range(4)] == [1, 1, 1, 1]

    run(test())


def test_leaving_a_slow_broker_costs_two_answers_not_one_for_each_queue() -> None:
    async def test() -> None:
        broker = broker_with(8)
        for queue in range(8):
            broker.append("t", queue, b"x")

        def slow(peer: Any, request: Any) -> bytes | None:
            asyncio.get_running_loop().call_later(0.5, lambda: peer.send(broker.usual(peer, request)))
            return None

        async with client_of(broker.network()) as mq:
            async with mq.consumer("t", group="g") as messages:
                got = await messages.take(8, wait=5)
                broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = slow
                got.ack()
                left = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - left < 1.5
        assert [broker.offsets[("g", "t", queue)] for queue in range(8)] == [1] * 8

    run(test())


def test_leaving_a_broker_that_does_not_answer_waits_once_not_for_each_queue() -> None:
    async def test() -> None:
        broker = broker_with(8)
        async with client_of(broker.network()) as mq:
            async with mq.consumer("t", group="g") as messages:
                while len(owned(messages)) < 8:
                    await asyncio.sleep(0.1)
                await asyncio.sleep(0.5)
                broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda *_: None
                left = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - left < 1.5

    run(test())


def test_topic_that_is_made_later_is_found_soon() -> None:
    async def test() -> None:
        broker = ScriptedBroker(queues=1)
        async with client_of(broker.network()) as mq, mq.consumer("later", group="g") as messages:
            await asyncio.sleep(3)
            assert owned(messages, "later") == []
            await mq.send("later", b"x")
            message = await messages.get(10)
            assert message is not None
            assert message.body == b"x"

    run(test())


def test_two_consumers_of_one_group_and_client_get_their_own_topics() -> None:
    async def test() -> None:
        broker = broker_with(1, "a", "b")
        broker.append("a", 0, b"for a")
        broker.append("b", 0, b"for b")
        async with (
            client_of(broker.network()) as mq,
            mq.consumer("a", group="g") as first,
            mq.consumer("b", group="g") as second,
        ):
            one, two = await first.get(5), await second.get(5)
            assert one is not None
            assert two is not None
            assert (one.body, two.body) == (b"for a", b"for b")
            await one.retry(1)
            again = await first.get(5)
            assert again is not None
            assert again.topic == "a"  # the shared retry queue finds the right reader
            with pytest.raises(UsageError, match="already"):
                await mq.consumer("a", group="g").__aenter__()
            with pytest.raises(UsageError, match="another start"):
                await mq.consumer("c", group="g", start="latest").__aenter__()

    run(test())


def test_retried_message_whose_reader_is_gone_is_handed_back() -> None:
    async def test() -> None:
        broker = broker_with(1, "a", "b", "c")
        async with (
            client_of(broker.network()) as mq,
            mq.consumer("a", group="g"),
            mq.consumer("b", group="g"),
        ):
            await asyncio.sleep(1.5)
            broker.append("%RETRY%g", 0, b"x", b"RETRY_TOPIC\x01c\x02UNIQ_KEY\x01U\x02")
            await asyncio.sleep(0.5)
            (back, *_) = broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
            assert back.ext.origin_topic == "c"

    run(test())


def test_refused_member_list_keeps_what_we_have() -> None:
    async def test() -> None:
        broker = broker_with()
        async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
            await asyncio.sleep(1)
            broker.on[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda _, request: encode_response(request, 1, "none")
            await asyncio.sleep(60)
            assert owned(messages) == [0, 1, 2, 3]

    run(test())


def test_client_that_closes_ends_open_iterations() -> None:
    async def test() -> None:
        broker = broker_with()
        mq = client_of(broker.network())
        await mq.connect()
        consumer = mq.consumer("t", group="g")
        await consumer.__aenter__()

        async def read() -> int:
            return len([message async for message in consumer])

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(1)
        await mq.close()
        assert await reading == 0

    run(test())
