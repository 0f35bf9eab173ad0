"""The first record of a segment: durable state without messages, so that the log before it can be trimmed.

A base does not contain undecided transactions, delayed messages, and the deduplication windows. Before a trim the first two are
copied forward; entries of the windows that only the trimmed log contains are removed from memory as well.

Equal states give equal bytes. When redo reads a base, it compares the base with its own state.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import NODEFAULT

from halfmq.core.schema import ROW_KIND, TopicRow, load_topic, topic_rows
from halfmq.core.state import State, next_offset
from halfmq.errors import InvariantViolated
from halfmq.model.placement import segment_start
from halfmq.model.records import Base, base_size

_VERSION: Final = 1


class _Part(NamedTuple):
    """A field of the payload."""

    name: str
    type: Any
    of: Callable[[State], Any]
    load: Callable[[State, Any], None]
    #: Those at the end that have their default are omitted. NODEFAULT: it is never omitted.
    default: Any = NODEFAULT


def _number(name: str, default: Any = NODEFAULT) -> _Part:
    """The attribute of the state with this name."""
    return _Part(name, int, attrgetter(name), lambda state, number: setattr(state, name, number), default)


def _rows(name: str, default: Any = NODEFAULT) -> _Part:
    """The rows of this kind."""
    kind = ROW_KIND[name]
    return _Part(name, kind.type, lambda state: kind.rows(state, sorted), kind.load, default)


def _topics(state: State) -> list[tuple[bytes, list[int]]]:
    return [(row.payload, row.ends) for row in topic_rows(state, sorted)]


def _load_topics(state: State, topics: list[tuple[bytes, list[int]]]) -> None:
    for payload, ends in topics:
        load_topic(state, TopicRow(payload, ends, ends))


#: In their order, after the version. A further one is at the end, with a default.
_PARTS: Final = (
    _number("epoch"),
    _number("next_topic_id"),
    _number("next_half_index"),
    _Part("topics", list[tuple[bytes, list[int]]], _topics, _load_topics),
    _rows("groups"),
    _rows("offsets"),
    _rows("producers", []),
    _number("epoch_grace_ms", -1),
    _rows("queries", []),
    _number("coordinator_epoch", 0),
    _rows("coordinators", []),
    _rows("compared", []),
    _rows("users", []),
    _number("restored_half_index", -1),
    _rows("settings", []),
)
_Payload: Final = msgspec.defstruct(
    "_Payload", [("version", int), *[(part.name, part.type, part.default) for part in _PARTS]], array_like=True
)
_decode: Final = msgspec.msgpack.Decoder(_Payload).decode


def base_payload(state: State) -> bytes:
    """Encode durable state without messages. Equal states give equal bytes."""
    fields = [_VERSION, *[part.of(state) for part in _PARTS]]
    while fields[-1] == _PARTS[len(fields) - 2].default:
        fields.pop()
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


def _load(state: State, payload: Any) -> None:
    if payload.version != _VERSION:
        raise InvariantViolated(f"base of version {payload.version}; this version reads {_VERSION}")
    for part in _PARTS:
        part.load(state, getattr(payload, part.name))


def _difference(there: Any, here: Any) -> str:
    for field in there.__struct_fields__:
        if field == "users" and there.users != here.users:
            return "the users differ"  # their secrets are not for a log line
        if getattr(there, field) != getattr(here, field):
            return f"{field}: the log says {getattr(there, field)!r:.300}, redo came to {getattr(here, field)!r:.300}"
    return "the same fields in other bytes"
