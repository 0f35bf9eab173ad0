"""The first record of a segment: durable state without messages, so that the log before it can be trimmed.

A base does not contain undecided transactions, delayed messages, and the deduplication windows. Before a trim the first two are
copied forward; entries of the windows that only the trimmed log contains are removed from memory as well.

Equal states give equal bytes. When redo reads a base, it compares the base with its own state.
"""

from typing import Final

import msgspec
from msgspec.structs import astuple

from halfmq.core.schema import (
    CoordinatorRow,
    OffsetRow,
    QueryRow,
    TopicRow,
    comparison_rows,
    coordinator_rows,
    group_rows,
    load_comparisons,
    load_coordinators,
    load_groups,
    load_offsets,
    load_producers,
    load_queries,
    load_topics,
    offset_rows,
    producer_rows,
    query_rows,
    topic_rows,
)
from halfmq.core.state import Comparison, State, next_offset
from halfmq.errors import InvariantViolated
from halfmq.model.placement import segment_start
from halfmq.model.records import Base, base_size

_VERSION: Final = 1


class _Payload(msgspec.Struct, array_like=True):
    """Rows as in ``schema``. Of the last six fields, those at the end that have their default are omitted."""

    version: int
    epoch: int
    next_topic_id: int
    next_half_index: int
    topics: list[tuple[bytes, list[int]]]
    groups: list[bytes]
    offsets: list[OffsetRow]
    producers: list[bytes] = []
    epoch_grace_ms: int = -1
    queries: list[QueryRow] = []
    coordinator_epoch: int = 0
    coordinators: list[CoordinatorRow] = []
    comparisons: list[Comparison] = []


_REQUIRED_FIELDS: Final = 7
#: Of the fields after these.
_DEFAULTS: Final[tuple[object, ...]] = ([], -1, [], 0, [], [])
_decode: Final = msgspec.msgpack.Decoder(_Payload).decode


def base_payload(state: State) -> bytes:
    """Encode durable state without messages. Equal states give equal bytes."""
    payload = _Payload(
        _VERSION,
        state.epoch,
        state.next_topic_id,
        state.next_half_index,
        [(row.payload, row.ends) for row in topic_rows(state, sorted)],
        group_rows(state, sorted),
        offset_rows(state, sorted),
        producer_rows(state, sorted),
        state.epoch_grace_ms,
        query_rows(state, sorted),
        state.coordinator_epoch,
        coordinator_rows(state, sorted),
        comparison_rows(state, sorted),
    )
    fields = astuple(payload)
    while len(fields) > _REQUIRED_FIELDS and fields[-1] == _DEFAULTS[len(fields) - _REQUIRED_FIELDS - 1]:
        fields = fields[:-1]
    return msgspec.msgpack.encode(fields)


def make_base(state: State, previous_end: int) -> Base:
    """The base of the segment whose first batch was just opened. ``previous_end``: end of the last batch before it."""
    payload = base_payload(state)
    return Base(next_offset(state), base_size(payload), previous_end, payload)


def apply_base(state: State, base: Base) -> None:
    """Initialise an empty state from the base, or compare it with the state so far.

    Raises:
        InvariantViolated: they differ. The log before it, or the base, was not written by this state machine.
    """
    if not state.loaded:
        _load(state, _decode(base.payload))
        state.loaded = True
    elif base_payload(state) != base.payload:
        raise InvariantViolated(
            f"the base at {base.offset} differs from the state that the log before it leads to: "
            f"{_difference(_decode(base.payload), _decode(base_payload(state)))}"
        )
    start = segment_start(base.offset, state.settings.segment_bytes)
    state.bases[start] = tuple((topic_id, tuple(topic.ends)) for topic_id, topic in sorted(state.topics_by_id.items()))


def _load(state: State, payload: _Payload) -> None:
    if payload.version != _VERSION:
        raise InvariantViolated(f"base of version {payload.version}; this version reads {_VERSION}")
    load_topics(state, [TopicRow(settings, ends, ends) for settings, ends in payload.topics])
    load_groups(state, payload.groups)
    load_producers(state, payload.producers)
    load_offsets(state, payload.offsets)
    load_queries(state, payload.queries)
    state.coordinator_epoch = payload.coordinator_epoch
    load_coordinators(state, payload.coordinators)
    load_comparisons(state, payload.comparisons)
    state.epoch = payload.epoch
    state.epoch_grace_ms = payload.epoch_grace_ms
    state.next_topic_id = payload.next_topic_id
    state.next_half_index = payload.next_half_index


def _difference(there: _Payload, here: _Payload) -> str:
    for field in there.__struct_fields__:
        if getattr(there, field) != getattr(here, field):
            return f"{field}: the log says {getattr(there, field)!r:.300}, redo came to {getattr(here, field)!r:.300}"
    return "the same fields in other bytes"
