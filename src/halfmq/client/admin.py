"""Administration for an application's tools: the bounds of a topic's queues, how far a consumer group is, what retention keeps for a
consumer group, and which brokers are halfmq's.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from halfmq import limits
from halfmq.client.async_client import AsyncClient
from halfmq.client.connection import Answer
from halfmq.client.context import ClientContext
from halfmq.client.routing import QueueRef
from halfmq.errors import RequestFailed
from halfmq.wire.remoting.attributes import change_body, hold_removed, hold_set
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.fields import OffsetReply


class Bounds(NamedTuple):
    """Queue offsets: of the first stored message, and one past the last."""

    first: int
    end: int


async def queue_bounds(mq: AsyncClient, topic: str) -> dict[QueueRef, Bounds]:
    """The bounds of every queue of ``topic``, each read at its own moment. Reading up to ``end`` covers all that was stored then.

    Raises:
        TopicNotFound: no such topic. ConnectError: no broker is reachable. RequestFailed: the broker rejected the request.
    """
    context = mq._open()
    route = await context.router.route(topic, max_age_s=0)
    return {
        queue: Bounds(
            await _offset(context, queue, RequestCode.GET_MIN_OFFSET),
            await _offset(context, queue, RequestCode.GET_MAX_OFFSET),
        )
        for queue in route.readable
    }


async def consumer_offsets(mq: AsyncClient, group: str, topic: str) -> dict[QueueRef, int]:
    """The offset of the next message that the consumer group has not acknowledged, for each queue in which it has committed one.

    Raises:
        TopicNotFound, ConnectError, RequestFailed: as ``queue_bounds``.
    """
    context = mq._open()
    route = await context.router.route(topic, max_age_s=0)
    found = {}
    for queue in route.readable:
        fields = {"consumerGroup": group, "topic": queue.topic, "queueId": str(queue.queue)}
        what = f"the offset of group {group} in {queue}"
        try:
            answer = await _ask(context, queue.broker, RequestCode.QUERY_CONSUMER_OFFSET, fields, b"", what)
        except RequestFailed as error:
            if error.response_code == ResponseCode.QUERY_NOT_FOUND:
                continue
            raise
        found[queue] = answer.read(OffsetReply).offset
    return found


async def hold_retention(
    mq: AsyncClient, group: str, topics: str | Iterable[str], *, max_age_s: float = limits.HOLD_MS / 1000
) -> None:
    """Let every broker keep the messages of ``topics`` until the consumer group has read them: until its committed offset in their queue is
    after them. From the return on; a queue in which the group has no offset is kept from its first message on.

    Replaces what the group held before. The group and the topics need not exist; the group is created. The hold stays until
    ``release_retention``, or until the group is deleted, so release it when nobody reads for the group any more.

    Messages older than ``max_age_s`` (seconds; 0: no limit) are not kept for the group, and the broker's operator limits the space. What
    is then removed unread is logged by the broker, and a reader is told of it as data loss.

    Raises:
        ValueError: no topics. InvalidName: of a topic. ConnectError: no name server, or not every broker, is reachable; others may hold
            already: call it again.
        RequestFailed: a broker rejected it: a name is invalid, there is no space for it, or it is a RocketMQ broker, which cannot hold.
    """
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise ValueError("no topics; to hold nothing any more call release_retention")
    await _change(mq, group, hold_set(names, round(max_age_s * 1000)))


async def release_retention(mq: AsyncClient, group: str) -> None:
    """Let no broker keep anything for the consumer group any more; harmless if none does. Creates the group if it does not exist.

    Raises:
        ConnectError, RequestFailed: as ``hold_retention``.
    """
    await _change(mq, group, hold_removed())


async def is_halfmq(mq: AsyncClient, broker: str) -> bool:
    """Whether the broker of this name is a halfmq broker; False: Apache RocketMQ.

    Raises:
        ConnectError: it does not answer, or nobody knows it.
    """
    context = mq._open()
    attempts = context.attempts(f"asking broker {broker} what it is")
    return (await attempts.find(lambda: context.broker(broker))).is_halfmq


async def _change(mq: AsyncClient, group: str, attributes: Mapping[str, str]) -> None:
    context = mq._open()
    code, body = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, change_body(group, attributes)
    for broker in await context.router.all_brokers():
        await _ask(context, broker, code, {}, body, f"the hold of group {group} at broker {broker}")


async def _offset(context: ClientContext, queue: QueueRef, code: RequestCode) -> int:
    fields = {"topic": queue.topic, "queueId": str(queue.queue)}
    answer = await _ask(context, queue.broker, code, fields, b"", f"{code.name} of {queue}")
    return answer.read(OffsetReply).offset


async def _ask(
    context: ClientContext, broker: str, code: RequestCode, fields: Mapping[str, str], body: bytes, what: str
) -> Answer:
    return await context.attempts(what).ask(
        lambda: context.broker(broker),
        lambda connection, timeout_s: connection.request(code, fields, body, timeout_s),
    )
