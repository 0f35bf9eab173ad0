"""Where a group starts is fixed when its consumer is entered: what is sent after that is for the group."""

import asyncio
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.scripted_broker import ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time, run

from halfmq.client import start_position
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import encode_response

QUERY, COMMIT = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET
ENDS = (RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)


def broker_with(*queues: int, halfmq: bool = True) -> ScriptedBroker:
    """A topic with as many messages in its queues."""
    broker = ScriptedBroker(queues=len(queues), halfmq=halfmq)
    broker.topics.add("t")
    for queue, messages in enumerate(queues):
        for _ in range(messages):
            broker.append("t", queue, b"before")
    return broker


def starts(broker: ScriptedBroker, group: str = "g") -> list[int | None]:
    return [broker.offsets.get((group, "t", queue)) for queue in range(broker.queues)]


@pytest.mark.parametrize("halfmq", [True, False])
@in_virtual_time
async def test_every_queue_has_its_start_committed_when_the_consumer_is_entered(halfmq: bool) -> None:
    broker = broker_with(3, 0, 2, halfmq=halfmq)
    async with client_of(broker.network()) as mq:
        async with mq.consumer("t", group="g", start="latest"):
            assert starts(broker) == [3, 0, 2]
        async with mq.consumer("t", group="h", start=datetime.now(UTC)):
            assert starts(broker, "h") == [1, 1, 1]
        async with mq.consumer("t", group="i"):
            assert starts(broker, "i") == [None, None, None]  # anybody finds the earliest


@in_virtual_time
async def test_a_committed_start_stays_also_where_other_members_read() -> None:
    broker = broker_with(3, 3)
    async with client_of(broker.network(), seed=1) as one, client_of(broker.network(), seed=2) as two:
        async with one.consumer("t", group="g", start="latest"):
            broker.append("t", 0, b"a")
            began = asyncio.get_running_loop().time()
            async with two.consumer("t", group="g", start="latest"):
                assert asyncio.get_running_loop().time() == began, "nothing to wait for"
                assert starts(broker) == [3, 3]
        broker.append("t", 1, b"b")
        async with two.consumer("t", group="g", start="latest") as messages:
            assert sorted(message.body for message in await messages.take(2, 30)) == [b"a", b"b"]


