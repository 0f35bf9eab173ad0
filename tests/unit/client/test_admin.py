"""Where the queues of a topic begin and end."""

import asyncio

import pytest
from tests.support.scripted_broker import ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time

from halfmq.client.admin import Bounds, queue_bounds
from halfmq.errors import ConnectError, RequestFailed, TopicNotFound
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import encode_response


@in_virtual_time
async def test_every_queue_has_its_bounds() -> None:
    broker = ScriptedBroker(queues=2)
    broker.topics.add("t")
    for body in (b"a", b"b"):
        broker.append("t", 1, body)
    async with client_of(broker.network()) as mq:
        found = await queue_bounds(mq, "t")
    assert {queue.queue: bounds for queue, bounds in found.items()} == {0: Bounds(0, 0), 1: Bounds(0, 2)}


@in_virtual_time
async def test_unknown_topic_refusal_and_silence_are_their_errors() -> None:
    broker = ScriptedBroker(queues=1)
    async with client_of(broker.network()) as mq:
        with pytest.raises(TopicNotFound):
            await queue_bounds(mq, "unknown")
        broker.topics.add("t")
        broker.on[RequestCode.GET_MAX_OFFSET] = lambda _, request: encode_response(request, 1, "no")
        with pytest.raises(RequestFailed):
            await queue_bounds(mq, "t")
        broker.stop()
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectError):
            await queue_bounds(mq, "t")
