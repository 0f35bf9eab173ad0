"""The size of a base, updated incrementally: ``DerivedState.base_bytes``.

Every function that changes topics, consumer groups, limits of producer groups or logged offsets updates it here, so that the cost
of a change does not depend on their number. ``recount`` computes it anew for ``transaction.invariants``. It is an upper bound:
numbers count at their maximum size, names at their length.

Offsets that wait to be logged do not count: the first offset of a group in a queue is logged at once, so each waiting one
replaces a logged one.
"""

from typing import Final, NamedTuple

from halfmq import limits
from halfmq.core.state import Comparison, CoordinatorKey, Query, State, TakenEpoch, Topic
from halfmq.model.query_batch import RUN_CHARS_MAX, STREAM_CHARS_MAX
from halfmq.model.settings import GroupSettings, ProducerSettings

#: Maximum size in a base of a topic, a queue, a group, limits of a producer group, an offset, without names.
TOPIC_BYTES: Final = 48
QUEUE_BYTES: Final = 9
GROUP_BYTES: Final = 32
PRODUCER_BYTES: Final = 64
OFFSET_BYTES: Final = 18
#: Of the labels of a topic, without the type of its messages.
LABEL_BYTES: Final = 3
#: Of the topics that a consumer group holds, without their names.
HOLD_BYTES: Final = 16
#: Of settings of a consumer group that are rarely changed (``schema.group_payload``), with an empty hold before them.
RARE_BYTES: Final = 16
#: Of a query with all its runs, without names and decisions; of one decision.
QUERY_BYTES: Final = 80 + (2 + RUN_CHARS_MAX) * (1 + limits.QUERY_RUNS_MAX)
DECISION_BYTES: Final = 36
#: Of a coordinator, without names. Space for the longest name of a client is reserved, so that it can always be taken over.
COORDINATOR_BYTES: Final = 32 + limits.EPOCH_TAKER_BYTES_MAX
#: Space for so many decisions of a query is reserved from its first record on, so a decision always fits: where there is no space for more,
#: the earlier ones are forgotten (``transaction.query_limits``).
DECISIONS_RESERVED: Final = 2
#: Of a comparison, with space for who reports the other outcome.
COMPARISON_BYTES: Final = 64 + 4 * limits.COMPARISON_SOURCE_CHARS_MAX
#: Size of a base without any of them.
EMPTY_BYTES: Final = 128


def topic_bytes(topic: Topic) -> int:
    return TOPIC_BYTES + len(topic.name) + QUEUE_BYTES * len(topic.ends) + label_bytes(topic.message_type)


def label_bytes(message_type: str) -> int:
    """Size of the labels of a topic. ``TOPIC_BYTES`` includes one without a type."""
    return LABEL_BYTES + len(message_type) if message_type else 0


def group_bytes(name: str) -> int:
    """Size of a consumer group's settings. The head of its offsets, if it has any, takes the same again."""
    return GROUP_BYTES + len(name)


def more_group_bytes(group: GroupSettings | None) -> int:
    """Size of what most groups do not have, in addition to ``group_bytes``: what the group holds, and its rare settings."""
    if group is None:
        return 0
    held = HOLD_BYTES + sum([2 + len(topic) for topic in group.hold_topics]) if group.hold_topics else 0
    return held + (0 if group.broadcast_enabled and group.from_min_enabled and group.notifies_members else RARE_BYTES)


def producer_bytes(settings: ProducerSettings | None) -> int:
    return 0 if settings is None else PRODUCER_BYTES + len(settings.name) + len(settings.set_by.encode())


def coordinator_bytes(key: CoordinatorKey, taken: TakenEpoch | None) -> int:
    return 0 if taken is None else COORDINATOR_BYTES + sum(map(len, key))


def query_bytes(query: Query) -> int:
    """Size of a query. Of one without a topic it includes space for the topic and the stream that it may get."""
    owner = len(query.topic) + len(query.stream) if query.topic else limits.TOPIC_CHARS_MAX + STREAM_CHARS_MAX
    decisions = max(DECISIONS_RESERVED, len(query.decisions))
    return QUERY_BYTES + len(query.name) + len(query.group) + owner + DECISION_BYTES * decisions


def comparison_bytes(comparison: Comparison) -> int:
    return COMPARISON_BYTES + len(comparison.group) + len(comparison.tx_id) + len(comparison.by.encode())


def set_comparison(state: State, comparison: Comparison) -> None:
    """Remember the comparison, in place of an earlier state of it."""
    forget_comparison(state, comparison.group, comparison.tx_id)
    state.comparisons[comparison.group, comparison.tx_id] = comparison
    state.derived.base_bytes += comparison_bytes(comparison)


def forget_comparison(state: State, group: str, tx_id: str) -> None:
    """Forget it, if it is known."""
    known = state.comparisons.pop((group, tx_id), None)
    if known is not None:
        state.derived.base_bytes -= comparison_bytes(known)


def count_query(state: State, more: int) -> None:
    """Count ``more`` bytes of queries; negative for a removal."""
    state.derived.base_bytes += more
    state.derived.queries_bytes += more


def count_group(state: State, more: int) -> None:
    """Count ``more`` groups with this name; negative for a removal."""
    state.derived.base_bytes += more
    state.derived.groups_bytes += more


def keep_queues(state: State, topic: Topic, queues: int) -> None:
    """Extend the topic to at least this number of queues, and count the new ones."""
    before = len(topic.ends)
    topic.keep_queues(state.settings, queues)
    state.derived.base_bytes += QUEUE_BYTES * (len(topic.ends) - before)


def set_offset(state: State, group: str, key: tuple[int, int], offset: int) -> None:
    """Set the logged offset of the group in a queue."""
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
    """Remove a logged offset, if there is one."""
    offsets = state.offsets.get(group)
    if offsets is None or offsets.pop(key, None) is None:
        return
    state.derived.base_bytes -= OFFSET_BYTES
    if not offsets:
        del state.offsets[group]
        state.derived.base_bytes -= group_bytes(group)


class Recount(NamedTuple):
    """The values that ``DerivedState.base_bytes``, ``groups_bytes`` and ``queries_bytes`` must have."""

    base: int
    groups: int
    queries: int


def recount(state: State) -> Recount:
    topics = sum(map(topic_bytes, state.topics_by_id.values()))
    groups = sum(map(group_bytes, state.groups))
    held = sum(map(more_group_bytes, state.groups.values()))
    producers = sum(map(producer_bytes, state.producer_settings.values()))
    queries = sum(map(query_bytes, state.queries.values()))
    coordinators = sum(coordinator_bytes(key, taken) for key, taken in state.coordinators.items())
    compared = sum(map(comparison_bytes, state.comparisons.values()))
    offsets = sum(group_bytes(group) + OFFSET_BYTES * len(offsets) for group, offsets in state.offsets.items())
    return Recount(
        EMPTY_BYTES + topics + groups + held + producers + offsets + queries + coordinators + compared, groups, queries
    )
