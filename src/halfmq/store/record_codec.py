"""Encoding of records: one layout per kind, with exactly the sizes that ``model/records.py`` states.

Every record has a head (kind 1, flags 1, reserved 2, length 4), a fixed prefix, and a variable part: a stored message in RocketMQ's
layout, names, references, or a payload of ``core``. Numbers are big-endian.

A record with a message is encoded in three pieces, (before the body, the body, after the body), for two reasons: the batch's checksum
excludes bodies (their own CRC is among the checksummed bytes), and a body is copied once, when the batch is joined for its single
write. Other records are one piece.

What replay needs of a half and is in the message's properties (group, id) is read from there, so that it is written once. Records of
copies name a ``source`` instead of a body; the caller passes ``copy``, which reads the bytes.
"""

import struct
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

import msgspec

from halfmq.errors import StoreDamaged, WrongVersion
from halfmq.model import properties as props
from halfmq.model import stored_message
from halfmq.model.cached import Cached
from halfmq.model.half_batch import DELAY_BYTES, ENTRY_BYTES, ITEM_HEAD_BYTES, first_has_marker
from halfmq.model.layout import (
    BATCH_REF,
    CHECKED_HEAD,
    COPIED_DELAYED_HEAD,
    COPIED_HALF_HEAD,
    DECIDED_HEAD,
    DELAYED_HEAD,
    HALF_BATCH_HEAD,
    MESSAGE_HEAD,
    NUMBER_HEAD,
    OPERATOR_ACTED_HEAD,
    PARKED_HEAD,
    RECORD_HEAD,
    REF,
    STORED_MESSAGE,
    VERDICT_HEAD,
    Layout,
)
from halfmq.model.message_facts import (
    common_values,
    coordinator_in,
    coordinator_of,
    delay_of,
    half_facts,
    has_marker,
    key_hash_of,
    plain_facts,
    tag_hash_of,
    user_in,
    user_of,
)
from halfmq.model.records import (
    BATCHED,
    COPIED_DELAYED_MESSAGE_AT,
    COPIED_HALF_MESSAGE_AT,
    DELAYED_MESSAGE_AT,
    HALF_BATCH_PAYLOAD_AT,
    MESSAGE_AT,
    OPERATOR_ACTED_END_BYTES,
    RECORD_HEAD_BYTES,
    REF_BYTES,
    TYPE_OF_KIND,
    USER_LENGTH_BYTES,
    Base,
    BatchFacts,
    BatchRef,
    Checked,
    Committed,
    CopiedDelayed,
    CopiedHalf,
    CopiedHalfBatch,
    Decided,
    DelayedRecord,
    Half,
    HalfBatch,
    HalfRecord,
    Kind,
    MessageRecord,
    OffsetsCommitted,
    OperatorActed,
    Parked,
    Record,
    Ref,
    Released,
    RolledBack,
    Trim,
    for_each_kind,
)
from halfmq.model.stored_message import (
    AT_BODY_V4,
    AT_PHYSICAL_OFFSET,
    AT_QUEUE_ID,
    MAGIC_V1,
    SYS_HOSTS_V6,
    body_place,
    properties_from,
)

#: Kind, flags and reserved as one word; then size, topic id, and reserved or (index, count of a half).
_MESSAGE_WORDS: Final = {"kind": "I", "record_bytes": "I", "topic_id": "i", "index": "I"}
_message_head: Final = MESSAGE_HEAD.only(**_MESSAGE_WORDS).pack
#: Of a record, from its start.
kind_and_size: Final = RECORD_HEAD.only("kind", "record_bytes").unpack_from
_half_prefix: Final = MESSAGE_HEAD.only("topic_id", "index", "count").unpack_from
_verdict_prefix: Final = VERDICT_HEAD.only("decided_by", "user_bytes", "group_bytes", "id_bytes", "count").unpack_from
_HAS_KEYS: Final = 1
_IS_DELAYED: Final = 2
_HAS_USER: Final = 4
_IS_LAST: Final = 1
_pack_ref: Final = REF.pack
_unpack_ref: Final = REF.unpack_from

#: Bound once for the hot path: in CPython 3.11 ``Kind.HALF`` costs 0.1 us, as much as a call.
_MESSAGE_WORD: Final = Kind.MESSAGE << 24
_HALF_WORD: Final = Kind.HALF << 24
_COMMITTED_WORD: Final = Kind.COMMITTED << 24
#: With fewer values than the fields: each takes 50 instructions.
_pack_committed_head: Final = VERDICT_HEAD.only(
    kind="I", record_bytes="I", decided_by="B", group_bytes="H", id_bytes="H", count="H"
).pack

