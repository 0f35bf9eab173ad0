"""Every visible message of the topics, read over the wire with the client, each place in a queue once."""

import time
from collections.abc import Sequence

from halfmq import AsyncClient, Message
from halfmq.client.admin import queue_bounds
from halfmq.client.routing import QueueRef

#: No message for this long, while some are known to be there, is an error.
STALL_SECONDS = 60.0


class Stalled(Exception):
    """Messages that the broker says are there did not come."""


async def count_visible(mq: AsyncClient, topic: str) -> int:
    """How many messages a consumer of ``topic`` can see now."""
    return sum(bounds.end - bounds.first for bounds in (await queue_bounds(mq, topic)).values())


async def read_all(url: str, topics: Sequence[str]) -> dict[str, list[Message]]:
    """Topic -> its messages, up to the ends that the queues had at the start.

    By place (queue and offset): a redelivery of the same place is not a second message, the same body in another
    place is.
    """
    async with AsyncClient(url, group="reconcile") as mq:
        return {topic: await _read_topic(mq, topic) for topic in topics}


async def _read_topic(mq: AsyncClient, topic: str) -> list[Message]:
    bounds = await queue_bounds(mq, topic)
    wanted = sum(one.end - one.first for one in bounds.values())
    ends = {queue.queue: one.end for queue, one in bounds.items()}
    _refuse_two_brokers(list(bounds))
    places: dict[tuple[int, int], Message] = {}
    group = f"reconcile-{time.time_ns():x}"
    async with mq.consumer(topic, group=group, start="earliest") as messages:
        while len(places) < wanted:
            message = await messages.get(STALL_SECONDS)
            if message is None:
                raise Stalled(f"{topic}: {len(places)} of {wanted} messages came")
            if message.offset < ends[message.queue]:
                places[message.queue, message.offset] = message
            message.ack()
    return [places[place] for place in sorted(places)]


def _refuse_two_brokers(queues: list[QueueRef]) -> None:
    assert len({queue.broker for queue in queues}) == 1, "places are told apart by queue number"
