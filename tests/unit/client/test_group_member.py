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


def keep_one_of_first_commits_that_meet(broker: ScriptedBroker, handling_s: float = 0.001) -> None:
    """As an Apache RocketMQ broker does: it looks for the group's map, makes one, and puts it there, in three steps."""

    def in_steps(peer: Any, request: Any) -> bytes | None:
        topic = request.ext.topic
        known = any(key[:2] == ("g", topic) for key in broker.offsets)

        def put() -> None:
            if not known:
                for key in [key for key in broker.offsets if key[:2] == ("g", topic)]:
                    del broker.offsets[key]
            peer.send(broker.usual(peer, request))

        asyncio.get_running_loop().call_later(handling_s, put)
        return None

    broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = in_steps


def answer_commits_after(broker: ScriptedBroker, delay_s: float, code: int = 0) -> None:
    def slow(peer: Any, request: Any) -> bytes | None:
        def answer() -> None:
            peer.send(encode_response(request, code, "the disk is full") if code else broker.usual(peer, request))

        asyncio.get_running_loop().call_later(delay_s, answer)
        return None

    broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = slow


def fill(broker: ScriptedBroker, *topics: str) -> None:
    """One message in each queue."""
    for topic in topics or ("t",):
        for queue in range(broker.queues):
            broker.append(topic, queue, b"x")


def committed(broker: ScriptedBroker, topic: str = "t") -> list[int | None]:
    return [broker.offsets.get(("g", topic, queue)) for queue in range(broker.queues)]


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


def test_messages_that_were_not_acknowledged_are_not_handed_back_after_leaving() -> None:
    """They come again to whoever owns the queue; handed back as well, they would come twice."""

    async def test() -> None:
        broker = broker_with(1)
        fill(broker)
        async with client_of(broker.network()) as mq:
            async with mq.consumer("t", group="g") as messages:
                message = await messages.get(5)
                assert message is not None
            await message.retry()
            assert broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK) == []

    run(test())


# --- commits ------------------------------------------------------------------------------------------------------


def test_first_commits_of_a_topic_do_not_meet_at_a_broker_that_keeps_one_of_them() -> None:
    async def test() -> None:
        broker = broker_with(4, "a", "b")
        fill(broker, "a", "b")
        keep_one_of_first_commits_that_meet(broker)
        async with client_of(broker.network()) as mq, mq.consumer(["a", "b"], group="g") as messages:
            got = await messages.take(8, wait=5)
            while len(got) < 8:
                got += await messages.take(8, wait=5)
            got.ack()
        assert committed(broker, "a") == [1] * 4
        assert committed(broker, "b") == [1] * 4

    run(test())


def test_first_commits_do_not_meet_at_a_broker_that_was_started_again_and_has_forgotten() -> None:
    async def test() -> None:
        broker = broker_with()
        fill(broker)
        keep_one_of_first_commits_that_meet(broker)
        async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
            (await messages.take(4, wait=5)).ack()
            await asyncio.sleep(2)
            assert committed(broker) == [1] * 4
            broker.stop()
            broker.offsets.clear()
            broker.start()
            await asyncio.sleep(5)  # less than the time after which an offset is said again in any case
            assert committed(broker) == [1] * 4

    run(test())


def test_first_commits_of_queues_that_are_kept_and_given_up_do_not_meet() -> None:
    """Those that are given up are committed at once, and the others each second: here at the same time."""

    async def test() -> None:
        broker = broker_with()
        fill(broker)
        keep_one_of_first_commits_that_meet(broker, handling_s=0.05)
        in_steps = broker.on[RequestCode.UPDATE_CONSUMER_OFFSET]
        both: list[Any] = []
        async with (
            client_of(broker.network(), seed=1) as one,
            client_of(broker.network(), seed=2) as two,
            one.consumer("t", group="g") as first,
        ):

            def meanwhile(peer: Any, request: Any) -> bytes | None:
                if not both and request.ext.topic == "t":
                    both.append(asyncio.ensure_future(first.member.commit()))
                    assert len(owned(first)) == 2
                return in_steps(peer, request)

            broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = meanwhile
            (await first.take(4, wait=5)).ack()
            async with two.consumer("t", group="g"):
                broker.notify_members("g")
                await asyncio.sleep(0.5)
                assert both[0].done()
                assert committed(broker) == [1] * 4

    run(test())


def test_queues_are_given_up_together_where_the_member_has_committed_another() -> None:
    async def test() -> None:
        broker = broker_with(6)
        async with (
            client_of(broker.network(), seed=1) as one,
            client_of(broker.network(), seed=2) as two,
            one.consumer("t", group="g") as first,
        ):
            async with two.consumer("t", group="g"):
                await asyncio.sleep(2)
                broker.notify_members("g")
                await asyncio.sleep(2)
                kept = owned(first)
                assert len(kept) == 3
            fill(broker)
            broker.notify_members("g")
            got = await first.take(6, wait=5)
            while len(got) < 6:
                got += await first.take(6, wait=5)
            got.ack()
            answer_commits_after(broker, 0.5)
            since = len(broker.requests(RequestCode.UPDATE_CONSUMER_OFFSET))
            async with two.consumer("t", group="g"):
                broker.notify_members("g")
                await asyncio.sleep(0.3)
                said = broker.requests(RequestCode.UPDATE_CONSUMER_OFFSET)[since:]
                assert {request.ext.queue_id for request in said if request.ext.topic == "t"} == {*range(6)} - {*kept}

    run(test())


def test_broker_that_refuses_the_commits_of_one_queue_is_told_the_others() -> None:
    async def test() -> None:
        broker = broker_with()
        fill(broker)
        refused: set[int] = set()

        def refuse_the_first(peer: Any, request: Any) -> bytes | None:
            if request.ext.topic == "t" and refused <= {request.ext.queue_id}:
                refused.add(request.ext.queue_id)
                return encode_response(request, 1, "no such queue")
            return broker.usual(peer, request)

        broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse_the_first
        async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
            (await messages.take(4, wait=5)).ack()
            await asyncio.sleep(1.5)
            assert sorted(committed(broker), key=str) == [1, 1, 1, None]

    run(test())


def test_leaving_a_broker_that_refuses_costs_two_answers_not_one_for_each_queue() -> None:
    async def test() -> None:
        broker = broker_with(16)
        fill(broker)
        async with client_of(broker.network()) as mq:
            async with mq.consumer("t", group="g") as messages:
                got = await messages.take(16, wait=5)
                answer_commits_after(broker, 0.9, code=1)
                got.ack()
                left = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - left < 2.0

    run(test())


def test_leaving_a_slow_broker_costs_two_answers_not_one_for_each_queue() -> None:
    async def test() -> None:
        broker = broker_with(8)
        fill(broker)
        async with client_of(broker.network()) as mq:
            async with mq.consumer("t", group="g") as messages:
                got = await messages.take(8, wait=5)
                answer_commits_after(broker, 0.5)
                got.ack()
                left = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - left < 1.5
        assert committed(broker) == [1] * 8

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


# --- topics and readers -------------------------------------------------------------------------------------------


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
