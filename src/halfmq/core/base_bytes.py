"""What a base takes, counted as it changes: ``DerivedState.base_bytes``.

Every function that changes topics, consumer groups, limits of producer groups or logged offsets counts here what it adds
and takes away, so that a new one of them costs the same however many there are. ``recount`` counts anew, for
``transaction.invariants``. An upper bound of the bytes: a number takes as many as it may, and a name its length.

Offsets that are still to be logged are not counted by themselves: the first one of a group in a queue is logged at once, so
each of them replaces one that is.
"""

from typing import Final, NamedTuple

from halfmq.core.state import State, Topic
from halfmq.model.settings import ProducerSettings

#: Bytes that one topic, queue, group, limits of a producer group or offset may take in a base, names not counted.
TOPIC_BYTES: Final = 48
QUEUE_BYTES: Final = 9
GROUP_BYTES: Final = 32
PRODUCER_BYTES: Final = 64
OFFSET_BYTES: Final = 18
#: What a base takes that holds none of them.
EMPTY_BYTES: Final = 128


def topic_bytes(topic: Topic) -> int:
    return TOPIC_BYTES + len(topic.name) + QUEUE_BYTES * len(topic.ends)


def group_bytes(name: str) -> int:
    """Of a consumer group's settings; as much again is the head of its offsets, if it has any."""
    return GROUP_BYTES + len(name)


def producer_bytes(settings: ProducerSettings | None) -> int:
    return 0 if settings is None else PRODUCER_BYTES + len(settings.name) + len(settings.set_by.encode())


def count_group(state: State, more: int) -> None:
    """Of its settings."""
    state.derived.base_bytes += more
    state.derived.groups_bytes += more


def keep_queues(state: State, topic: Topic, queues: int) -> None:
    """Have at least so many queues in the topic, and count those that are new."""
    before = len(topic.ends)
    topic.keep_queues(state.settings, queues)
    state.derived.base_bytes += QUEUE_BYTES * (len(topic.ends) - before)


def set_offset(state: State, group: str, key: tuple[int, int], offset: int) -> None:
    """The logged offset of the group in a queue."""
    offsets = state.offsets.get(group)
    if offsets is None:
        offsets = state.offsets[group] = {}
        state.derived.base_bytes += group_bytes(group)
    if key not in offsets:
        topic_id, _ = key
        state.derived.base_bytes += OFFSET_BYTES
        state.topics_by_id[topic_id].derived.groups[group] = None
    offsets[key] = offset


def drop_offset(state: State, group: str, key: tuple[int, int]) -> None:
    """Forget a logged offset, if there is one."""
    offsets = state.offsets.get(group)
    if offsets is None or offsets.pop(key, None) is None:
        return
    state.derived.base_bytes -= OFFSET_BYTES
    if not offsets:
        del state.offsets[group]
        state.derived.base_bytes -= group_bytes(group)


class Recount(NamedTuple):
    """What ``DerivedState.base_bytes`` and ``groups_bytes`` must be."""

    base: int
    groups: int


def recount(state: State) -> Recount:
    topics = sum(map(topic_bytes, state.topics_by_id.values()))
    groups = sum(map(group_bytes, state.groups))
    producers = sum(map(producer_bytes, state.producer_settings.values()))
    offsets = sum(group_bytes(group) + OFFSET_BYTES * len(offsets) for group, offsets in state.offsets.items())
    return Recount(EMPTY_BYTES + topics + groups + producers + offsets, groups)
