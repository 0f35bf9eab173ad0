"""How far a consumer group is behind: in messages, and by the age of the oldest message that it has not finished."""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from halfmq.cli.cluster import Broker, Cluster
from halfmq.cli.requests import Commands
from halfmq.client.blocking import Answer
from halfmq.wire.remoting.admin_reports import GroupQueue, decode_consume_stats, decode_topic_stats
from halfmq.wire.remoting.codes import RequestCode, ResponseCode

#: Accuracy of the age of a message, ms.
_EXACT_MS: Final = 1_000


class QueueLag(NamedTuple):
    """``age_ms``: how long ago the oldest message that the group has not finished was stored, within a second; 0: there is none."""

    queue: GroupQueue
    age_ms: int


def group_lag(commands: Commands, cluster: Cluster, group: str, topic: str = "") -> list[QueueLag]:
    """The lag of the group in every queue in which it has an offset; of one topic only, if it is named."""
    found: list[QueueLag] = []
    for broker in cluster.brokers():
        # RocketMQ's broker has no such topic or group if the group never read there.
        absent = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        fields = {"consumerGroup": group, "topic": topic}
        answer = cluster.ask(broker, RequestCode.GET_CONSUME_STATS, fields, absent=absent)
        if answer is None:
            continue
        with commands.reported():
            queues = decode_consume_stats(answer.body)
        ages = _ages_ms(cluster, broker, [one for one in queues if one.lag])
        found += [QueueLag(one, ages.get((one.topic, one.queue), 0)) for one in queues]
    return sorted(found)


def _ages_ms(cluster: Cluster, broker: Broker, queues: Sequence[GroupQueue]) -> dict[tuple[str, int], int]:
    """By topic and queue. Neither 202 nor 208 says it, and reading the message would take a right to read: so search by store time for the
    last moment whose messages begin at the group's offset or before, in all queues at once.
    """
    bounds = {
        (topic, one.queue): one
        for topic in {queue.topic for queue in queues}
        for one in cluster.read(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, decode_topic_stats)
    }
    low: dict[GroupQueue, int] = {}
    high: dict[GroupQueue, int] = {}
    for queue in queues:
        stats = bounds.get((queue.topic, queue.queue))
        high[queue] = stats.last_time_ms if stats is not None else queue.done_time_ms
        low[queue] = high[queue] if stats is not None and stats.end == queue.offset + 1 else queue.done_time_ms
    unknown = [queue for queue in queues if not low[queue]]
    earliest = cluster.each(broker, RequestCode.GET_EARLIEST_MSG_STORETIME, [_fields(queue) for queue in unknown])
    for queue, answer in zip(unknown, earliest, strict=True):
        low[queue] = max(0, _number(answer, "timestamp"))
    while open_ := [queue for queue in queues if high[queue] - low[queue] > _EXACT_MS]:
        middles = [(low[queue] + high[queue]) // 2 for queue in open_]
        asked = [{**_fields(queue), "timestamp": at} for queue, at in zip(open_, middles, strict=True)]
        answers = cluster.each(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, asked)
        for queue, at, answer in zip(open_, middles, answers, strict=True):
            side = low if _number(answer, "offset") <= queue.offset else high
            side[queue] = at
    now_ms = time.time_ns() // 1_000_000
    return {(queue.topic, queue.queue): max(0, now_ms - low[queue]) for queue in queues if low[queue]}


def _fields(queue: GroupQueue) -> dict[str, object]:
    return {"topic": queue.topic, "queueId": queue.queue}


def _number(answer: Answer | None, name: str) -> int:
    assert answer is not None
    text = answer.ext.get(name, "0")
    return int(text) if text.lstrip("-").isdecimal() else 0