@pytest.mark.parametrize("seed", range(60))
def test_two_that_enter_at_the_same_time_skip_nothing_sent_after_either_was_entered(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker answers after times drawn by chance; a sender writes all the time. Nobody reads, so the offsets are the starts."""
    monkeypatch.setattr(
        start_position, "_OTHERS_S", 0.0
    )  # as if neither heard of the other: the order of requests has to do
    rng = random.Random(seed)
    broker = broker_with(*(rng.randrange(4) for _ in range(rng.choice((1, 2, 4)))), halfmq=rng.random() < 0.8)
    first_after: dict[int, int] = {}  # queue -> its first message that was sent after a member was entered

    def late(peer: Any, request: Any) -> bytes | None:
        loop = asyncio.get_running_loop()
        if rng.random() < 0.5:  # what it answers is of the time of the request, or of that of the answer
            answer = broker.usual(peer, request)
            loop.call_later(rng.random() / 10, lambda: peer.send(answer or b""))
        else:
            loop.call_later(rng.random() / 10, lambda: peer.send(broker.usual(peer, request) or b""))
        return None

    async def enter(number: int) -> None:
        async with client_of(broker.network(), seed=number) as mq:
            await asyncio.sleep(rng.random() / 5)
            consumer = mq.consumer("t", group="g", start="latest", prefetch=1)
            async with consumer:
                for queue in range(broker.queues):
                    first_after.setdefault(queue, len(broker.logs.get(("t", queue), [])))
                await asyncio.sleep(rng.random() / 5)

    async def send() -> None:
        while True:
            await asyncio.sleep(rng.random() / 50)
            broker.append("t", rng.randrange(broker.queues), b"x")

    async def test() -> None:
        broker.on |= dict.fromkeys((QUERY, COMMIT, *ENDS), late)
        sending = asyncio.ensure_future(send())
        await asyncio.gather(enter(1), enter(2))
        sending.cancel()

    run(test())
    assert len(first_after) == broker.queues
    for queue, offset in first_after.items():
        start = broker.offsets["g", "t", queue]
        assert start <= offset, (queue, start, offset)


@in_virtual_time
async def test_queue_that_is_made_while_a_member_waits_is_read_from_its_beginning_also_by_the_next_member() -> None:
    broker = broker_with(2)
    async with client_of(broker.network(), seed=1) as one, client_of(broker.network(), seed=2) as two:
        async with one.consumer("t", group="g", start="latest"):
            broker.queues = 2
            broker.append("t", 1, b"new")
        async with two.consumer("t", group="g", start="latest") as messages:
            message = await messages.get(30)
            assert message is not None
            assert message.body == b"new"


@in_virtual_time
async def test_topic_that_is_made_while_a_member_waits_is_read_from_its_beginning_also_by_the_next_member() -> None:
    broker = ScriptedBroker(queues=2)
    beat = broker.on.get(RequestCode.HEART_BEAT, broker.usual)

    def notify(peer: Any, request: Any) -> bytes | None:  # as a broker does when a member joins
        answer = beat(peer, request)
        broker.notify_members("g")
        return answer

    broker.on[RequestCode.HEART_BEAT] = notify
    async with (
        client_of(broker.network(), seed=1) as one,
        client_of(broker.network(), seed=2) as two,
        one.consumer("t", group="g", start="latest") as first,
    ):
        await asyncio.sleep(90)  # it asks every 20 s only
        broker.topics.add("t")
        broker.append("t", 0, b"0")
        broker.append("t", 1, b"1")
        async with two.consumer("t", group="g", start="latest") as second:
            found = [await first.get(30), await second.get(30)]
            assert sorted(message.body for message in found if message) == [b"0", b"1"]


@in_virtual_time
async def test_members_that_begin_a_group_together_start_at_the_end() -> None:
    broker = broker_with(3)
    began = asyncio.get_running_loop().time()

    async def enter(seed: int) -> None:
        async with client_of(broker.network(), seed=seed) as mq, mq.consumer("t", group="g", start="latest"):
            await asyncio.sleep(5)

    await asyncio.gather(enter(1), enter(2), enter(3))
    assert starts(broker) == [3]
    assert asyncio.get_running_loop().time() - began < 5 + 2 * start_position._OTHERS_S


@in_virtual_time
async def test_a_young_queue_of_an_old_rocketmq_keeps_its_start() -> None:
    """4.9 answers 0 for a group without an offset, as long as the first message is in the machine's memory."""
    broker = broker_with(2, halfmq=False)
    broker.on[QUERY] = lambda peer, request: encode_response(
        request, 0, ext={"offset": broker.offsets.get((request.ext.consumer_group, request.ext.topic, 0), 0)}
    )
    async with client_of(broker.network()) as mq:
        async with mq.consumer("t", group="g", start="latest"):
            assert starts(broker) == [0]
        broker.on.clear()
        async with mq.consumer("t", group="g", start="latest") as messages:
            assert len(await messages.take(2, 30)) == 2


@pytest.mark.parametrize("code", [QUERY, RequestCode.GET_MAX_OFFSET, COMMIT])
def test_broker_that_does_not_answer_is_said_and_nothing_sent_later_is_skipped(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        broker = broker_with(3)
        broker.on[code] = lambda *_: None
        async with client_of(broker.network()) as mq:
            began = asyncio.get_running_loop().time()
            async with mq.consumer("t", group="g", start="latest") as messages:
                assert asyncio.get_running_loop().time() - began < 2 * start_position.FIX_TIMEOUT_S
                broker.append("t", 0, b"after")
                del broker.on[code]
                entered_ms = mq.clock.wall_ms()
                while (message := await messages.get(60)) is not None and message.body != b"after":
                    message.ack()
                assert message is not None
        asked = [request.ext for request in broker.requests(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)]
        if code != COMMIT:
            assert 20_000 < entered_ms - asked[0].timestamp < 60_000
        else:
            assert not asked, "its end was known"

    run(test())
    assert len([line for line in caplog.messages if "no answer about its start" in line]) == 1
