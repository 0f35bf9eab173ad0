"""Members of a group share its queues, notice each other, and give them up when they leave."""

import asyncio
from typing import Any

import pytest
from tests.support.scripted_broker import NAMES, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time, run

from halfmq.client import group_member
from halfmq.client.async_client import AsyncClient
from halfmq.client.offset_tracker import OffsetTracker
from halfmq.client.queue_puller import QueuePuller
from halfmq.errors import UsageError
from halfmq.model.address import Address, ServerUrl
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.group_bodies import encode_member_list
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


def answer_heartbeats_after(broker: ScriptedBroker, delay_s: float) -> None:
    """The groups count at once."""

    def slow(peer: Any, request: Any) -> bytes | None:
        answer = broker.usual(peer, request)
        asyncio.get_running_loop().call_later(delay_s, lambda: answer and peer.send(answer))
        return None

    broker.on[RequestCode.HEART_BEAT] = slow


def fill(broker: ScriptedBroker, *topics: str) -> None:
    """One message in each queue."""
    for topic in topics or ("t",):
        for queue in range(broker.queues):
            broker.append(topic, queue, b"x")


def committed(broker: ScriptedBroker, topic: str = "t") -> list[int | None]:
    return [broker.offsets.get(("g", topic, queue)) for queue in range(broker.queues)]


def groups_of(broker: ScriptedBroker, mq: AsyncClient) -> list[str]:
    """Groups whose member the broker takes the client for."""
    me = mq._context.membership.client_id
    heard = [body for peer, body in broker.heartbeats.items() if peer.open and body.client_id == me]
    return [consumer.group for body in heard for consumer in body.consumer_groups]


@in_virtual_time
async def test_heartbeat_names_the_subscriptions_and_the_retry_topic() -> None:
    broker = broker_with()
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g", tags="a || b", start="latest"):
        pass
    (consumer,) = decode_heartbeat(broker.requests(RequestCode.HEART_BEAT)[-1].body).consumer_groups
    assert (consumer.group, consumer.message_model) == ("g", "CLUSTERING")
    assert (consumer.consume_type, consumer.from_where) == ("CONSUME_PASSIVELY", "CONSUME_FROM_LAST_OFFSET")
    found = {item.topic: (item.expression, item.tags) for item in consumer.subscriptions}
    assert found == {"t": ("a || b", ("a", "b")), "%RETRY%g": ("*", ())}


@in_virtual_time
async def test_two_members_share_and_the_rest_takes_over_when_one_leaves() -> None:
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


def test_a_fault_in_one_rebalance_is_logged_and_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("no such strategy")

    async def test() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(group_member, "allocate", fails)
            async with client_of(broker_with(4).network()) as mq, mq.consumer("t", group="g") as messages:
                await asyncio.sleep(1)
                assert owned(messages) == []
                patched.undo()
                await asyncio.sleep(60)
                assert owned(messages) == [0, 1, 2, 3]

    run(test())
    assert "no such strategy" in caplog.text


@in_virtual_time
async def test_without_notice_members_agree_after_the_next_rebalance() -> None:
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


@pytest.mark.parametrize("start", ["latest", "earliest"])
@in_virtual_time
async def test_topic_and_queue_that_are_made_while_the_group_waits_are_read_from_their_beginning(start: str) -> None:
    broker = ScriptedBroker(queues=1)
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g", start=start) as messages:
        await asyncio.sleep(5)
        broker.topics.add("t")
        broker.append("t", 0, b"0")
        broker.append("t", 0, b"1")
        assert len(await messages.take(2, wait=30)) == 2
        broker.queues = 2
        broker.append("t", 1, b"2")
        assert len(await messages.take(2, wait=30)) == 1
    async with client_of(broker.network()) as mq, mq.consumer("t", group="h", start="latest") as messages:
        assert await messages.take(2, wait=30) == []  # what was there when it joined


@in_virtual_time
async def test_topic_and_queue_that_are_made_as_soon_as_the_consumer_is_entered_are_read_from_their_beginning() -> None:
    broker = broker_with(1, "old")
    broker.append("old", 0, b"before")
    async with (
        client_of(broker.network()) as mq,
        mq.consumer(["new", "old"], group="g", start="latest") as messages,
    ):
        broker.topics.add("new")
        broker.queues = 2
        broker.append("new", 0, b"0")
        broker.append("new", 1, b"1")
        broker.append("old", 1, b"2")
        got = [await messages.get(30) for _ in range(3)]
        assert sorted(message.body for message in got if message) == [b"0", b"1", b"2"]


