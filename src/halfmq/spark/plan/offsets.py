"""The stream offset in Spark's checkpoint, and the snapshot: the bounds of all queues at one log position.

The offset is the same for both readers, so a query can switch between them with its checkpoint:

    {"v":1,"store":"<32 hex digits>","epoch":3,"position":4711,"queues":{"orders":{"0":5,"1":7}},"topics":{"orders":1}}

``queues`` holds the next offset of each queue, at log position ``position``. ``store``, ``epoch`` and ``topics`` (ids) detect
another store, an older copy of the store, or a topic that was deleted and created again. Spark compares offsets as text, so the
order of keys is fixed.

The name of a queue is its number. Several brokers have a queue 0, so there it is ``broker:number``. Several halfmq brokers have one
position each, and the offset is

    {"v":2,"brokers":{"eu-1":{"store":"...","epoch":3,"position":4711,"topics":{"orders":1}}},"queues":{"orders":{"eu-1:0":5}}}

Spark keeps where a batch ends, and where the one before it ended. The first has none before it, so its end has ``from`` as well: the
queues where it begins, in the form of ``queues``.

In a cluster of Apache RocketMQ the form is the first one, ``store`` is ``rocketmq:CLUSTER[,CLUSTER...]``, and ``position`` is -1,
since its brokers tell none.

Queue offsets, positions and ids of topics have a meaning within one store, so all checks (``data_loss``) compare an offset of one broker
with a snapshot of one broker. A broker is recognised by its store, whatever its name was when the offset was written.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from halfmq.errors import UsageError

OFFSET_VERSION: Final = 1
#: Of an offset of several halfmq brokers.
SEVERAL_VERSION: Final = 2
#: ``position`` of a RocketMQ cluster, and of several halfmq brokers together.
NO_POSITION: Final = -1
#: Prefix of ``store`` for a RocketMQ cluster.
ROCKETMQ_STORE: Final = "rocketmq:"

#: (topic, queue name).
QueueName = tuple[str, str]


class StoreState(NamedTuple):
    """The store of one of several halfmq brokers. ``position``: in its log; ``topics``: name -> id."""

    store: str
    epoch: int
    position: int
    topics: dict[str, int]


class StreamOffset(NamedTuple):
    """Next offsets of all subscribed queues. ``queues``: (topic, queue name) -> offset; ``topics``: name -> id.

    ``stores``, of several halfmq brokers only: by broker. ``store`` is then empty, and the ids in ``topics`` are 0.

    ``begin``, of the end of the first batch only: where that begins.
    """

    store: str
    epoch: int
    position: int
    queues: dict[QueueName, int]
    topics: dict[str, int]
    stores: dict[str, StoreState] = {}  # noqa: RUF012 - never modified
    begin: dict[QueueName, int] | None = None


class QueueBoundsSnapshot(NamedTuple):
    """A consistent snapshot of the subscribed queues: (first offset, end offset) of each at log position ``position``.

    Contains only topics that exist. The end offset is one past the last message.

    ``brokers``, of several brokers only: "" for each registered broker that responded, otherwise why it did not. The queues
    of others are not in the snapshot, although they exist; see ``data_loss.with_unreachable``.

    ``stores``: see ``StreamOffset``. Each is consistent; a transaction is in one of them.
    """

    store: str
    epoch: int
    position: int
    queues: dict[QueueName, tuple[int, int]]
    topics: dict[str, int]
    brokers: dict[str, str] = {}  # noqa: RUF012 - never modified
    stores: dict[str, StoreState] = {}  # noqa: RUF012 - never modified

    def topic_id(self, queue: QueueName) -> int:
        """The id of the topic of a queue; 0 if unknown."""
        state = self.stores.get(queue_broker(queue[1]))
        return (self.topics if state is None else state.topics).get(queue[0], 0)


def is_rocketmq(store: str) -> bool:
    """Whether ``store`` is that of an offset or plan of Apache RocketMQ's brokers."""
    return store.startswith(ROCKETMQ_STORE)


