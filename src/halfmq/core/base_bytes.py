"""The size of a base, updated incrementally (``DerivedState.base_bytes``), and its limits: after a base there must be space in its segment
for a decision of half a segment. So code that adds an item asks here first. Existing ones may always be changed, committed and removed.

Every function that changes topics, consumer groups, limits of producer groups or logged offsets updates it here, so that the cost
of a change does not depend on their number. It is an upper bound: numbers count at their maximum size, names at their length.
Tests compute it anew from the state and compare.

Offsets that wait to be logged do not count: the first offset of a group in a queue is logged at once, so each waiting one
replaces a logged one.
"""

from typing import Final

import msgspec

from halfmq import limits
from halfmq.core.decision import Refused, Why
from halfmq.core.state import Comparison, CoordinatorKey, Query, State, TakenEpoch, Topic
from halfmq.model.query_batch import RUN_CHARS_MAX, STREAM_CHARS_MAX
from halfmq.model.runtime_settings import RecordedSetting
from halfmq.model.settings import (
    GROUP_BYTES,
    NAMED_PART,
    QUEUE_BYTES,
    TOPIC_BYTES,
    GroupSettings,
    ProducerSettings,
    base_bytes_max,
)
from halfmq.model.users import User

#: Maximum size in a base of limits of a producer group, and of an offset, without names; of others: ``model.settings``.
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


def user_bytes(name: str, user: User | None) -> int:
    """The exact size: users are changed rarely."""
    return 0 if user is None else len(msgspec.msgpack.encode((name, user)))


def setting_bytes(name: str, recorded: RecordedSetting | None) -> int:
    """The exact size: settings are changed rarely."""
    return 0 if recorded is None else len(msgspec.msgpack.encode((name, recorded)))


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


# --- limits ----------------------------------------------------------------------------------------------------


def refuse_named(state: State, more_bytes: int, what: str) -> Refused | None:
    """The refusal if a base has no space for ``more_bytes`` of items that clients create by naming them; else None.

    Such items may not use the last quarter of a base, which is reserved for offsets, limits of producer groups, and items that an
    administrator creates.
    """
    most = NAMED_PART.bytes_max(state.settings.segment_bytes)
    if state.derived.base_bytes + more_bytes <= most:
        return None
    return Refused(
        Why.LIMIT_REACHED,
        f"{what}: items that clients create by naming them may take {most} bytes of the base of a segment of "
        f"{state.settings.segment_bytes} bytes, and {state.derived.base_bytes} are taken; delete unused topics or groups, create "
        "it by hand, or use a store with larger segments",
    )


def base_has_space(view: State, more_bytes: int) -> bool:
    """Whether a base has space for ``more_bytes`` of any item. The caller may use it at once."""
    return view.derived.base_bytes + more_bytes <= base_bytes_max(view.settings.segment_bytes)


def refuse_space(state: State, more_bytes: int, what: str) -> Refused | None:
    """The refusal of ``what``, a sentence, if it takes more bytes of a base than before, and they do not fit; else None."""
    return None if more_bytes <= 0 or base_has_space(state, more_bytes) else no_space(state, what)


def no_space(state: State, what: str) -> Refused:
    return Refused(
        Why.LIMIT_REACHED,
        f"{what}: topics, groups, their limits, consumer offsets and queries would not fit in the base of a segment of "
        f"{state.settings.segment_bytes} bytes; delete unused topics or groups, or use a store with larger segments",
    )


def refuse_producer(state: State, settings: ProducerSettings) -> Refused | None:
    """The refusal if these limits are larger than the current ones and do not fit; else None."""
    more = producer_bytes(settings) - producer_bytes(state.producer_settings.get(settings.name))
    what = f"the limits of producer group {settings.name!r} were not set"
    return refuse_space(state, 0 if settings.is_default else more, what)


def has_space_for_offset(view: State, group: str) -> bool:
    """Whether there is space for one more offset of the group."""
    return base_has_space(view, OFFSET_BYTES + (0 if group in view.offsets else group_bytes(group)))