@in_virtual_time
async def test_second_consumer_of_a_member_reads_what_is_made_as_soon_as_it_is_entered() -> None:
    broker = broker_with(1)
    async with (
        client_of(broker.network()) as mq,
        mq.consumer("t", group="g", start="latest"),
    ):
        await asyncio.sleep(5)
        async with mq.consumer("new", group="g", start="latest") as messages:
            broker.topics.add("new")
            broker.append("new", 0, b"0")
            message = await messages.get(30)
            assert message is not None
            assert message.body == b"0"


@pytest.mark.parametrize("silent", [True, False])
@in_virtual_time
async def test_consumer_is_entered_while_no_name_server_answers_and_sees_then_what_is_there(silent: bool) -> None:
    broker = broker_with(1)
    broker.append("t", 0, b"before")
    network = broker.network()
    network.servers[Address("other", 9876)] = broker
    client = client_of(network)
    client._url = ServerUrl((NAMES, Address("other", 9876)))  # asked one after the other, for 3 s each
    async with client as mq:
        broker.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _, request: (
            None if silent else encode_response(request, 1, "not now")
        )
        entering = asyncio.get_running_loop().time()
        async with mq.consumer(["t", "u", "v"], group="g", start="latest") as messages:
            assert asyncio.get_running_loop().time() - entering < 5
            await asyncio.sleep(10)
            del broker.on[RequestCode.GET_ROUTEINFO_BY_TOPIC]
            await asyncio.sleep(20)
            broker.append("t", 0, b"after")
            message = await messages.get(30)
            assert message is not None
            assert message.body == b"after"


@in_virtual_time
async def test_topic_that_is_made_while_its_consumer_is_away_was_there_when_it_joined() -> None:
    broker = broker_with(1)
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g", start="latest"):
        async with mq.consumer("u", group="g", start="latest"):
            await asyncio.sleep(5)
        broker.topics.add("u")
        broker.append("u", 0, b"0")
        async with mq.consumer("u", group="g", start="latest") as messages:
            await asyncio.sleep(5)
            broker.append("u", 0, b"1")
            message = await messages.get(30)
            assert message is not None
            assert message.body == b"1"


@pytest.mark.parametrize("deleted", [True, False])
@in_virtual_time
async def test_queues_of_a_topic_that_is_deleted_are_let_go_and_those_that_only_name_servers_forgot_are_not(
    deleted: bool,
) -> None:
    broker = broker_with(2)
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        await asyncio.sleep(1)
        broker.topics.discard("t")
        if deleted:
            broker.on[RequestCode.PULL_MESSAGE] = lambda peer, request: (
                encode_response(request, 17, "no such topic")
                if request.ext.topic not in broker.topics
                else broker.usual(peer, request)
            )
        await asyncio.sleep(40 if deleted else 100)  # a pull, and a rebalance; or until the client's route is too old
        assert owned(messages) == ([] if deleted else [0, 1])
        pulls = len(broker.requests(RequestCode.PULL_MESSAGE))
        await asyncio.sleep(60)
        assert (len(broker.requests(RequestCode.PULL_MESSAGE)) - pulls < 10) is deleted
        broker.topics.add("t")
        fill(broker)
        assert len(await messages.take(1, wait=30)) == 1
        assert owned(messages) == [0, 1]


@in_virtual_time
async def test_leaving_commits_and_unregisters_at_once() -> None:
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