def queue_order(queue: QueueName) -> tuple[str, str, int]:
    """Sort key of a queue: topic, broker, number."""
    topic, name = queue
    broker, _, number = name.rpartition(":")
    return topic, broker, int(number)


def queue_number(name: str) -> int:
    """The number in a queue name."""
    return int(name.rpartition(":")[2])


def queue_broker(name: str) -> str:
    """The broker in a queue name; empty for a query of one halfmq broker."""
    return name.rpartition(":")[0]


def to_json(offset: StreamOffset) -> dict[str, Any]:
    """The JSON document that Spark stores; equal offsets give equal text."""
    queues = _queues_to_json(offset.queues, offset.topics)
    begin = {} if offset.begin is None else {"from": _queues_to_json(offset.begin)}
    if offset.stores:
        return {
            "v": SEVERAL_VERSION,
            "brokers": {name: _state_to_json(offset.stores[name]) for name in sorted(offset.stores)},
            "queues": queues,
            **begin,
        }
    state = _state_to_json(StoreState(offset.store, offset.epoch, offset.position, offset.topics))
    topics = state.pop("topics")
    return {"v": OFFSET_VERSION, **state, "queues": queues, "topics": topics, **begin}


def _queues_to_json(queues: Mapping[QueueName, int], topics: Iterable[str] = ()) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {topic: {} for topic in sorted(topics)}
    for topic, name in sorted(queues, key=queue_order):
        found.setdefault(topic, {})[name] = queues[topic, name]
    return found


def _queues_of_json(value: Mapping[str, Mapping[str, int]]) -> dict[QueueName, int]:
    return {(topic, name): int(at) for topic, named in value.items() for name, at in named.items()}


def _state_to_json(state: StoreState) -> dict[str, Any]:
    return {**state._asdict(), "topics": {topic: state.topics[topic] for topic in sorted(state.topics)}}


def from_json(value: Mapping[str, Any]) -> StreamOffset:
    """Inverse of ``to_json``.

    Raises:
        UsageError: not an offset of this source, or of a later version.
    """
    version = value.get("v")
    if version not in (OFFSET_VERSION, SEVERAL_VERSION):
        raise UsageError(
            f"offset version {version!r} in the checkpoint; this version of halfmq supports {OFFSET_VERSION} and {SEVERAL_VERSION}",
            hint="the checkpoint belongs to another source or to a later halfmq",
        )
    try:
        queues = _queues_of_json(value["queues"])
        begin = _queues_of_json(value["from"]) if "from" in value else None
        if version == OFFSET_VERSION:
            state = _state_of_json(value)
            return StreamOffset(state.store, state.epoch, state.position, queues, state.topics, {}, begin)
        stores = {name: _state_of_json(state) for name, state in value["brokers"].items()}
        unnamed = {queue_broker(name) for _, name in queues} - stores.keys()
        if unnamed or not stores:
            raise ValueError(f"no store of {', '.join(sorted(unnamed)) or 'any broker'}")
        return StreamOffset("", 0, NO_POSITION, queues, dict.fromkeys(value["queues"], 0), stores, begin)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the offset in the checkpoint cannot be read: {error!r}") from error


def _state_of_json(value: Mapping[str, Any]) -> StoreState:
    topics = {topic: int(number) for topic, number in value["topics"].items()}
    return StoreState(str(value["store"]), int(value["epoch"]), int(value["position"]), topics)


def ends_of(snapshot: QueueBoundsSnapshot) -> StreamOffset:
    """The offset after all messages of the snapshot. Of several brokers it contains those that have topics."""
    return StreamOffset(
        snapshot.store,
        snapshot.epoch,
        snapshot.position,
        {name: end for name, (_, end) in snapshot.queues.items()},
        snapshot.topics,
        {name: state for name, state in snapshot.stores.items() if state.topics},
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