_pack_committed_by_user: Final = VERDICT_HEAD.only(
    kind="I", record_bytes="I", decided_by="B", user_bytes="B", group_bytes="H", id_bytes="H", count="H"
).pack

#: Head, prefix and the message up to its body in one pack, for the common message: version 1, both hosts IPv4.
_pack_message_v4: Final = Layout(MESSAGE_HEAD, STORED_MESSAGE).only(**_MESSAGE_WORDS, **STORED_MESSAGE.fields).pack
_pack_length: Final = struct.Struct(">H").pack

_MESSAGE_AT: Final[dict[int, int]] = {
    Kind.MESSAGE: MESSAGE_AT,
    Kind.HALF: MESSAGE_AT,
    Kind.COPIED_HALF: COPIED_HALF_MESSAGE_AT,
    Kind.DELAYED: DELAYED_MESSAGE_AT,
    Kind.COPIED_DELAYED: COPIED_DELAYED_MESSAGE_AT,
    BATCHED: ITEM_HEAD_BYTES,
}
#: The same by number, 0 for a record without a message, for scans and readers.
MESSAGE_AT_BY_KIND: Final = tuple(_MESSAGE_AT.get(kind, 0) for kind in range(256))

#: Before the body, the body, after the body.
Pieces = tuple[bytes, bytes, bytes]
#: Returns the bytes for a copy: the stored message whose record starts at an offset, in three pieces. Of a half batch, its payload is
#: the second piece, and the others are empty.
Copy = Callable[[int], Pieces]
Buffer = bytes | memoryview


def message_at(kind: int) -> int:
    """Bytes from the start of a record of ``kind`` to its stored message; 0 if it has none."""
    return MESSAGE_AT_BY_KIND[kind]


def split_message(view: Buffer, start: int, length: int) -> Pieces:
    """The stored message of ``length`` bytes at ``start`` as (before, body, after), copied."""
    place = body_place(view, start)
    return (
        bytes(view[start : place.start]),
        bytes(view[place.start : place.end]),
        bytes(view[place.end : start + length]),
    )


def half_identity(properties: bytes) -> tuple[str, str]:
    """(producer group, transaction id) of a half, from its properties: HMQ_TX_ID, else UNIQ_KEY."""
    tx_id = props.find(properties, props.HMQ_TX_ID) or props.find(properties, props.UNIQ_KEY) or b""
    group = props.find(properties, props.PGROUP) or b""
    return _texts[group], tx_id.decode()


_HMQ_TX_ID: Final = props.HMQ_TX_ID.encode()


# --- encode ----------------------------------------------------------------------------------------------------


def _topic_tail(topic: str) -> bytes:
    raw = topic.encode()
    return len(raw).to_bytes(1 if len(raw) <= 127 else 2, "big") + raw


#: Maximum number of cached names (topics, groups), encoded and decoded.
_NAMES_KEPT_MAX: Final = 16_384
_topic_tails: Final[Cached[str, bytes]] = Cached(_topic_tail, _NAMES_KEPT_MAX)
#: Names decoded, with one ``str`` object for equal ones: a million records contain few names of topics and groups.
_texts: Final[Cached[bytes, str]] = Cached(bytes.decode, _NAMES_KEPT_MAX)


def _message(record: MessageRecord | HalfRecord, copy: Copy) -> Pieces:
    """Head, prefix and message of a plain message or a half."""
    # The first four bytes of the head, and those of the prefix after the topic id.
    kind, last = _MESSAGE_WORD, 0
    if type(record) is HalfRecord:
        kind, last = _HALF_WORD, record.index << 16 | record.count
    topic = record.topic
    born_host = record.born_host
    store_host = record.store_host
    if len(topic) > 127 or len(born_host) != 8 or len(store_host) != 8:
        before, body, after = stored_message.encode(record.message, record.offset)
        return _message_head(kind, record.size, record.topic_id, last) + before, body, after
    body = record.body
    body_bytes = len(body)
    properties = record.properties
    after = b"".join((_topic_tails[topic], _pack_length(len(properties)), properties))
    before = _pack_message_v4(
        kind, record.size, record.topic_id, last, 88 + body_bytes + len(after), MAGIC_V1, record.body_crc,
        record.queue_id, record.flag, record.queue_offset, record.offset, record.sys_flag, record.born_time_ms,
        born_host, record.store_time_ms, store_host, record.reconsume_times, record.prepared_offset, body_bytes,
    )  # fmt: skip
    return before, body, after


