"""Offsets and snapshots of several halfmq brokers, as those of one broker each, and back. Pure functions.

Queue offsets, positions and ids of topics have a meaning within one store, so all checks (``data_loss``) compare an offset of one
broker with a snapshot of one broker. A broker is recognised by its store, whatever its name was when the offset was written: an
offset of one broker contains no name.
"""

from collections.abc import Mapping
from typing import TypeVar

from halfmq.spark.offsets import (
    NO_POSITION,
    QueueBoundsSnapshot,
    QueueName,
    StoreState,
    StreamOffset,
    queue_broker,
    queue_number,
)

T = TypeVar("T")


def merged_snapshot(parts: Mapping[str, QueueBoundsSnapshot], away: Mapping[str, str]) -> QueueBoundsSnapshot:
    """The snapshot of several brokers. ``parts``: of each that responded; ``away``: why others did not, which may have topics."""
    return QueueBoundsSnapshot(
        "",
        0,
        NO_POSITION,
        _named({name: part.queues for name, part in parts.items()}),
        _topics(parts),
        {**dict.fromkeys(parts, ""), **away},
        _stores(parts),
    )


def part_of_snapshot(snapshot: QueueBoundsSnapshot, broker: str) -> QueueBoundsSnapshot:
    """The snapshot of one of several brokers."""
    return QueueBoundsSnapshot(*_part(snapshot.stores[broker], snapshot.queues, broker))


def parts_of_offset(offset: StreamOffset) -> dict[str, StreamOffset]:
    """The offset of each of several brokers, by name; of one broker, with the name ""."""
    if not offset.stores:
        return {"": offset}
    return {name: StreamOffset(*_part(state, offset.queues, name)) for name, state in offset.stores.items()}


def offset_like(offset: StreamOffset, snapshot: QueueBoundsSnapshot) -> StreamOffset:
    """``offset`` with the names that its brokers have in ``snapshot``, if that is of several brokers. An offset of one broker
    stays as it is if the snapshot does not have its store.
    """
    if not snapshot.stores:
        return offset
    if not offset.stores and not offset.queues:
        return StreamOffset("", 0, NO_POSITION, {}, {})
    names = {state.store: name for name, state in snapshot.stores.items()}
    parts = parts_of_offset(offset)
    named = {names.get(part.store, name): part for name, part in parts.items()}
    if "" in named or len(named) < len(parts):
        return offset
    return StreamOffset(
        "",
        0,
        NO_POSITION,
        _named({name: part.queues for name, part in named.items()}),
        _topics(named),
        _stores(named),
    )


def snapshot_like(snapshot: QueueBoundsSnapshot, newer: QueueBoundsSnapshot) -> QueueBoundsSnapshot:
    """``snapshot`` of one broker with the names of ``newer``, if that is of several brokers, among them this one."""
    name = next((name for name, state in newer.stores.items() if state.store == snapshot.store), "")
    return merged_snapshot({name: snapshot}, {}) if name else snapshot


def _named(queues: Mapping[str, Mapping[QueueName, T]]) -> dict[QueueName, T]:
    return {
        (topic, f"{broker}:{number}"): value
        for broker, of_broker in queues.items()
        for (topic, number), value in of_broker.items()
    }


def _part(
    state: StoreState, queues: Mapping[QueueName, T], broker: str
) -> tuple[str, int, int, dict[QueueName, T], dict[str, int]]:
    own = {
        (topic, str(queue_number(name))): value
        for (topic, name), value in queues.items()
        if queue_broker(name) == broker
    }
    return state.store, state.epoch, state.position, own, state.topics


def _topics(parts: Mapping[str, StreamOffset] | Mapping[str, QueueBoundsSnapshot]) -> dict[str, int]:
    return dict.fromkeys((topic for part in parts.values() for topic in part.topics), 0)


def _stores(parts: Mapping[str, StreamOffset] | Mapping[str, QueueBoundsSnapshot]) -> dict[str, StoreState]:
    return {name: StoreState(part.store, part.epoch, part.position, part.topics) for name, part in parts.items()}
