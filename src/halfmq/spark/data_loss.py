"""Detects messages that a query should read next but that no longer exist, and names them. The readers report damage likewise.

With ``failOnDataLoss`` (the default) the query fails with the text; otherwise the text is a warning, and the query continues
with the remaining messages. Pure functions.

A store that ends before the offset of the query may belong to a broker that is starting (after a power loss it rebuilds its
indexes), so the caller waits for ``brokerTimeout`` before it reports a loss; see ``is_regressed``.

A broker of a RocketMQ cluster that is away has lost nothing: its queues keep their offsets; see ``with_away``.
"""

from collections.abc import Callable
from typing import NamedTuple

from halfmq.errors import DataLost
from halfmq.spark.offsets import ROCKETMQ_STORE, QueueBoundsSnapshot, QueueName, StreamOffset, queue_broker, queue_order


class Resumed(NamedTuple):
    """The next offset in each queue of the snapshot, and sentences that name what is missing before it."""

    starts: dict[QueueName, int]
    losses: tuple[str, ...]


def is_regressed(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> bool:
    """Whether the same store now ends before ``offset``. The caller may wait and try again."""
    if not _is_same_store(offset, snapshot):
        return False
    if snapshot.epoch < offset.epoch or snapshot.position < offset.position:
        return True
    for queue, at in offset.queues.items():
        if snapshot.topics.get(queue[0]) == offset.topics.get(queue[0]) and at > snapshot.queues.get(queue, (0, 0))[1]:
            return True
    return False


def away_brokers(offset: StreamOffset | None, snapshot: QueueBoundsSnapshot) -> dict[str, str]:
    """Brokers whose queues the snapshot does not show, with the reason of each: those that did not respond, and those of ``offset``
    that are not registered.
    """
    found = {name: why for name, why in snapshot.brokers.items() if why}
    if snapshot.brokers and offset is not None and _is_same_store(offset, snapshot):
        for name in {queue_broker(name) for _, name in offset.queues} - snapshot.brokers.keys():
            found[name] = "it is not registered with the name server"
    return found


def with_away(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> QueueBoundsSnapshot:
    """``snapshot`` with the queues of ``offset`` whose brokers are away. They end where the query is: nothing is known to be lost, and
    nothing can be read. Without them they would disappear from the offset, and be read again from their first message later.
    """
    away = away_brokers(offset, snapshot)
    kept = {queue: (0, at) for queue, at in offset.queues.items() if queue_broker(queue[1]) in away}
    if not kept:
        return snapshot
    topics = {topic: offset.topics.get(topic, 0) for topic, _ in kept}
    store = ROCKETMQ_STORE + ",".join(sorted(_clusters(snapshot.store) | _clusters(offset.store)))
    return snapshot._replace(store=store, queues={**snapshot.queues, **kept}, topics={**topics, **snapshot.topics})


def is_elsewhere(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> bool:
    """Whether ``snapshot`` is of another store that has none of the topics: the broker of the query may be away, and another one answer
    in its place, so nothing is known to be lost.
    """
    return bool(offset.queues) and not snapshot.topics and not _is_same_store(offset, snapshot)


def elsewhere(wanted: str, store: str, topics: str) -> str:
    """The reason to wait for store ``wanted``, if only ``store`` (empty: several) responds, and has none of ``topics``, which
    ``Subscription.in_words`` describes.
    """
    there = f"there is only store {store}" if store else "there are only brokers"
    return f"store {wanted} is not registered with the name server; {there} without {topics}"


def _is_same_store(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> bool:
    """Whether queue offsets of ``offset`` have the same meaning in ``snapshot``.

    The topics of a query may be on several RocketMQ clusters of one name server, and a snapshot shows those whose brokers are there. They
    are others than those of the offset only if a broker of the same name belongs to another cluster.
    """
    if snapshot.store == offset.store:
        return True
    if not (snapshot.store.startswith(ROCKETMQ_STORE) and offset.store.startswith(ROCKETMQ_STORE)):
        return False
    brokers = {queue_broker(name) for _, name in offset.queues}
    return bool(_clusters(snapshot.store) & _clusters(offset.store)) or brokers.isdisjoint(snapshot.brokers)


def _clusters(store: str) -> set[str]:
    return set(store.removeprefix(ROCKETMQ_STORE).split(","))


def resume(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> Resumed:
    """Where a reader at ``offset`` continues in ``snapshot``. New queues start at their first offset; messages that retention has
    already removed from them count as lost, as in Spark's Kafka source. An offset without queues fits every store, since nothing was
    read.

    ``offset`` must contain subscribed topics only; see ``restricted``.
    """
    firsts = {queue: first for queue, (first, _) in snapshot.queues.items()}
    same = _is_same_store(offset, snapshot)
    if not same and offset.queues:
        return Resumed(
            firsts, (f"this is store {snapshot.store or 'unknown'}, the query has read store {offset.store}",)
        )
    losses = []
    if same and (snapshot.epoch < offset.epoch or snapshot.position < offset.position):
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


def restricted(offset: StreamOffset, is_subscribed: Callable[[str], bool]) -> StreamOffset:
    """``offset`` without topics that are no longer subscribed."""
    return offset._replace(
        queues={queue: at for queue, at in offset.queues.items() if is_subscribed(queue[0])},
        topics={topic: number for topic, number in offset.topics.items() if is_subscribed(topic)},
    )


def lost(losses: tuple[str, ...]) -> DataLost:
    """The exception for ``losses``."""
    return DataLost(
        "messages that the query should read are missing or damaged: " + "; ".join(losses),
        hint="failOnDataLoss=false continues with the remaining messages; increase the retention to keep messages longer",
    )