def _delayed(record: DelayedRecord, copy: Copy) -> Pieces:
    before, body, after = stored_message.encode(record.message, record.offset)
    head = DELAYED_HEAD.pack(
        Kind.DELAYED, 0, 0, record.size, record.topic_id, record.tag_hash, record.due_ms, record.key_hash
    )
    return head + before, body, after


def _moved(before: bytes, offset: int) -> bytes:
    """The front of a stored message, with ``offset`` as the start of its record."""
    return before[:AT_PHYSICAL_OFFSET] + offset.to_bytes(8, "big") + before[AT_PHYSICAL_OFFSET + 8 :]


_of_copied_half: Final = attrgetter(*[
    f"half.{name}" if name in Half.__struct_fields__ else name
    for name in list(COPIED_HALF_HEAD.fields)[len(RECORD_HEAD.fields) :]
])  # fmt: skip
_of_copied_delayed: Final = attrgetter(*list(COPIED_DELAYED_HEAD.fields)[len(RECORD_HEAD.fields) :])
_of_batch_ref: Final = attrgetter(*BATCH_REF.fields)


def _copied_half(record: CopiedHalf, copy: Copy) -> Pieces:
    before, body, after = copy(record.source)
    head = COPIED_HALF_HEAD.pack(Kind.COPIED_HALF, 0, 0, record.size, *_of_copied_half(record))
    return head + _moved(before, record.offset), body, after


def _copied_delayed(record: CopiedDelayed, copy: Copy) -> Pieces:
    before, body, after = copy(record.source)
    head = COPIED_DELAYED_HEAD.pack(Kind.COPIED_DELAYED, 0, 0, record.size, *_of_copied_delayed(record))
    return head + _moved(before, record.offset), body, after


def _ref(ref: Ref) -> bytes:
    # By name, and not by ``attrgetter`` as the others: it takes half the time, and each commit does it.
    return _pack_ref(
        ref.offset, ref.first_offset, ref.half_index, ref.queue_offset, ref.due_ms, ref.key_hash, ref.message_bytes,
        ref.topic_id, ref.queue_id, ref.tag_hash,
    )  # fmt: skip


def _verdict(kind: Kind, record: Committed | RolledBack, count: int, settles: bytes) -> bytes:
    raw_group = record.group.encode()
    raw_id = record.tx_id.encode()
    raw_user = record.user.encode()
    head = VERDICT_HEAD.pack(
        kind, 0, 0, record.size, record.decided_by, len(raw_user), len(raw_group), len(raw_id), count
    )
    return b"".join((head, raw_group, raw_id, settles, raw_user))


def _committed(record: Committed, copy: Copy) -> bytes:
    refs = record.refs
    raw_group = record.group.encode()
    raw_id = record.tx_id.encode()
    if record.user:
        raw_user = record.user.encode()
        head = _pack_committed_by_user(
            _COMMITTED_WORD, record.size, record.decided_by, len(raw_user), len(raw_group), len(raw_id), len(refs)
        )
        return b"".join((head, raw_group, raw_id, *map(_ref, refs), raw_user))
    head = _pack_committed_head(_COMMITTED_WORD, record.size, record.decided_by, len(raw_group), len(raw_id), len(refs))
    if len(refs) == 1:
        return b"".join((head, raw_group, raw_id, _ref(refs[0])))
    return b"".join((head, raw_group, raw_id, *map(_ref, refs)))


def _rolled_back(record: RolledBack, copy: Copy) -> bytes:
    halves = record.half_indexes
    return _verdict(Kind.ROLLED_BACK, record, len(halves), struct.pack(f">{len(halves)}q", *halves))


def _half_batch(record: HalfBatch | CopiedHalfBatch, copy: Copy) -> list[bytes]:
    half: HalfBatch | Half
    if isinstance(record, HalfBatch):
        half, kind, payload, first_offset, checks = record, Kind.HALF_BATCH, record.payload, record.offset, 0
        times = 0, record.grace_ms, 0
    else:
        half, kind, payload, checks = record.half, Kind.COPIED_HALF_BATCH, copy(record.source)[1], record.checks
        first_offset = half.first_offset
        times = record.prepared_at_ms, record.grace_until_ms, record.next_check_at_ms
    batch = half.batch
    assert batch is not None
    texts = [text.encode() for text in (record.group, record.tx_id, batch.attempt)]
    of_query = batch.query_topic.encode(), batch.stream.encode()
    raw_user = batch.user.encode()
    flags = batch.has_keys * _HAS_KEYS | bool(batch.delayed_entries) * _IS_DELAYED | bool(raw_user) * _HAS_USER
    head = HALF_BATCH_HEAD.pack(
        kind, 0, *map(len, of_query), record.size, first_offset, half.half_index, *times, half.topic_id, half.queue_id,
        batch.messages, batch.checksum, batch.entries_checksum, len(payload), checks, half.index, record.count, flags,
        *map(len, texts),
    )  # fmt: skip
    of_user = (raw_user, len(raw_user).to_bytes(USER_LENGTH_BYTES, "big")) if raw_user else ()
    return [head, payload, *texts, *of_query, *of_user]


