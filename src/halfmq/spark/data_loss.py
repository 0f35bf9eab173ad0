"""Detects messages that a query should read next but that no longer exist, and names them.

With ``failOnDataLoss`` (the default) the query fails with the text; otherwise the text is a warning, and the query continues
with the remaining messages. Pure functions.

A store that ends before the offset of the query may belong to a broker that is starting (after a power loss it rebuilds its
indexes), so the caller waits for ``brokerTimeout`` before it reports a loss; see ``is_regressed``.
"""

from typing import NamedTuple

from halfmq.errors import DataLost
from halfmq.spark.offsets import QueueBoundsSnapshot, QueueName, StreamOffset, queue_order


class Resumed(NamedTuple):
    """The next offset in each queue of the snapshot, and sentences that name what is missing before it."""

    starts: dict[QueueName, int]
    losses: tuple[str, ...]


def is_regressed(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> bool:
    """Whether the same store now ends before ``offset``. The caller may wait and try again."""
    if snapshot.store != offset.store:
        return False
    if snapshot.epoch < offset.epoch or snapshot.position < offset.position:
        return True
    for queue, at in offset.queues.items():
        if snapshot.topics.get(queue[0]) == offset.topics.get(queue[0]) and at > snapshot.queues.get(queue, (0, 0))[1]:
            return True
    return False


def resume(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> Resumed:
    """Where a reader at ``offset`` continues in ``snapshot``. New queues start at their first offset; messages that retention has
    already removed from them count as lost, as in Spark's Kafka source.

    ``offset`` must contain subscribed topics only; see ``restricted``.
    """
    firsts = {queue: first for queue, (first, _) in snapshot.queues.items()}
    if snapshot.store != offset.store:
        return Resumed(
            firsts, (f"this is store {snapshot.store or 'unknown'}, the query has read store {offset.store}",)
        )
    losses = []
    if snapshot.epoch < offset.epoch or snapshot.position < offset.position:
        losses.append(
            f"the store is an older copy: it ends at epoch {snapshot.epoch}, position {snapshot.position}, "
            f"the query has read epoch {offset.epoch}, position {offset.position}"
        )
    starts = dict(firsts)
    for queue in sorted(offset.queues, key=queue_order):
        at = offset.queues[queue]
        start, loss = _resume_queue(queue, at, offset, snapshot)
        if start is not None:
            starts[queue] = start
        if loss:
            losses.append(loss)
    losses += [
        f"messages 0 to {firsts[topic, name] - 1} of queue {name} of topic {topic}, which is new to the query, "
        "are past retention"
        for topic, name in sorted(snapshot.queues.keys() - offset.queues.keys(), key=queue_order)
        if firsts[topic, name]
    ]
    return Resumed(starts, tuple(losses))


def _resume_queue(
    queue: QueueName, at: int, offset: StreamOffset, snapshot: QueueBoundsSnapshot
) -> tuple[int | None, str]:
    """(next offset, or None if the queue does not exist; what is lost, or "")."""
    topic, name = queue
    if topic not in snapshot.topics:
        return None, f"topic {topic} no longer exists" if at > 0 else ""
    if snapshot.topics[topic] != offset.topics.get(topic, snapshot.topics[topic]):
        first = snapshot.queues[queue][0] if queue in snapshot.queues else None
        return first, f"topic {topic} was deleted and created again; queue {name} starts at {first}"
    if queue not in snapshot.queues:
        return None, f"queue {name} of topic {topic} no longer exists"
    first, end = snapshot.queues[queue]
    if at < first:
        return first, f"messages {at} to {first - 1} of queue {name} of topic {topic} are past retention"
    if at > end:
        return end, f"queue {name} of topic {topic} ends at {end}, but the query has read up to {at}"
    return at, ""


def restricted(offset: StreamOffset, topics: tuple[str, ...]) -> StreamOffset:
    """``offset`` without topics that are no longer subscribed."""
    return offset._replace(
        queues={queue: at for queue, at in offset.queues.items() if queue[0] in topics},
        topics={topic: number for topic, number in offset.topics.items() if topic in topics},
    )


def lost(losses: tuple[str, ...]) -> DataLost:
    """The exception for ``losses``."""
    return DataLost(
        "messages that the query should read no longer exist: " + "; ".join(losses),
        hint="failOnDataLoss=false continues with the remaining messages; increase the retention to keep messages longer",
    )
