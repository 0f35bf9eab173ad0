"""Splits the queue ranges of a read into tasks of about equal bytes. Pure functions.

The process that plans knows nothing of the cluster: Spark starts it without a SparkContext, and passes neither master nor parallelism. So
the number of tasks follows from the bytes to read, as in Spark's file sources, and a large read occupies a cluster of any size. The
cores of the driver only round it up, since with ``local[*]`` the tasks run on them.

Sizes are estimates: the mean of some consecutive messages of each *slice*, a short range. Where a broker tells no sizes (Apache
RocketMQ), all messages count the same.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from pyspark.sql.datasource import InputPartition

from halfmq.limits import SIZE_SAMPLE_MESSAGES
from halfmq.spark.plan.offsets import QueueName, queue_broker, queue_number, queue_order

#: A task has an overhead of some 30 ms in Spark, so smaller tasks do not pay, in messages and in bytes.
MESSAGES_PER_TASK_MIN: Final = 20_000
BYTES_PER_TASK_MIN: Final = 4 << 20
#: A task reads about this much: 0.8 s of work, or 2 s with all columns. Spark needs 30 ms of a core to start a Python task, so that smaller
#: tasks would cost more than 5 % on the machine of the driver. Compare ``spark.sql.files.maxPartitionBytes``: 128 MiB, of tasks in Java.
BYTES_PER_TASK: Final = 512 << 20
#: Assumed size of a message, stored, if it is unknown.
MESSAGE_BYTES_ASSUMED: Final = 1_024
#: A plan is split into about this many slices, at least ``_SLICES_PER_RANGE_MIN`` for each range, since a queue with few messages may
#: have most of the bytes. A sample from the files takes 40 us.
_SLICES: Final = 128
_SLICES_PER_RANGE_MIN: Final = 4


class QueueRange(NamedTuple):
    """Messages [start, end) of a queue. ``broker`` is empty for a query of one halfmq broker."""

    topic: str
    topic_id: int
    broker: str
    queue: int
    start: int
    end: int

    def in_words(self) -> str:
        """Its queue, for the text of an error."""
        return f"queue {self.queue} of topic {self.topic}" + (f" on broker {self.broker}" if self.broker else "")


@dataclass(repr=False, eq=False)
class Ranges(InputPartition):
    """The ranges of a task, in reading order. ``store``: the store that was planned; reading another one is data loss.
    ``stores``: of several halfmq brokers, by broker.
    """

    store: str
    ranges: tuple[QueueRange, ...]
    stores: Mapping[str, str] = field(default_factory=dict)

    def store_of(self, one: QueueRange) -> str:
        """The store that was planned for one of the ranges."""
        return self.stores.get(one.broker, self.store)

    def __repr__(self) -> str:
        return f"Ranges({', '.join(f'{r.topic}/{r.queue}[{r.start}:{r.end}]' for r in self.ranges)})"


def ranges_between(
    starts: Mapping[QueueName, int], ends: Mapping[QueueName, int], topic_id: Callable[[QueueName], int]
) -> list[QueueRange]:
    """The non-empty ranges between ``starts`` and ``ends``, ordered by topic, broker and queue number."""
    return [
        QueueRange(
            queue[0],
            topic_id(queue),
            queue_broker(queue[1]),
            queue_number(queue[1]),
            starts[queue],
            ends[queue],
        )
        for queue in sorted(ends, key=queue_order)
        if starts.get(queue, ends[queue]) < ends[queue]
    ]


def slices(ranges: Iterable[QueueRange]) -> list[QueueRange]:
    """Split non-empty ranges into slices of equal numbers of messages, in order, for ``pack``."""
    ranges = list(ranges)
    total = sum(one.end - one.start for one in ranges)
    found = []
    for one in ranges:
        length = one.end - one.start
        count = min(-(-length // SIZE_SAMPLE_MESSAGES), max(_SLICES_PER_RANGE_MIN, _SLICES * length // total))
        edges = [one.start + length * number // count for number in range(count + 1)]
        found += [one._replace(start=start, end=end) for start, end in pairwise(edges)]
    return found


def sample_start(one: QueueRange) -> int:
    """The offset from which on up to ``SIZE_SAMPLE_MESSAGES`` messages represent a slice: they are in its middle."""
    return one.start + max(0, one.end - one.start - SIZE_SAMPLE_MESSAGES) // 2


def slice_bytes(sliced: Sequence[QueueRange], samples: Sequence[tuple[int, int]]) -> list[int] | None:
    """Estimated bytes of each slice, from (messages, their bytes) of its sample. A slice without a sample has the mean of all; None if
    none has one.
    """
    messages = sum(count for count, _ in samples)
    if not messages:
        return None
    mean = sum(size for _, size in samples) / messages
    return [
        round((one.end - one.start) * (size / count if count else mean))
        for one, (count, size) in zip(sliced, samples, strict=True)
    ]


def task_count(messages: int, size: int | None, asked: int | None) -> int:
    """Number of tasks, from 1 to ``messages``: one for each ``BYTES_PER_TASK``, at least ``asked``.

    If ``asked`` is None it is a multiple of the driver's cores, and fewer than these only for little work.

    Args:
        messages: number of messages.
        size: their bytes; None if unknown.
        asked: option ``minPartitions``.
    """
    size = messages * MESSAGE_BYTES_ASSUMED if size is None else size
    needed = -(-size // BYTES_PER_TASK)
    if asked is None:
        cores = os.cpu_count() or 1
        worthwhile = max(messages // MESSAGES_PER_TASK_MIN, size // BYTES_PER_TASK_MIN)
        needed = min(worthwhile, -(-needed // cores) * cores)
    return max(1, min(max(needed, asked or 1), messages))


def pack(
    store: str,
    ranges: Iterable[QueueRange],
    tasks: int,
    sizes: Sequence[int] | None = None,
    stores: Mapping[str, str] | None = None,
) -> list[Ranges]:
    """Split ``ranges`` into ``tasks`` partitions in order; a range may be split. Empty if there are no messages.

    Partitions have about equal bytes if ``sizes`` are given, the bytes of each range; otherwise equal numbers of messages. Each has at
    least one message, so ``tasks`` must not exceed the number of messages.
    """
    ranges = list(ranges)
    lengths = np.array([one.end - one.start for one in ranges], dtype=np.int64)
    # Every message counts at least 1 byte, so that offsets increase with bytes.
    weights = lengths if sizes is None else np.maximum(lengths, np.array(sizes, dtype=np.int64))
    messages_before = np.concatenate(([0], np.cumsum(lengths)))
    bytes_before = np.concatenate(([0], np.cumsum(weights)))
    total = int(messages_before[-1])
    if not total:
        return []
    goals = np.arange(1, tasks) * (float(bytes_before[-1]) / tasks)
    wanted = np.rint(np.interp(goals, bytes_before, messages_before)).astype(np.int64).tolist()
    cuts = [0]
    for number, cut in enumerate(wanted, 1):
        cuts.append(min(max(cut, cuts[-1] + 1), total - (tasks - number)))
    packed: list[list[QueueRange]] = [[] for _ in range(tasks)]
    task = 0
    cuts.append(total)
    for one, before in zip(ranges, messages_before.tolist(), strict=False):
        start = one.start
        while start < one.end:
            end = min(one.end, one.start + cuts[task + 1] - before)
            _append(packed[task], one._replace(start=start, end=end))
            start = end
            if before + end - one.start == cuts[task + 1]:
                task += 1
    return [Ranges(store, tuple(one), stores or {}) for one in packed]


def _append(ranges: list[QueueRange], one: QueueRange) -> None:
    """Append, or lengthen the last range if ``one`` continues it."""
    if ranges and ranges[-1]._replace(start=one.start, end=one.end) == one and ranges[-1].end == one.start:
        ranges[-1] = ranges[-1]._replace(end=one.end)
    else:
        ranges.append(one)


def split_larger(packed: Iterable[Ranges], messages_max: int) -> list[Ranges]:
    """``packed``, with each partition of more than ``messages_max`` messages split into equal parts."""
    split: list[Ranges] = []
    for one in packed:
        messages = sum(part.end - part.start for part in one.ranges)
        tasks = -(-messages // messages_max)
        split += [one] if tasks <= 1 else pack(one.store, one.ranges, tasks, stores=one.stores)
    return split