def _decided(record: Decided, copy: Copy) -> bytes:
    raw_group = record.group.encode()
    raw_id = record.tx_id.encode()
    raw_user = record.user.encode()
    lost = record.lost
    of_query = record.query_topic.encode(), record.stream.encode()
    head = DECIDED_HEAD.pack(
        Kind.DECIDED, 0, *map(len, of_query), record.size, record.decided_by, len(record.digest), len(raw_group), len(raw_id),
        len(raw_user), record.is_last * _IS_LAST, len(record.refs), len(lost),
    )  # fmt: skip
    refs = [BATCH_REF.pack(*_of_batch_ref(ref)) for ref in record.refs]
    raw_lost = struct.pack(f">{len(lost)}q", *lost)
    return b"".join((head, raw_group, raw_id, record.digest, *refs, raw_lost, *of_query, raw_user))


def _checked(record: Checked, copy: Copy) -> bytes:
    raw_group = record.group.encode()
    raw_id = record.tx_id.encode()
    head = CHECKED_HEAD.pack(
        Kind.CHECKED, 0, 0, record.size, record.half_index, record.next_check_at_ms, record.checks, len(raw_group),
        len(raw_id),
    )  # fmt: skip
    return head + raw_group + raw_id


def _parked(record: Parked, copy: Copy) -> bytes:
    raw_group = record.group.encode()
    raw_id = record.tx_id.encode()
    head = PARKED_HEAD.pack(
        Kind.PARKED, 0, 0, record.size, record.half_index, record.checks, record.decided_by, record.because,
        len(raw_group), len(raw_id), 0,
    )  # fmt: skip
    return head + raw_group + raw_id


def _operator_acted(record: OperatorActed, copy: Copy) -> bytes:
    raw = [text.encode() for text in (record.subject, record.name, record.reason, record.peer)]
    head = OPERATOR_ACTED_HEAD.pack(Kind.OPERATOR_ACTED, 0, 0, record.size, record.action, 0, *map(len, raw), 0)
    return b"".join((head, *raw, record.size.to_bytes(OPERATOR_ACTED_END_BYTES, "big")))


def _released(record: Released, copy: Copy) -> bytes:
    head = VERDICT_HEAD.pack(Kind.RELEASED, 0, 0, record.size, 0, 0, 0, 0, len(record.refs))
    return head + b"".join(map(_ref, record.refs))


#: Records that are a payload: an array that begins with their fields (``records.payload_of``).
_PAYLOADS: Final = (
    Kind.TOPIC_SET, Kind.TOPIC_DELETED, Kind.GROUP_SET, Kind.EPOCH_STARTED, Kind.PRODUCER_SET, Kind.GROUP_DELETED,
    Kind.QUERY_FORGOTTEN, Kind.COORDINATOR_EPOCH, Kind.COMPARED, Kind.USER_SET, Kind.SETTING_SET,
    Kind.RESTORED,
)  # fmt: skip


def _payload_of(kind: Kind) -> Callable[[Any, Copy], bytes]:
    def encode(record: Any, copy: Copy) -> bytes:
        return RECORD_HEAD.pack(kind, 0, 0, record.size) + cast(bytes, record.payload)

    return encode


def _base(record: Base, copy: Copy) -> bytes:
    return NUMBER_HEAD.pack(Kind.BASE, 0, 0, record.size, record.previous_end) + record.payload


def _trim(record: Trim, copy: Copy) -> bytes:
    return NUMBER_HEAD.pack(Kind.TRIM, 0, 0, record.size, record.log_start)


