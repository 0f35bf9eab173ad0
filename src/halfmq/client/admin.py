"""Administrative queries for an application's tools: the first and end offsets of a topic's queues."""

from typing import NamedTuple

from halfmq.client.allocation import QueueRef
from halfmq.client.async_client import AsyncClient
from halfmq.client.connection import NoAnswer, NotSent
from halfmq.client.context import ClientContext
from halfmq.client.refusals import refusal
from halfmq.errors import ConnectError
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.replies import OffsetReply, read_reply


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
            await _ask(context, queue, RequestCode.GET_MIN_OFFSET),
            await _ask(context, queue, RequestCode.GET_MAX_OFFSET),
        )
        for queue in route.readable
    }


async def _ask(context: ClientContext, queue: QueueRef, code: RequestCode) -> int:
    what = f"{code.name} of {queue}"
    attempts = context.attempts(what)
    while True:
        try:
            connection = await context.broker(queue.broker)
            answer = await connection.request(
                code, {"topic": queue.topic, "queueId": str(queue.queue)}, timeout_s=attempts.timeout_s()
            )
        except (ConnectError, NotSent, NoAnswer) as error:
            await attempts.lost(error)
            continue
        if answer.code == ResponseCode.SUCCESS:
            return read_reply(answer, OffsetReply).offset
        await attempts.refused(refusal(answer.code, answer.remark or "", what))
