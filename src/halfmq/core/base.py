"""The record that opens a segment: durable state that is not messages, so that what lies before can be trimmed.

Undecided transactions, delayed messages and what is remembered of recent ones are not in it: before a trim the first
two are carried forward, and of the last two live state forgets what only older log knew.

The payload is the same bytes for the same state, so a redo that meets a base compares it with what it came to.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from halfmq.core.base_bytes import (
    count_group,
    group_bytes,
    keep_queues,
    producer_bytes,
    set_offset,
    topic_bytes,
)
from halfmq.core.clock_jumps import note_start
from halfmq.core.state import Policy, State, Topic, drop_stale_looks, next_offset, set_holders, take_turn
from halfmq.errors import InvariantViolated
from halfmq.model.placement import segment_start
from halfmq.model.records import (
    Base,
    EpochStarted,
    GroupDeleted,
    GroupSet,
    ProducerSet,
    TopicSet,
    base_size,
    payload_of,
    payload_record_size,
)
from halfmq.model.settings import GroupSettings, PastLimit, ProducerSettings

_VERSION: Final = 1


class _Payload(msgspec.Struct, array_like=True):
    version: int
    epoch: int
    next_topic_id: int
    next_half_index: int
    #: Payload of a topic's record, and its queue ends.
    topics: list[tuple[bytes, list[int]]]
    groups: list[bytes]
    offsets: list[tuple[str, list[tuple[int, int, int]]]]
    #: Not written while there are none, so that a base from before there could be any still compares.
    producers: list[bytes] = []
    #: Not written while no start has said so, for the same reason.
    epoch_immunity_ms: int = -1


_decode: Final = msgspec.msgpack.Decoder(_Payload)


def topic_payload(topic_id: int, name: str, read_queues: int, write_queues: int, permission: int) -> bytes:
    return payload_of(topic_id, name, read_queues, write_queues, permission)


def topic_set(offset: int, topic_id: int, name: str, read_queues: int, write_queues: int, permission: int) -> TopicSet:
    payload = topic_payload(topic_id, name, read_queues, write_queues, permission)
    return TopicSet(
        offset, payload_record_size(payload), topic_id, name, read_queues, write_queues, permission, payload
    )


def group_payload(group: GroupSettings, holders: Mapping[tuple[int, int], str] | None = None) -> bytes:
    """``holders`` of its queues are written only if there are any, as for a group that never consumed in order."""
    fields = (group.name, group.retry_max_times, group.retry_queues, group.consume_enabled)
    if not holders:
        return payload_of(*fields)
    queues: dict[str, list[int]] = {}
    for (topic_id, queue_id), client_id in sorted(holders.items()):
        queues.setdefault(client_id, []).extend((topic_id, queue_id))
    return payload_of(*fields, sorted(queues.items()))


def group_set(offset: int, group: GroupSettings, holders: Mapping[tuple[int, int], str] | None) -> GroupSet:
    payload = group_payload(group, holders)
    return GroupSet(offset, payload_record_size(payload), group.name, payload)


def group_deleted(offset: int, name: str, with_offsets: bool) -> GroupDeleted:
    payload = payload_of(name, with_offsets)
    return GroupDeleted(offset, payload_record_size(payload), name, with_offsets, payload)


def read_topic(state: State, payload: bytes) -> Topic:
    """Make or change the topic that ``payload`` describes."""
    topic_id, name, read_queues, write_queues, permission = msgspec.msgpack.decode(payload)[:5]
    topic = state.topics_by_id.get(topic_id)
    if topic is None:
        topic = Topic(state.settings, topic_id, name, read_queues, write_queues, permission)
        state.topics_by_id[topic_id] = state.topics_by_name[name] = topic
        state.next_topic_id = max(state.next_topic_id, topic_id + 1)
        state.derived.base_bytes += topic_bytes(topic)
    else:
        keep_queues(state, topic, max(read_queues, write_queues))
        topic.resize(state.settings, read_queues, write_queues)
        topic.permission = permission
    return topic


def read_group(state: State, payload: bytes) -> None:
    fields = msgspec.msgpack.decode(payload)
    name, retry_max_times, retry_queues, consume_enabled = fields[:4]
    if name not in state.groups:
        count_group(state, group_bytes(name))
    state.groups[name] = GroupSettings(name, retry_max_times, retry_queues, consume_enabled)
    holders = {
        (topic_id, queue_id): client_id
        for client_id, queues in (fields[4] if len(fields) > 4 else ())
        for topic_id, queue_id in zip(queues[::2], queues[1::2], strict=True)
    }
    set_holders(state, name, holders)


def producer_set(offset: int, settings: ProducerSettings) -> ProducerSet:
    payload = producer_payload(settings)
    return ProducerSet(offset, payload_record_size(payload), settings.name, payload)


def producer_payload(settings: ProducerSettings) -> bytes:
    return payload_of(
        settings.name, settings.check_limit, settings.past_limit.value, settings.skip_age_ms, settings.undecided_max,
        settings.undecided_bytes_max, settings.set_by,
    )  # fmt: skip


def read_producer(state: State, payload: bytes) -> None:
    """Give the producer group that ``payload`` describes its limits and policy, or take them away."""
    name, check_limit, past_limit, age_ms, count, size, set_by = msgspec.msgpack.decode(payload)[:7]
    settings = ProducerSettings(name, check_limit, PastLimit(past_limit), age_ms, count, size, set_by)
    group = state.producer_group(name)
    group.undecided_max = state.settings.undecided_max if count < 0 else count
    group.undecided_bytes_max = state.settings.undecided_bytes_max if size < 0 else size
    before = group.policy
    group.policy = Policy(settings) if check_limit or age_ms else None
    if group.policy is None:
        state.derived.policies.pop(name, None)
        state.derived.looking.pop(name, None)
    else:
        state.derived.policies[name] = state.derived.looking[name] = None
    if before is not None:
        group.session.ready += before.session.past
        take_turn(state, group)
        if group.policy is not None:
            group.policy.session.left = before.session.left
    drop_stale_looks(state)
    state.derived.base_bytes -= producer_bytes(state.producer_settings.pop(name, None))
    if not settings.is_default:
        state.producer_settings[name] = settings
        state.derived.base_bytes += producer_bytes(settings)


def epoch_started(offset: int, epoch: int, wall_ms: int, check_immunity_ms: int, jump_ms: int = 0) -> EpochStarted:
    """A run of the broker begins. What decides the meaning of its records stands in it, since redo may have other settings.

    ``jump_ms``: as ``clock_jumps.jump_of_start`` says.
    """
    payload = payload_of(epoch, wall_ms, check_immunity_ms, *((jump_ms,) if jump_ms else ()))
    return EpochStarted(offset, payload_record_size(payload), epoch, wall_ms, payload)


def read_epoch(state: State, record: EpochStarted) -> None:
    """Begin the epoch. One of an earlier version does not say its immunity: the settings of now do."""
    fields: list[int] = msgspec.msgpack.decode(record.payload) if record.payload else []
    state.epoch = record.epoch
    state.epoch_immunity_ms = fields[2] if len(fields) > 2 else -1
    note_start(state, record.offset, fields[3] if len(fields) > 3 else 0)


def base_payload(state: State) -> bytes:
    """Everything durable that is not messages. The same state gives the same bytes."""
    topics = [state.topics_by_id[topic_id] for topic_id in sorted(state.topics_by_id)]
    fields = (
        _VERSION,
        state.epoch,
        state.next_topic_id,
        state.next_half_index,
        [(topic_payload(t.topic_id, t.name, t.read_queues, t.write_queues, t.permission), t.ends) for t in topics],
        [group_payload(state.groups[name], state.holders.get(name)) for name in sorted(state.groups)],
        [
            (group, [(topic_id, queue_id, at) for (topic_id, queue_id), at in sorted(offsets.items())])
            for group, offsets in sorted(state.offsets.items())
            if offsets
        ],
    )
    producers = [producer_payload(state.producer_settings[name]) for name in sorted(state.producer_settings)]
    if state.epoch_immunity_ms >= 0:
        return msgspec.msgpack.encode((*fields, producers, state.epoch_immunity_ms))
    return msgspec.msgpack.encode((*fields, producers) if producers else fields)


def make_base(state: State, previous_end: int) -> Base:
    """The base for the segment whose first batch was just opened. ``previous_end``: where the last one before ended."""
    payload = base_payload(state)
    return Base(next_offset(state), base_size(payload), previous_end, payload)


def apply_base(state: State, base: Base) -> None:
    """Take the base as the state when nothing is known yet; otherwise it must say what was redone.

    Raises:
        InvariantViolated: it does not. The log before it, or the base, was not written by this state machine.
    """
    if not state.loaded:
        _load(state, _decode.decode(base.payload))
        state.loaded = True
    elif base_payload(state) != base.payload:
        raise InvariantViolated(
            f"the base at {base.offset} differs from the state that the log before it leads to: "
            f"{_difference(_decode.decode(base.payload), _decode.decode(base_payload(state)))}"
        )
    start = segment_start(base.offset, state.settings.segment_bytes)
    state.bases[start] = tuple((topic_id, tuple(topic.ends)) for topic_id, topic in sorted(state.topics_by_id.items()))


def _load(state: State, payload: _Payload) -> None:
    if payload.version != _VERSION:
        raise InvariantViolated(f"base of version {payload.version}; this version reads {_VERSION}")
    for settings, ends in payload.topics:
        topic = read_topic(state, settings)
        keep_queues(state, topic, len(ends))  # also those from before the topic was made smaller
        topic.ends[:] = ends
        topic.mins[:] = ends
    for group in payload.groups:
        read_group(state, group)
    for producer in payload.producers:
        read_producer(state, producer)
    for name, entries in payload.offsets:
        for topic_id, queue_id, at in entries:
            set_offset(state, name, (topic_id, queue_id), at)
    state.epoch = payload.epoch
    state.epoch_immunity_ms = payload.epoch_immunity_ms
    state.next_topic_id = payload.next_topic_id
    state.next_half_index = payload.next_half_index


def _difference(there: _Payload, here: _Payload) -> str:
    for field in there.__struct_fields__:
        if getattr(there, field) != getattr(here, field):
            return f"{field}: the log says {getattr(there, field)!r:.300}, redo came to {getattr(here, field)!r:.300}"
    return "the same fields in other bytes"