#: By type of record: its bytes, three pieces if it contains a message, else one. The caller compares their length with ``size``. A number
#: that does not fit in its field raises ``struct.error``.
ENCODE_BY_TYPE: Final[dict[type, Callable[[Any, Copy], Pieces | list[bytes] | bytes]]] = for_each_kind(
    "ENCODE_BY_TYPE in store/record_codec.py",
    {
        MessageRecord: _message,
        HalfRecord: _message,
        CopiedHalf: _copied_half,
        Committed: _committed,
        RolledBack: _rolled_back,
        Checked: _checked,
        DelayedRecord: _delayed,
        CopiedDelayed: _copied_delayed,
        Released: _released,
        Base: _base,
        Trim: _trim,
        Parked: _parked,
        OperatorActed: _operator_acted,
        HalfBatch: _half_batch,
        CopiedHalfBatch: _half_batch,
        Decided: _decided,
        OffsetsCommitted: _payload_of(Kind.OFFSETS),
        **{TYPE_OF_KIND[kind]: _payload_of(kind) for kind in _PAYLOADS},
    },
)


_Message = tuple[str, int, int, int, int, int, bytes, int, bytes, int, int, bytes, int, bytes]


# --- decode ----------------------------------------------------------------------------------------------------


def _stored(data: bytes, at: int, end: int) -> _Message:
    """The fields of the message that fills ``data[at:end]``, as in ``StoredMessage``. The batch's checksum was already verified."""
    (_, magic, body_crc, queue_id, flag, queue_offset, _, sys_flag, born_time_ms, born_host, store_time_ms,
     store_host, reconsume_times, prepared_offset, body_bytes) = STORED_MESSAGE.unpack_from(data, at)  # fmt: skip
    if magic != MAGIC_V1 or sys_flag & SYS_HOSTS_V6:
        return stored_message.decode(data, at)[0]
    body_start = at + AT_BODY_V4
    body_end = body_start + body_bytes
    topic_end = body_end + 1 + data[body_end]
    raw_topic = data[body_end + 1 : topic_end]
    return (
        _texts[raw_topic], queue_id, queue_offset, flag, sys_flag, born_time_ms, born_host,
        store_time_ms, store_host, reconsume_times, prepared_offset, data[body_start:body_end], body_crc,
        data[topic_end + 2 : end],
    )  # fmt: skip


def _queue_id(data: bytes, message_start: int) -> int:
    at = message_start + AT_QUEUE_ID
    return int.from_bytes(data[at : at + 4], "big", signed=True)


def _read_message(data: bytes, at: int, offset: int, size: int) -> MessageRecord:
    message = _stored(data, at + MESSAGE_AT, at + size)
    topic_id = int.from_bytes(data[at + 8 : at + 12], "big")
    values = common_values(message[-1])
    return MessageRecord(offset, size, topic_id, *message, values[3].decode(), *plain_facts(values))


def _read_half(data: bytes, at: int, offset: int, size: int) -> HalfRecord:
    topic_id, index, count = _half_prefix(data, at)
    message = _stored(data, at + MESSAGE_AT, at + size)
    values = common_values(message[-1])
    pairs, _, group, unique_id, _, _ = values
    tx_id = pairs.get(_HMQ_TX_ID) or unique_id
    return HalfRecord(
        offset, size, topic_id, *message, _texts[group], tx_id.decode(), index, count,
        *half_facts(values), *((coordinator_in(pairs), user_in(pairs)) if pairs else ()),
    )  # fmt: skip


def _read_delayed(data: bytes, at: int, offset: int, size: int) -> DelayedRecord:
    _, _, _, _, topic_id, tag_hash, due_ms, key_hash = DELAYED_HEAD.unpack_from(data, at)
    message = _stored(data, at + DELAYED_MESSAGE_AT, at + size)
    unique_id = (props.find(message[-1], props.UNIQ_KEY) or b"").decode()
    return DelayedRecord(offset, size, topic_id, *message, unique_id, due_ms, tag_hash, key_hash)


def _read_copied_half(data: bytes, at: int, offset: int, size: int) -> CopiedHalf:
    (_, _, _, _, first_offset, half_index, topic_id, index, count, prepared, grace_until, next_check,
     checks) = COPIED_HALF_HEAD.unpack_from(data, at)  # fmt: skip
    message_start = at + COPIED_HALF_MESSAGE_AT
    properties = data[properties_from(data, message_start) : at + size]
    group, tx_id = half_identity(properties)
    half = Half(
        index, half_index, offset, first_offset, topic_id, _queue_id(data, message_start),
        size - COPIED_HALF_MESSAGE_AT, tag_hash_of(properties), key_hash_of(properties), delay_of(properties), None,
        has_marker(properties),
    )  # fmt: skip
    return CopiedHalf(
        offset, size, offset, half, group, tx_id, count, prepared, grace_until, checks, next_check,
        coordinator_of(properties), user_of(properties),
    )  # fmt: skip


