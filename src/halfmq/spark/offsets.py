"""The stream offset in Spark's checkpoint, and the snapshot: the bounds of all queues at one log position.

The offset is the same for both readers, so a query can switch between them with its checkpoint:

    {"v":1,"store":"<32 hex digits>","epoch":3,"position":4711,"queues":{"orders":{"0":5,"1":7}},"topics":{"orders":1}}

``queues`` holds the next offset of each queue, at log position ``position``. ``store``, ``epoch`` and ``topics`` (ids) detect
another store, an older copy of the store, or a topic that was deleted and created again. Spark compares offsets as text, so the
order of keys is fixed.

The name of a queue is its number. In a cluster of Apache RocketMQ several brokers have a queue 0, so there it is
``broker:number``, ``store`` is ``rocketmq:CLUSTER``, and ``position`` is -1, since the brokers share no log.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from halfmq.errors import UsageError

OFFSET_VERSION: Final = 1
#: ``position`` of a RocketMQ cluster.
NO_POSITION: Final = -1
#: Prefix of ``store`` for a RocketMQ cluster.
ROCKETMQ_STORE: Final = "rocketmq:"

#: (topic, queue name).
QueueName = tuple[str, str]


class StreamOffset(NamedTuple):
    """Next offsets of all subscribed queues. ``queues``: (topic, queue name) -> offset; ``topics``: name -> id."""

    store: str
    epoch: int
    position: int
    queues: dict[QueueName, int]
    topics: dict[str, int]


class QueueBoundsSnapshot(NamedTuple):
    """A consistent snapshot of the subscribed queues: (first offset, end offset) of each at log position ``position``.

    Contains only topics that exist. The end offset is one past the last message.
    """

    store: str
    epoch: int
    position: int
    queues: dict[QueueName, tuple[int, int]]
    topics: dict[str, int]


def queue_order(queue: QueueName) -> tuple[str, str, int]:
    """Sort key of a queue: topic, broker, number."""
    topic, name = queue
    broker, _, number = name.rpartition(":")
    return topic, broker, int(number)


def queue_number(name: str) -> int:
    """The number in a queue name."""
    return int(name.rpartition(":")[2])


def to_json(offset: StreamOffset) -> dict[str, Any]:
    """The JSON document that Spark stores; equal offsets give equal text."""
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
    """Inverse of ``to_json``.

    Raises:
        UsageError: not an offset of this source, or of a later version.
    """
    if value.get("v") != OFFSET_VERSION:
        raise UsageError(
            f"offset version {value.get('v')!r} in the checkpoint; this version of halfmq supports {OFFSET_VERSION}",
            hint="the checkpoint belongs to another source or to a later halfmq",
        )
    try:
        queues = {(topic, name): int(at) for topic, named in value["queues"].items() for name, at in named.items()}
        topics = {topic: int(number) for topic, number in value["topics"].items()}
        return StreamOffset(str(value["store"]), int(value["epoch"]), int(value["position"]), queues, topics)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the offset in the checkpoint cannot be read: {error!r}") from error


def ends_of(snapshot: QueueBoundsSnapshot) -> StreamOffset:
    """The offset after all messages of the snapshot."""
    return StreamOffset(
        snapshot.store,
        snapshot.epoch,
        snapshot.position,
        {name: end for name, (_, end) in snapshot.queues.items()},
        snapshot.topics,
    )