def test_messages_that_were_not_acknowledged_are_not_handed_back_after_leaving(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They come again to whoever owns the queue; handed back as well, they would come twice."""

    async def test() -> None:
        broker = broker_with(1)
        fill(broker)
        fill(broker)
        async with client_of(broker.network()) as mq:
            async with mq.consumer("t", group="g") as messages:
                message = await messages.get(5)
                assert message is not None
                other = await messages.get(5)
                assert other is not None
            await message.retry()
            await message.retry()
            await other.reject()
            assert broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK) == []

    run(test())
    said = [line for line in caplog.messages if "its queue was released meanwhile" in line]
    assert [("handed back" in line, "rejected" in line) for line in said] == [(True, False), (False, True)]


# --- leaving that is cancelled ------------------------------------------------------------------------------------


@in_virtual_time
async def test_cancelled_leaving_goes_on_and_the_rest_takes_over() -> None:
    broker = broker_with()
    fill(broker)
    async with (
        client_of(broker.network(), seed=1) as one,
        client_of(broker.network(), seed=2) as two,
        one.consumer("t", group="g") as first,
    ):
        (await first.take(4, wait=5)).ack()
        async with two.consumer("t", group="g") as second:
            answer_commits_after(broker, 0.5)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(first.close(), 0.1)
            assert await first.get(0) is None
            assert first.is_closed
            await asyncio.sleep(2)
            assert groups_of(broker, one) == []
            broker.notify_members("g")
            await asyncio.sleep(20)  # longer than a pull waits
            assert owned(second) == [0, 1, 2, 3]
            # Nothing of the first member pulls: each queue of the group has one reader that waits.
            assert sorted(request.ext.topic for _, request in broker._parked) == ["%RETRY%g", *["t"] * 4]


@in_virtual_time
async def test_block_whose_leaving_is_cancelled_ends_as_cancelled() -> None:
    broker = broker_with()
    async with client_of(broker.network()) as mq:

        async def consume() -> None:
            async with mq.consumer("t", group="g"):
                await asyncio.sleep(0.5)
                answer_commits_after(broker, 0.9)

        consuming = asyncio.ensure_future(consume())
        await asyncio.sleep(1)
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
        await asyncio.sleep(3)
        assert groups_of(broker, mq) == []


@in_virtual_time
async def test_cancelled_leaving_of_one_of_two_consumers_gives_its_topic_up() -> None:
    broker = broker_with(2, "a", "b")
    async with (
        client_of(broker.network()) as mq,
        mq.consumer("a", group="g") as first,
        mq.consumer("b", group="g") as second,
    ):
        await asyncio.sleep(0.5)
        answer_commits_after(broker, 0.5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first.close(), 0.1)
        await asyncio.sleep(3)
        assert owned(second, "a") == []
        ((consumer,),) = [body.consumer_groups for body in broker.heartbeats.values()]
        assert [item.topic for item in consumer.subscriptions] == ["%RETRY%g", "b"]
        broker.append("b", 0, b"x")
        broker.append("%RETRY%g", 0, b"y", b"RETRY_TOPIC\x01b\x02UNIQ_KEY\x01U\x02")
        assert len([await second.get(5), await second.get(5)]) == 2


@in_virtual_time
async def test_client_that_closes_waits_for_a_leaving_that_was_cancelled() -> None:
    broker = broker_with()
    fill(broker)
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        (await messages.take(4, wait=5)).ack()
        answer_commits_after(broker, 0.5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(messages.close(), 0.1)
    assert committed(broker) == [1] * 4
    assert len(broker.requests(RequestCode.UNREGISTER_CLIENT)) == 1


@in_virtual_time
async def test_group_is_joined_again_while_its_cancelled_leaving_goes_on() -> None:
    broker = broker_with()
    fill(broker)
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        (await messages.take(4, wait=5)).ack()
        answer_commits_after(broker, 0.5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(messages.close(), 0.1)
        async with mq.consumer("t", group="g", start="latest") as again:
            await asyncio.sleep(3)
            assert groups_of(broker, mq) == ["g"]
            assert owned(again) == [0, 1, 2, 3]
            assert await again.get(0) is None  # it started at what the leaving committed


@in_virtual_time
async def test_joining_that_is_cancelled_leaves_no_member() -> None:
    broker = broker_with()
    fill(broker)

    async with client_of(broker.network()) as mq:
        answer_heartbeats_after(broker, 0.5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mq.consumer("t", group="g").__aenter__(), 0.1)
        await asyncio.sleep(1)
        assert groups_of(broker, mq) == []
        async with mq.consumer("t", group="g") as messages:
            assert await messages.get(5) is not None


@in_virtual_time
async def test_client_that_closes_while_a_consumer_joins_keeps_no_member() -> None:
    broker = broker_with()

    async with client_of(broker.network()) as mq:
        answer_heartbeats_after(broker, 0.5)
        joining = asyncio.ensure_future(mq.consumer("t", group="g").__aenter__())
        await asyncio.sleep(0.1)
    await joining
    await asyncio.sleep(1)
    assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@in_virtual_time
async def test_client_that_closes_while_a_consumer_looks_what_is_there_keeps_no_member() -> None:
    broker = broker_with()

    async with client_of(broker.network()) as mq:
        membership = mq._context.membership
        broker.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _peer, _request: None
        joining = asyncio.ensure_future(mq.consumer("t", group="g", start="latest").__aenter__())
        await asyncio.sleep(0.1)
    await joining
    assert membership.consumers == frozenset()
    await asyncio.sleep(1)
    assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


# --- while the connection is opened -------------------------------------------------------------------------------


async def opening_again(broker: ScriptedBroker) -> None:
    """The broker is started again, and does not answer the first heartbeat on the new connections at once."""
    said = len(broker.requests(RequestCode.HEART_BEAT))
    broker.stop()
    answer_heartbeats_after(broker, 2.0)
    broker.start()
    async with asyncio.timeout(5):
        while len(broker.requests(RequestCode.HEART_BEAT)) == said:
            await asyncio.sleep(0.01)


@in_virtual_time
async def test_group_that_is_left_while_the_connection_is_opened_again_keeps_no_member() -> None:
    broker = broker_with()
    async with (
        client_of(broker.network(), seed=1) as one,
        client_of(broker.network(), seed=2) as two,
    ):
        first = await one.consumer("t", group="g").__aenter__()
        await asyncio.sleep(1)
        await opening_again(broker)
        await first.close()
        assert groups_of(broker, one) == ["g"]
        await asyncio.sleep(5)
        assert groups_of(broker, one) == []
        del broker.on[RequestCode.HEART_BEAT]
        async with two.consumer("t", group="g") as second:
            await asyncio.sleep(1)
            assert owned(second) == [0, 1, 2, 3]


@in_virtual_time
async def test_group_that_is_joined_while_the_connection_is_opened_again_gets_its_queues_with_it() -> None:
    broker = broker_with()
    async with client_of(broker.network()) as mq, mq.consumer("other", group="other"):
        await asyncio.sleep(1)
        await opening_again(broker)
        async with mq.consumer("t", group="g") as messages:
            assert groups_of(broker, mq) == ["other"]
            await asyncio.sleep(5)
            assert owned(messages) == [0, 1, 2, 3]


@in_virtual_time
async def test_member_that_is_not_in_the_list_yet_asks_again_soon_and_then_less_often() -> None:
    broker = broker_with()
    asked: list[float] = []

    def without_us(_: Any, request: Any) -> bytes:
        asked.append(asyncio.get_running_loop().time())
        return encode_response(request, 0, body=encode_member_list(["somebody"]))

    async with client_of(broker.network()) as mq:
        broker.on[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = without_us
        async with mq.consumer("t", group="g") as messages:
            await asyncio.sleep(1.5)
            assert owned(messages) == []
            del broker.on[RequestCode.GET_CONSUMER_LIST_BY_GROUP]
            await asyncio.sleep(3)
            assert owned(messages) == [0, 1, 2, 3]
            broker.on[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = without_us
            asked.clear()
            await asyncio.sleep(300)
            assert owned(messages) == []
            assert 15 < len(asked) / 2 < 25, "two topics, and at last one question each 20 s"


# --- several consumers --------------------------------------------------------------------------------------------


@in_virtual_time
async def test_rebalance_while_the_last_consumer_leaves_takes_nothing_up() -> None:
    broker = broker_with()
    async with client_of(broker.network()) as mq:
        async with mq.consumer("t", group="g"):
            await asyncio.sleep(0.5)
            answer_commits_after(broker, 0.5)
            asyncio.get_running_loop().call_later(0.1, broker.notify_members, "g")
        await asyncio.sleep(20)  # longer than a pull waits
        assert broker._parked == []


@in_virtual_time
async def test_consumers_that_leave_at_once_leave_the_group_once_behind_the_commits_of_both() -> None:
    broker = broker_with(1, "a", "b")
    async with client_of(broker.network()) as mq:
        first = await mq.consumer("a", group="g").__aenter__()
        second = await mq.consumer("b", group="g").__aenter__()
        await asyncio.sleep(0.5)

        def b_slower(peer: Any, request: Any) -> bytes | None:
            delay_s = 0.6 if request.ext.topic == "b" else 0.2
            asyncio.get_running_loop().call_later(delay_s, lambda: peer.send(broker.usual(peer, request)))
            return None

        broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = b_slower
        closing = asyncio.gather(first.close(), second.close())
        await asyncio.sleep(0.5)
        assert broker.requests(RequestCode.UNREGISTER_CLIENT) == []
        await closing
        assert len(broker.requests(RequestCode.UNREGISTER_CLIENT)) == 1
        await asyncio.sleep(20)  # longer than a pull waits
        assert broker._parked == []  # the retry queue was free before the last commit was through
        heard = [decode_heartbeat(request.body) for request in broker.requests(RequestCode.HEART_BEAT)]
        assert all(consumer.subscriptions for body in heard for consumer in body.consumer_groups)


@in_virtual_time
async def test_queues_on_their_way_to_another_member_are_committed_when_the_last_consumer_goes() -> None:
    broker = broker_with()
    fill(broker)
    async with (
        client_of(broker.network(), seed=1) as one,
        client_of(broker.network(), seed=2) as two,
        one.consumer("t", group="g") as first,
    ):
        (await first.take(4, wait=5)).ack()
        async with two.consumer("t", group="g"):
            answer_commits_after(broker, 0.8)
            slow = broker.on[RequestCode.UPDATE_CONSUMER_OFFSET]
            broker.notify_members("g")
            while not broker.requests(RequestCode.UPDATE_CONSUMER_OFFSET):
                await asyncio.sleep(0.01)
            given_up = {0, 1, 2, 3} - set(owned(first))
            assert len(given_up) == 2
            broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda peer, request: (
                slow(peer, request) if request.ext.queue_id in given_up else broker.usual(peer, request)
            )
            await first.close()
            assert [broker.offsets.get(("g", "t", queue)) for queue in given_up] == [1, 1]


@in_virtual_time
async def test_queues_that_are_ours_again_while_they_are_given_up_are_taken_up_behind_the_commit() -> None:
    broker = broker_with()
    fill(broker)
    async with (
        client_of(broker.network(), seed=1) as one,
        client_of(broker.network(), seed=2) as two,
        one.consumer("t", group="g") as first,
    ):
        (await first.take(4, wait=5)).ack()
        async with two.consumer("t", group="g"):
            answer_commits_after(broker, 0.9)
            broker.notify_members("g")
            while len(broker.requests(RequestCode.UPDATE_CONSUMER_OFFSET)) < 2:
                await asyncio.sleep(0.01)
            del broker.on[RequestCode.UPDATE_CONSUMER_OFFSET]
        broker.notify_members("g")
        await asyncio.sleep(0.1)
        assert len(owned(first)) == 2
        await asyncio.sleep(2)
        assert owned(first) == [0, 1, 2, 3]


# --- commits ------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_first_commits_of_a_topic_do_not_meet_at_a_broker_that_keeps_one_of_them() -> None:
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


@in_virtual_time
async def test_first_commits_do_not_meet_at_a_broker_that_was_started_again_and_has_forgotten() -> None:
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


@in_virtual_time
async def test_first_commits_of_queues_that_are_kept_and_given_up_do_not_meet() -> None:
    """Those that are given up are committed at once, and the others each second: here at the same time."""
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


@in_virtual_time
async def test_queues_are_given_up_together_where_the_member_has_committed_another() -> None:
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


@in_virtual_time
async def test_broker_that_refuses_the_commits_of_one_queue_is_told_the_others() -> None:
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


@in_virtual_time
async def test_leaving_a_broker_that_refuses_costs_two_answers_not_one_for_each_queue() -> None:
    broker = broker_with(16)
    fill(broker)
    async with client_of(broker.network()) as mq:
        async with mq.consumer("t", group="g") as messages:
            got = await messages.take(16, wait=5)
            answer_commits_after(broker, 0.9, code=1)
            got.ack()
            left = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - left < 2.0


@in_virtual_time
async def test_leaving_a_slow_broker_costs_two_answers_not_one_for_each_queue() -> None:
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


@in_virtual_time
async def test_leaving_a_broker_that_does_not_answer_waits_once_not_for_each_queue() -> None:
    broker = broker_with(8)
    async with client_of(broker.network()) as mq:
        async with mq.consumer("t", group="g") as messages:
            while len(owned(messages)) < 8:
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.5)
            broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda *_: None
            left = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - left < 1.5


# --- topics and readers -------------------------------------------------------------------------------------------


@in_virtual_time
async def test_topic_that_is_made_later_is_found_soon() -> None:
    broker = ScriptedBroker(queues=1)
    async with client_of(broker.network()) as mq, mq.consumer("later", group="g") as messages:
        await asyncio.sleep(3)
        assert owned(messages, "later") == []
        await mq.send("later", b"x")
        message = await messages.get(10)
        assert message is not None
        assert message.body == b"x"


@in_virtual_time
async def test_two_consumers_of_one_group_and_client_get_their_own_topics() -> None:
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


@in_virtual_time
async def test_consumer_that_leaves_takes_nothing_from_another_one() -> None:
    broker = broker_with(1, "a", "b")
    fill(broker, "b")
    async with client_of(broker.network()) as mq, mq.consumer("b", group="g") as second:
        async with mq.consumer("a", group="g"):
            message = await second.get(5)
            assert message is not None
        await asyncio.sleep(1)
        message.ack()
        assert await second.get(5) is None
    assert committed(broker, "b") == [1]


@in_virtual_time
async def test_retried_message_that_waits_for_a_consumer_that_leaves_is_left_to_whoever_consumes_its_topic() -> None:
    """The reader of the retry queue begins anew, and hands back what nobody here consumes; it does not lie where nobody looks."""
    broker = broker_with(1, "a", "b")
    async with client_of(broker.network()) as mq, mq.consumer("b", group="g") as second:
        async with mq.consumer("a", group="g"):
            await asyncio.sleep(1.5)
            broker.append("%RETRY%g", 0, b"x", b"RETRY_TOPIC\x01a\x02UNIQ_KEY\x01U\x02")
            await asyncio.sleep(0.5)
        assert await second.get(5) is None
        async with mq.consumer("a", group="g") as again:
            message = await again.get(20)
            assert message is not None
            assert message.topic == "a"


@in_virtual_time
async def test_reader_that_failed_is_started_anew_and_nothing_comes_twice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_with(1)
    fill(broker)
    pull = QueuePuller._pull

    async def pull_once(self: QueuePuller, tracker: OffsetTracker) -> None:
        if len(tracker) and self.queue.topic == "t":
            monkeypatch.setattr(QueuePuller, "_pull", pull)
            raise RuntimeError("a bug of ours")
        await pull(self, tracker)

    monkeypatch.setattr(QueuePuller, "_pull", pull_once)
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        await asyncio.sleep(5)
        assert "a bug of ours" in caplog.text
        (message,) = await messages.take(10, wait=1)
        message.ack()
        await asyncio.sleep(2)
        assert committed(broker) == [1]


@in_virtual_time
async def test_retried_message_whose_reader_is_gone_is_handed_back() -> None:
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


@in_virtual_time
async def test_refused_member_list_keeps_what_we_have() -> None:
    broker = broker_with()
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        await asyncio.sleep(1)
        broker.on[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda _, request: encode_response(request, 1, "none")
        await asyncio.sleep(60)
        assert owned(messages) == [0, 1, 2, 3]


@in_virtual_time
async def test_client_that_closes_ends_open_iterations() -> None:
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


@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("another", [True, False])
@in_virtual_time
async def test_topic_that_is_read_again_while_it_is_given_up_goes_on_where_it_was_acknowledged(
    cancelled: bool, another: bool
) -> None:
    """Else a group without an offset would start behind the message that is open, and pass it."""
    broker = broker_with(1, "a", "b")
    async with client_of(broker.network()) as mq:
        other = mq.consumer("b", group="g", start="latest")
        if another:
            await other.__aenter__()
        first = await mq.consumer("a", group="g", start="latest").__aenter__()
        await asyncio.sleep(0.3)
        broker.append("a", 0, b"one")
        broker.append("a", 0, b"two")
        got = await first.take(2, wait=5)
        answer_commits_after(broker, 0.5)
        got[0].ack()
        closing = asyncio.ensure_future(first.close())
        await asyncio.sleep(0.1)
        if cancelled:
            closing.cancel()
        async with mq.consumer("a", group="g", start="latest") as again:
            assert [message.body for message in await again.take(1, wait=5)] == [b"two"]
            await asyncio.sleep(5)
            assert broker.offsets["g", "a", 0] == 1
        if another:
            await other.close()