def _read_copied_delayed(data: bytes, at: int, offset: int, size: int) -> CopiedDelayed:
    (_, _, _, _, first_offset, half_index, due_ms, key_hash, tag_hash, topic_id) = COPIED_DELAYED_HEAD.unpack_from(
        data, at
    )
    queue_id = _queue_id(data, at + COPIED_DELAYED_MESSAGE_AT)
    return CopiedDelayed(
        offset, size, offset, first_offset, half_index, topic_id, queue_id, size - COPIED_DELAYED_MESSAGE_AT, due_ms,
        tag_hash, key_hash,
    )  # fmt: skip


def _read_ref(data: bytes, at: int) -> Ref:
    (offset, first, half, queue_offset, due_ms, key_hash, message_bytes, topic_id, queue_id,
     tag_hash) = _unpack_ref(data, at)  # fmt: skip
    return Ref(offset, message_bytes, first, half, topic_id, queue_id, queue_offset, due_ms, tag_hash, key_hash)


def _read_refs(data: bytes, at: int, count: int) -> tuple[Ref, ...]:
    if count == 1:
        return (_read_ref(data, at),)
    return tuple([_read_ref(data, at + number * REF_BYTES) for number in range(count)])


def _read_committed(data: bytes, at: int, offset: int, size: int) -> Committed:
    decided_by, user_bytes, group_bytes, id_bytes, count = _verdict_prefix(data, at)
    id_at = at + VERDICT_HEAD.size + group_bytes
    refs_at = id_at + id_bytes
    group = data[id_at - group_bytes : id_at]
    return Committed(
        offset, size, _texts[group], data[id_at:refs_at].decode(), decided_by,
        _read_refs(data, refs_at, count), _last_text(data, at + size, user_bytes),
    )  # fmt: skip


def _read_rolled_back(data: bytes, at: int, offset: int, size: int) -> RolledBack:
    decided_by, user_bytes, group_bytes, id_bytes, halves = _verdict_prefix(data, at)
    id_at = at + VERDICT_HEAD.size + group_bytes
    halves_at = id_at + id_bytes
    indexes = struct.unpack_from(f">{halves}q", data, halves_at)
    return RolledBack(
        offset, size, _texts[data[id_at - group_bytes : id_at]], data[id_at:halves_at].decode(), decided_by, indexes,
        _last_text(data, at + size, user_bytes),
    )  # fmt: skip


def _last_text(data: bytes, end: int, length: int) -> str:
    """The user, which is the last bytes of a record that ends at ``end``."""
    return _texts[data[end - length : end]] if length else ""


class HalfBatchHead(NamedTuple):
    """The fixed fields of a half batch record, original or copy, and the bytes of its texts."""

    first_offset: int
    half_index: int
    #: The next three are 0, the requested grace period, and 0 in an original.
    prepared_at_ms: int
    grace_ms: int
    next_check_at_ms: int
    topic_id: int
    queue_id: int
    messages: int
    checksum: int
    entries_checksum: int
    payload_bytes: int
    checks: int
    index: int  # type: ignore[assignment]  # shadows tuple.index and tuple.count, which are not used
    count: int  # type: ignore[assignment]
    flags: int
    group_bytes: int
    id_bytes: int
    attempt_bytes: int
    #: Of the query; after the other texts.
    query_topic_bytes: int
    stream_bytes: int


def half_batch_head(data: Buffer, at: int) -> HalfBatchHead:
    """The head of the half batch record at ``data[at:]``. It trusts the bytes; the caller checks kind and bounds."""
    _, _, query_topic_bytes, stream_bytes, _, *fields = HALF_BATCH_HEAD.unpack_from(data, at)
    return HalfBatchHead._make((*fields, query_topic_bytes, stream_bytes))


def _of_query(data: bytes, end: int, topic_bytes: int, stream_bytes: int) -> tuple[str, str]:
    """(topic, stream) of the query, which end at ``end``."""
    stream_at = end - stream_bytes
    return _texts[data[stream_at - topic_bytes : stream_at]], _texts[data[stream_at:end]]


def _batch_texts(data: bytes, at: int, size: int, head: HalfBatchHead) -> tuple[str, str, BatchFacts]:
    """(group, transaction id, facts)."""
    payload_end = at + HALF_BATCH_PAYLOAD_AT + head.payload_bytes
    id_at = payload_end + head.group_bytes
    attempt_at = id_at + head.id_bytes
    end, user_bytes = at + size, 0
    if head.flags & _HAS_USER:
        end -= USER_LENGTH_BYTES
        user_bytes = data[end]
    user = _last_text(data, end, user_bytes)
    delayed_bytes = head.messages * (DELAY_BYTES + ENTRY_BYTES) if head.flags & _IS_DELAYED else 0
    facts = BatchFacts(
        data[attempt_at : attempt_at + head.attempt_bytes].decode(), head.messages, head.checksum, head.entries_checksum,
        bool(head.flags & _HAS_KEYS), data[payload_end - delayed_bytes : payload_end],
        *_of_query(data, end - user_bytes, head.query_topic_bytes, head.stream_bytes), user,
    )  # fmt: skip
    return _texts[data[payload_end:id_at]], data[id_at:attempt_at].decode(), facts


