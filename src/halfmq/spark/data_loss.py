"""When a point that a query stands at no longer fits what the store shows: what is lost, by name.

Never silent: with ``failOnDataLoss`` (the default) the query stops and the text says what is gone; without it the same
text is a warning and the query goes on with what is left. Pure.

A position or a queue that is *behind* the query may also be a broker that is just coming back (its derived files are
made again after a power cut), so the caller waits for ``brokerTimeout`` before it believes in a loss; see ``is_behind``.
"""

from typing import NamedTuple

from halfmq.errors import DataLost
from halfmq.spark.offsets import Cut, QueueName, StreamOffset, queue_order


class Resumed(NamedTuple):
    """Where to go on in each queue of the cut, and what was lost before that, in sentences."""

    starts: dict[QueueName, int]
    losses: tuple[str, ...]


def is_behind(offset: StreamOffset, cut: Cut) -> bool:
    """Whether the same store shows less than was read from it. Waiting may help."""
    if cut.store != offset.store:
        return False
    if cut.epoch < offset.epoch or cut.position < offset.position:
        return True
    for queue, at in offset.queues.items():
        if cut.topics.get(queue[0]) == offset.topics.get(queue[0]) and at > cut.queues.get(queue, (0, 0))[1]:
            return True
    return False


def resume(offset: StreamOffset, cut: Cut) -> Resumed:
    """Where a reader that stands at ``offset`` goes on in ``cut``. Queues that are new start at their first offset;
    what retention has already taken of them is lost too (Spark's Kafka source says so as well).

    Queues of topics that ``cut`` was not asked for must not be in ``offset``; see ``only``.
    """
    firsts = {queue: first for queue, (first, _) in cut.queues.items()}
    if cut.store != offset.store:
        return Resumed(firsts, (f"this is store {cut.store or 'unknown'}, the query has read store {offset.store}",))
    losses = []
    if cut.epoch < offset.epoch or cut.position < offset.position:
        losses.append(
            f"the store is an older copy: it ends at epoch {cut.epoch}, position {cut.position}, "
            f"the query has read epoch {offset.epoch}, position {offset.position}"
        )
    starts = dict(firsts)
    for queue in sorted(offset.queues, key=queue_order):
        at = offset.queues[queue]
        start, loss = _resume_queue(queue, at, offset, cut)
        if start is not None:
            starts[queue] = start
        if loss:
            losses.append(loss)
    losses += [
        f"messages 0 to {firsts[topic, name] - 1} of queue {name} of topic {topic}, which is new to the query, "
        "are past retention"
        for topic, name in sorted(cut.queues.keys() - offset.queues.keys(), key=queue_order)
        if firsts[topic, name]
    ]
    return Resumed(starts, tuple(losses))


def _resume_queue(queue: QueueName, at: int, offset: StreamOffset, cut: Cut) -> tuple[int | None, str]:
    """(where to go on, or None where the queue is gone; what was lost, or "")."""
    topic, name = queue
    if topic not in cut.topics:
        return None, f"topic {topic} is gone" if at > 0 else ""
    if cut.topics[topic] != offset.topics.get(topic, cut.topics[topic]):
        first = cut.queues[queue][0] if queue in cut.queues else None
        return first, f"topic {topic} was deleted and made again; queue {name} starts at {first}"
    if queue not in cut.queues:
        return None, f"queue {name} of topic {topic} is gone"
    first, end = cut.queues[queue]
    if at < first:
        return first, f"messages {at} to {first - 1} of queue {name} of topic {topic} are past retention"
    if at > end:
        return end, f"queue {name} of topic {topic} ends at {end}, the query has read to {at}"
    return at, ""


def only(offset: StreamOffset, topics: tuple[str, ...]) -> StreamOffset:
    """``offset`` without topics that are no longer subscribed."""
    return offset._replace(
        queues={queue: at for queue, at in offset.queues.items() if queue[0] in topics},
        topics={topic: number for topic, number in offset.topics.items() if topic in topics},
    )


def lost(losses: tuple[str, ...]) -> DataLost:
    return DataLost(
        "messages that the query should read are gone: " + "; ".join(losses),
        hint="failOnDataLoss=false goes on with what is left; a longer retention keeps messages longer",
    )
