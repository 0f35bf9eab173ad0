"""Detects messages that a query should read next but that no longer exist, and names them. The readers report damage likewise.

With ``failOnDataLoss`` (the default) the query fails with the text; otherwise the text is a warning, and the query continues
with the remaining messages. Pure functions.

A store that ends before the offset of the query may belong to a broker that is starting (after a power loss it rebuilds its
indexes), so the caller waits for ``brokerTimeout`` before it reports a loss; see ``is_regressed``.

One of several brokers that is away has lost nothing: its queues keep their offsets; see ``with_unreachable``. Of several halfmq brokers
each is checked by itself, and named.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from halfmq.errors import DataLost
from halfmq.spark.plan.offsets import (
    NO_POSITION,
    ROCKETMQ_STORE,
    QueueBoundsSnapshot,
    QueueName,
    StoreState,
    StreamOffset,
    is_rocketmq,
    offset_like,
    part_of_snapshot,
    parts_of_offset,
    queue_broker,
    queue_order,
)


class Resumed(NamedTuple):
    """The next offset in each queue of the snapshot, and sentences that name what is missing before it."""

    starts: dict[QueueName, int]
    losses: tuple[str, ...]


def is_regressed(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> bool:
    """Whether the same store, or one of several, now ends before ``offset``. The caller may wait and try again."""
    if snapshot.stores:
        parts = parts_of_offset(offset_like(offset, snapshot))
        return any(
            is_regressed(part, part_of_snapshot(snapshot, name))
            for name, part in parts.items()
            if name in snapshot.stores
        )
    if not _is_same_store(offset, snapshot):
        return False
    if snapshot.epoch < offset.epoch or snapshot.position < offset.position:
        return True
    for queue, at in offset.queues.items():
        if snapshot.topics.get(queue[0]) == offset.topics.get(queue[0]) and at > snapshot.queues.get(queue, (0, 0))[1]:
            return True
    return False


def unreachable_brokers(offset: StreamOffset | None, snapshot: QueueBoundsSnapshot) -> dict[str, str]:
    """Brokers whose queues the snapshot does not show, with the reason of each: those that did not respond, and those of ``offset``
    that are not registered. ``offset`` must have the names of the snapshot; see ``offset_like``.
    """
    found = {name: why for name, why in snapshot.brokers.items() if why}
    known: set[str] = set()
    if offset is not None and offset.stores:
        known = set() if snapshot.store else set(offset.stores)
    elif offset is not None and snapshot.brokers and _is_same_store(offset, snapshot):
        known = {queue_broker(name) for _, name in offset.queues}
    for name in known - snapshot.brokers.keys():
        found[name] = "it is not registered with the name server"
    return found


def with_unreachable(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> QueueBoundsSnapshot:
    """``snapshot`` with the queues of ``offset`` whose brokers are away. They end where the query is: nothing is known to be lost, and
    nothing can be read. Without them they would disappear from the offset, and be read again from their first message later.
    """
    away = unreachable_brokers(offset, snapshot)
    kept = {queue: (0, at) for queue, at in offset.queues.items() if queue_broker(queue[1]) in away}
    if not kept or (offset.stores and snapshot.store):
        return snapshot
    topics = {topic: offset.topics.get(topic, 0) for topic, _ in kept}
    store = snapshot.store
    if not offset.stores:
        store = ROCKETMQ_STORE + ",".join(sorted(_clusters(snapshot.store) | _clusters(offset.store)))
    return snapshot._replace(
        store=store,
        queues={**snapshot.queues, **kept},
        topics={**topics, **snapshot.topics},
        stores={**{name: state for name, state in offset.stores.items() if name in away}, **snapshot.stores},
    )


def answers_for_another_store(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> bool:
    """Whether ``snapshot`` is of another store that has none of the topics: the broker of the query may be away, and another one answer
    in its place, so nothing is known to be lost. The same holds if it is of several brokers, and none has the store.
    """
    if not offset.queues or offset.stores:
        return False
    if snapshot.stores and not is_rocketmq(offset.store):
        return all(state.store != offset.store for state in snapshot.stores.values())
    return not snapshot.topics and not _is_same_store(offset, snapshot)


def wait_reason(wanted: str, snapshot: QueueBoundsSnapshot, topics: str) -> str:
    """The reason to wait for store ``wanted``; see ``answers_for_another_store``. ``topics``: what the query reads,
    ``Subscription.in_words``.
    """
    if snapshot.stores:
        away = "".join(f"; broker {name} is away: {why}" for name, why in sorted(snapshot.brokers.items()) if why)
        return (
            f"store {wanted} is not registered with the name server; there are {_in_words(snapshot.stores)}{away}; the query has read "
            f"store {wanted} alone: start its broker, and let the name server list it; if it is lost for good, only a new checkpoint "
            "reads the others"
        )
    there = f"there is only store {snapshot.store}" if snapshot.store else "there are only brokers"
    return f"store {wanted} is not registered with the name server; {there} without {topics}"


def _in_words(stores: Mapping[str, StoreState]) -> str:
    return ", ".join(f"broker {name} with store {stores[name].store}" for name in sorted(stores))


def _is_same_store(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> bool:
    """Whether queue offsets of ``offset`` have the same meaning in ``snapshot``.

    The topics of a query may be on several RocketMQ clusters of one name server, and a snapshot shows those whose brokers are there. They
    are others than those of the offset only if a broker of the same name belongs to another cluster.
    """
    if snapshot.store == offset.store:
        return True
    if not (is_rocketmq(snapshot.store) and is_rocketmq(offset.store)):
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
    if snapshot.stores:
        offset = offset_like(offset, snapshot)
        if offset.stores or not offset.queues:
            return _resume_several(offset, snapshot)
    firsts = {queue: first for queue, (first, _) in snapshot.queues.items()}
    same = not offset.stores and _is_same_store(offset, snapshot)
    if not same and offset.queues:
        there = _in_words(snapshot.stores) or f"store {snapshot.store or 'unknown'}"
        read = _in_words(offset.stores) or f"store {offset.store}"
        remedy = ""
        if not (offset.stores or snapshot.stores or is_rocketmq(offset.store) or is_rocketmq(snapshot.store)):
            # An offset of one broker has no name, so another broker in its place looks like one that lost its data directory.
            remedy = (
                f": if {read} exists, start its broker, and let the name server list it; if it is lost for good, "
                f"failOnDataLoss=false reads {there} from its first messages"
            )
        return Resumed(firsts, (f"this is {there}, the query has read {read}{remedy}",))
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
    # What is said of a topic is said once, not for each of its queues.
    losses = list(dict.fromkeys(losses))
    losses += [
        f"messages 0 to {firsts[topic, name] - 1} of queue {name} of topic {topic}, which is new to the query, "
        "are past retention"
        for topic, name in sorted(snapshot.queues.keys() - offset.queues.keys(), key=queue_order)
        if firsts[topic, name]
    ]
    return Resumed(starts, tuple(losses))


def _resume_several(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> Resumed:
    """Each broker by itself. One that is new to the query is read like a new topic."""
    starts: dict[QueueName, int] = {}
    losses: list[str] = []
    parts = parts_of_offset(offset) if offset.stores else {}
    for name in sorted(parts.keys() | snapshot.stores.keys()):
        if name in snapshot.stores:
            there = part_of_snapshot(snapshot, name)
        else:  # nothing of it is subscribed or exists any more
            there = QueueBoundsSnapshot(parts[name].store, parts[name].epoch, parts[name].position, {}, {})
        part = parts.get(name, StreamOffset(there.store, 0, NO_POSITION, {}, {}))
        resumed = resume(part, there)
        starts |= {(topic, f"{name}:{number}"): at for (topic, number), at in resumed.starts.items()}
        losses += [f"broker {name}: {loss}" for loss in resumed.losses]
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
        return first, f"topic {topic} was deleted and created again" + (
            f"; queue {name} starts at {first}" if first else ""
        )
    if queue not in snapshot.queues:
        return None, f"queue {name} of topic {topic} no longer exists"
    first, end = snapshot.queues[queue]
    if at < first:
        return first, f"messages {at} to {first - 1} of queue {name} of topic {topic} are past retention"
    if at > end:
        return end, f"queue {name} of topic {topic} ends at {end}, but the query has read up to {at}"
    return at, ""


def restricted(offset: StreamOffset, is_subscribed: Callable[[str], bool]) -> StreamOffset:
    """``offset`` without topics that are no longer subscribed, and without brokers that have no others."""

    def subscribed(topics: Mapping[str, int]) -> dict[str, int]:
        return {topic: number for topic, number in topics.items() if is_subscribed(topic)}

    stores = {name: state._replace(topics=subscribed(state.topics)) for name, state in offset.stores.items()}
    return offset._replace(
        queues={queue: at for queue, at in offset.queues.items() if is_subscribed(queue[0])},
        topics=subscribed(offset.topics),
        stores={name: state for name, state in stores.items() if state.topics},
    )


def lost(losses: tuple[str, ...]) -> DataLost:
    """The exception for ``losses``."""
    return DataLost(
        "messages that the query should read are missing or damaged: " + "; ".join(losses),
        hint="failOnDataLoss=false continues with the remaining messages; increase the retention to keep messages longer",
    )