def _read_half_batch(data: bytes, at: int, offset: int, size: int) -> HalfBatch:
    head = half_batch_head(data, at)
    payload_at = at + HALF_BATCH_PAYLOAD_AT
    return HalfBatch(
        offset, size, head.topic_id, head.queue_id, head.half_index, *_batch_texts(data, at, size, head), head.index,
        head.count, head.grace_ms, data[payload_at : payload_at + head.payload_bytes],
    )  # fmt: skip


def _read_copied_half_batch(data: bytes, at: int, offset: int, size: int) -> CopiedHalfBatch:
    head = half_batch_head(data, at)
    group, tx_id, facts = _batch_texts(data, at, size, head)
    half = Half(
        head.index, head.half_index, offset, head.first_offset, head.topic_id, head.queue_id, size, 0, 0, 0, facts,
        first_has_marker(data[at + HALF_BATCH_PAYLOAD_AT : at + HALF_BATCH_PAYLOAD_AT + head.payload_bytes]),
    )  # fmt: skip
    return CopiedHalfBatch(
        offset, size, offset, half, group, tx_id, head.count, head.prepared_at_ms, head.grace_ms, head.checks,
        head.next_check_at_ms, None, facts.user,
    )  # fmt: skip


def _read_decided(data: bytes, at: int, offset: int, size: int) -> Decided:
    (_, _, topic_bytes, stream_bytes, _, decided_by, digest_bytes, group_bytes, id_bytes, user_bytes,
     flags, refs, lost) = DECIDED_HEAD.unpack_from(data, at)  # fmt: skip
    id_at = at + DECIDED_HEAD.size + group_bytes
    digest_at = id_at + id_bytes
    refs_at = digest_at + digest_bytes
    lost_at = refs_at + refs * BATCH_REF.size
    return Decided(
        offset, size, _texts[data[id_at - group_bytes : id_at]], data[id_at:digest_at].decode(), decided_by,
        data[digest_at:refs_at], tuple([BatchRef(*found) for found in BATCH_REF.iter_unpack(data[refs_at:lost_at])]),
        struct.unpack_from(f">{lost}q", data, lost_at), bool(flags & _IS_LAST),
        *_of_query(data, at + size - user_bytes, topic_bytes, stream_bytes), _last_text(data, at + size, user_bytes),
    )  # fmt: skip


def _read_checked(data: bytes, at: int, offset: int, size: int) -> Checked:
    _, _, _, _, half_index, next_check, checks, group_bytes, id_bytes = CHECKED_HEAD.unpack_from(data, at)
    id_at = at + CHECKED_HEAD.size + group_bytes
    group = _texts[data[id_at - group_bytes : id_at]]
    return Checked(offset, size, group, data[id_at : id_at + id_bytes].decode(), half_index, checks, next_check)


def _read_parked(data: bytes, at: int, offset: int, size: int) -> Parked:
    (_, _, _, _, half_index, checks, decided_by, because, group_bytes, id_bytes,
     _) = PARKED_HEAD.unpack_from(data, at)  # fmt: skip
    group_at = at + PARKED_HEAD.size
    id_at = group_at + group_bytes
    tx_id = data[id_at : id_at + id_bytes].decode()
    return Parked(offset, size, _texts[data[group_at:id_at]], tx_id, half_index, checks, decided_by, because)


def _read_operator_acted(data: bytes, at: int, offset: int, size: int) -> OperatorActed:
    _, _, _, _, action, _, *lengths, _ = OPERATOR_ACTED_HEAD.unpack_from(data, at)
    texts = []
    start = at + OPERATOR_ACTED_HEAD.size
    for length in lengths:
        texts.append(data[start : start + length].decode())
        start += length
    return OperatorActed(offset, size, action, *texts)


