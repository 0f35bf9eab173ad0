"""Where a reader stands: the stream offset that Spark keeps, and the cut that a store or broker answers with.

Stream offset, the same for both paths, so that a query may change from one to the other on its checkpoint:

    {"v":1,"store":"<32 hex digits>","epoch":3,"position":4711,"queues":{"orders":{"0":5,"1":7}},"topics":{"orders":1}}

``queues`` is what counts: the next offset of each queue. ``position`` is the log position at which all of them were
cut; ``store``, ``epoch`` and ``topics`` (ids) are there to notice another store, an older copy of this one, or a topic
that was deleted and made again. Spark compares offsets as text, so the order of keys is fixed.

A queue is named by its number. In a stock RocketMQ cluster several brokers have a queue 0, so there the name is
``broker:number``, ``store`` is ``rocketmq:CLUSTER``, and ``position`` is -1: such a cluster has no position at which all
queues could be cut.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from halfmq.errors import UsageError

OFFSET_VERSION: Final = 1
#: ``position`` where there is none (a stock cluster).
NO_POSITION: Final = -1
#: How ``store`` begins where there is no store of ours.
STOCK_STORE: Final = "rocketmq:"

#: (topic, queue name).
QueueName = tuple[str, str]


class StreamOffset(NamedTuple):
    """One point in all subscribed queues. ``queues``: (topic, queue name) -> next offset; ``topics``: name -> id."""

    store: str
    epoch: int
    position: int
    queues: dict[QueueName, int]
    topics: dict[str, int]


class Cut(NamedTuple):
    """What may be read now: each queue's (first offset kept, offset behind the last one), all at one position.

    ``queues`` and ``topics`` hold only topics that exist.
    """

    store: str
    epoch: int
    position: int
    queues: dict[QueueName, tuple[int, int]]
    topics: dict[str, int]


def queue_order(queue: QueueName) -> tuple[str, str, int]:
    """Sort key: topic, broker, number."""
    topic, name = queue
    broker, _, number = name.rpartition(":")
    return topic, broker, int(number)


def queue_number(name: str) -> int:
    return int(name.rpartition(":")[2])


def to_json(offset: StreamOffset) -> dict[str, Any]:
    """The dict that Spark stores; two equal offsets give the same text."""
    queues: dict[str, dict[str, int]] = {topic: {} for topic in sorted(offset.topics)}
    for topic, name in sorted(offset.queues, key=queue_order):
        queues.setdefault(topic, {})[name] = offset.queues[topic, name]
    return {
        "v": OFFSET_VERSION,
        "store": offset.store,
        "epoch": offset.epoch,
        "position": offset.position,
        "queues": queues,
        "topics": {topic: offset.topics[topic] for topic in sorted(offset.topics)},
    }


def from_json(value: Mapping[str, Any]) -> StreamOffset:
    """What ``to_json`` made, from this or an earlier run.

    Raises:
        UsageError: not an offset of this source, or one of a later version.
    """
    if value.get("v") != OFFSET_VERSION:
        raise UsageError(
            f"offset version {value.get('v')!r} in the checkpoint, this source knows {OFFSET_VERSION}",
            hint="the checkpoint belongs to another source or to a later halfmq",
        )
    try:
        queues = {(topic, name): int(at) for topic, named in value["queues"].items() for name, at in named.items()}
        topics = {topic: int(number) for topic, number in value["topics"].items()}
        return StreamOffset(str(value["store"]), int(value["epoch"]), int(value["position"]), queues, topics)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the offset in the checkpoint cannot be read: {error!r}") from error


def ends_of(cut: Cut) -> StreamOffset:
    """Behind everything that the cut shows."""
    return StreamOffset(
        cut.store, cut.epoch, cut.position, {name: end for name, (_, end) in cut.queues.items()}, cut.topics
    )
