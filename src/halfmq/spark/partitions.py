"""Splits the queue ranges of a read into tasks of about equal size. Pure functions."""

import os
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from halfmq.spark.offsets import QueueName, queue_number, queue_order

#: A task has an overhead of some 10 ms in Spark, so smaller tasks do not pay.
MESSAGES_PER_TASK_MIN: Final = 20_000


class QueueRange(NamedTuple):
    """Messages [start, end) of a queue. ``broker`` is empty unless the queue belongs to a RocketMQ cluster."""

    topic: str
    topic_id: int
    broker: str
    queue: int
    start: int
    end: int


class Ranges(InputPartition):
    """The ranges of a task, in reading order. ``store``: the store that was planned; reading another one is data loss."""

    def __init__(self, store: str, ranges: tuple[QueueRange, ...]) -> None:
        super().__init__(None)
        self.store = store
        self.ranges = ranges

    def __repr__(self) -> str:
        return f"Ranges({', '.join(f'{r.topic}/{r.queue}[{r.start}:{r.end}]' for r in self.ranges)})"


def ranges_between(
    starts: Mapping[QueueName, int], ends: Mapping[QueueName, int], topics: Mapping[str, int]
) -> list[QueueRange]:
    """The non-empty ranges between ``starts`` and ``ends``, ordered by topic, broker and queue number."""
    return [
        QueueRange(
            queue[0],
            topics.get(queue[0], 0),
            queue[1].rpartition(":")[0],
            queue_number(queue[1]),
            starts[queue],
            ends[queue],
        )
        for queue in sorted(ends, key=queue_order)
        if starts.get(queue, ends[queue]) < ends[queue]
    ]


def task_count(messages: int, asked: int | None) -> int:
    """Number of tasks: ``asked`` if given, else one per core, fewer for few messages."""
    if asked is not None:
        return max(1, min(asked, messages))
    return max(1, min(os.cpu_count() or 1, messages // MESSAGES_PER_TASK_MIN))


def pack(store: str, ranges: Iterable[QueueRange], tasks: int) -> list[Ranges]:
    """Split ``ranges`` into ``tasks`` partitions of about equal size, in order; a range may be split. Empty if there are no messages."""
    waiting = [one for one in ranges if one.end > one.start]
    total = sum(one.end - one.start for one in waiting)
    packed: list[Ranges] = []
    done = 0
    current: list[QueueRange] = []
    for one in waiting:
        start = one.start
        while start < one.end:
            goal = total * (len(packed) + 1) // tasks
            taken = min(one.end - start, goal - done)
            current.append(one._replace(start=start, end=start + taken))
            start += taken
            done += taken
            if done == goal:
                packed.append(Ranges(store, tuple(current)))
                current = []
    return packed


def split_larger(packed: Iterable[Ranges], messages_max: int) -> list[Ranges]:
    """``packed``, with each partition of more than ``messages_max`` messages split into equal parts."""
    split: list[Ranges] = []
    for one in packed:
        messages = sum(part.end - part.start for part in one.ranges)
        split += [one] if messages <= messages_max else pack(one.store, one.ranges, -(-messages // messages_max))
    return split