def operator_acted_before(data: Buffer, at: int, offset: int) -> OperatorActed | None:
    """The OPERATOR_ACTED record that ends at ``data[at]``, which is log offset ``offset``; None if another record ends there."""
    size = int.from_bytes(data[at - OPERATOR_ACTED_END_BYTES : at], "big") if at >= _OPERATOR_ACTED_SIZE_MIN else 0
    if not _OPERATOR_ACTED_SIZE_MIN <= size <= at:
        return None
    raw = bytes(data[at - size : at])
    kind, _, _, said, _, _, *lengths, _ = OPERATOR_ACTED_HEAD.unpack_from(raw)
    if kind != Kind.OPERATOR_ACTED or said != size or sum(lengths) + _OPERATOR_ACTED_SIZE_MIN != size:
        return None
    try:
        return _read_operator_acted(raw, 0, offset - size, size)
    except UnicodeDecodeError:
        return None


_OPERATOR_ACTED_SIZE_MIN: Final = OPERATOR_ACTED_HEAD.size + OPERATOR_ACTED_END_BYTES


def _read_released(data: bytes, at: int, offset: int, size: int) -> Released:
    count = _verdict_prefix(data, at)[4]
    return Released(offset, size, _read_refs(data, at + VERDICT_HEAD.size, count))


def _payload_reader(record_type: Callable[..., Any]) -> Callable[[bytes, int, int, int], Any]:
    count = len(record_type.__struct_fields__) - 3  # type: ignore[attr-defined]  # without offset, size and payload

    def read(data: bytes, at: int, offset: int, size: int) -> Any:
        payload = data[at + RECORD_HEAD_BYTES : at + size]
        return record_type(offset, size, *msgspec.msgpack.decode(payload, type=list)[:count], payload)

    return read


def _read_offsets(data: bytes, at: int, offset: int, size: int) -> OffsetsCommitted:
    payload = data[at + RECORD_HEAD_BYTES : at + size]
    return OffsetsCommitted(offset, size, tuple(map(tuple, msgspec.msgpack.decode(payload, type=list)[0])), payload)


def _read_base(data: bytes, at: int, offset: int, size: int) -> Base:
    previous_end = NUMBER_HEAD.unpack_from(data, at)[4]
    return Base(offset, size, previous_end, data[at + NUMBER_HEAD.size : at + size])


def _read_trim(data: bytes, at: int, offset: int, size: int) -> Trim:
    return Trim(offset, size, NUMBER_HEAD.unpack_from(data, at)[4])


_READ: Final[dict[type, Callable[[bytes, int, int, int], Any]]] = for_each_kind(
    "_READ in store/record_codec.py",
    {
        MessageRecord: _read_message,
        HalfRecord: _read_half,
        CopiedHalf: _read_copied_half,
        Committed: _read_committed,
        RolledBack: _read_rolled_back,
        Checked: _read_checked,
        DelayedRecord: _read_delayed,
        CopiedDelayed: _read_copied_delayed,
        Released: _read_released,
        Base: _read_base,
        Trim: _read_trim,
        Parked: _read_parked,
        OperatorActed: _read_operator_acted,
        HalfBatch: _read_half_batch,
        CopiedHalfBatch: _read_copied_half_batch,
        Decided: _read_decided,
        OffsetsCommitted: _read_offsets,
        **{TYPE_OF_KIND[kind]: _payload_reader(TYPE_OF_KIND[kind]) for kind in _PAYLOADS},
    },
)
#: By number: indexing a tuple is cheaper than hashing an enum member.
_READ_BY_KIND: Final = tuple(_READ.get(TYPE_OF_KIND.get(cast(Kind, kind), int)) for kind in range(256))


def decode_records(data: bytes, start: int, end: int, offset: int) -> list[Record]:
    """The records in ``data[start:end]``, the first at log offset ``offset``.

    Only for bytes with a verified checksum: nothing is checked again here.

    Raises:
        WrongVersion: a kind that this version does not know.
        StoreDamaged: the record has an impossible value; it was written so.
    """
    records: list[Record] = []
    add = records.append
    shift = offset - start
    at = start
    while at < end:
        kind, size = kind_and_size(data, at)
        read = _READ_BY_KIND[kind]
        if read is None:
            raise WrongVersion(
                f"record of kind {kind} at log offset {at + shift} is of a later version of halfmq",
                hint="open this store with the version that wrote it",
            )
        try:
            add(read(data, at, at + shift, size))
        except Exception as error:
            raise StoreDamaged(
                f"the record of kind {Kind(kind).name} at log offset {at + shift} cannot be decoded, though the checksum of "
                f"its batch is right, so it was written like this: {type(error).__name__}: {error}",
                hint="open this store with the version that wrote it; if that is this one, keep the directory and report it",
            ) from error
        at += size
    return records
