"""The payload of a half batch: many half messages for one queue, as one part of one record.

    item | item | ... | delay | delay | ... | entry | entry | ...

An *item* is one message. Its head looks like the head of a record, of kind BATCHED, so that a queue entry can point to it and
readers find the message behind it as they do behind a record:

    ``layout.ITEM_HEAD``, with the bytes from the start of the record to the item, and its number | stored message

An *entry* (``layout.PAYLOAD_ENTRY``) is what the queue entry of the message will contain, so that a verdict need not read the messages.

A *delay* of 8 bytes says when the message becomes visible, as ``message_facts.delay_in`` reads it from the properties. Either all messages
of a half batch have one, or none has, and the column is absent. A verdict makes each of them a delayed message like any other.

The sender builds the payload, and the record contains it as it came: nothing in it depends on where the record is (fields that do,
such as the queue offset, are 0, and readers take them from the queue entry). So the broker does not build the messages, but it
verifies all of them (``problem_of``): a wrong length would break every reader of the queue.

Numbers are big-endian. Pure functions.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.model.checksum import crc32
from halfmq.model.ids import hash64
from halfmq.model.layout import ITEM, ITEM_HEAD, PAYLOAD_ENTRY
from halfmq.model.message_facts import common_values, delay_in, has_marker, tag_hashes
from halfmq.model.properties import HMQ_COORDINATOR, HMQ_USER
from halfmq.model.records import BATCHED, HALF_BATCH_PAYLOAD_AT, Half, HalfBatch
from halfmq.model.steps import Steps
from halfmq.model.stored_message import (
    MAGIC_V1,
    SYS_COMPRESSED,
    SYS_COMPRESSION_TYPE_MASK,
    StoredMessage,
    encode,
    properties_from,
    size_of,
)

#: Bytes of messages that are verified between two places where it may be interrupted: at most 5 ms, for two tags of 32 KB.
_BYTES_AT_ONCE: Final = 65_536
ITEM_HEAD_BYTES: Final = ITEM_HEAD.size
ENTRY_BYTES: Final = PAYLOAD_ENTRY.size
DELAY_BYTES: Final = 8
#: In the number of messages of a run of a raw read (``wire.remoting.raw_read``): these are all messages of a half batch.
WHOLE: Final = 1 << 31
#: What is the same in all messages of a payload, in few values: kind, flags and reserved; queue and physical offset; store time and host;
#: reconsume times and prepared offset. And what differs.
_constants: Final = ITEM.only(
    kind="I", magic="I", queue_id="i", queue_offset="16s", store_time_ms="16s", reconsume_times="12s"
).unpack_from
_variables: Final = ITEM.only(
    "item_bytes", "from_start", "number", "total", body_crc="I", sys_flag="I", body_bytes="i"
).unpack_from
#: An entry with the halves of the key hash, high and low.
_UNSIGNED_ENTRY: Final = PAYLOAD_ENTRY.only("from_start", "message_bytes", "tag_hash", key_hash="II")
_delay_at: Final = struct.Struct(">q").unpack_from
_FLAGS_ALLOWED: Final = SYS_COMPRESSED | SYS_COMPRESSION_TYPE_MASK
_HMQ_COORDINATOR: Final = HMQ_COORDINATOR.encode()
_HMQ_USER: Final = HMQ_USER.encode()
_EMPTY_MESSAGE: Final = StoredMessage("", 0, 0, 0, 0, 0, b"", 0, b"", 0, 0, b"", 0, b"")


class HalfMessage(NamedTuple):
    """One message to put in a half batch. ``properties``: the property string, without those that make a half."""

    flag: int
    #: Only the compression bits.
    sys_flag: int
    body: bytes
    properties: bytes


def build_payload(
    messages: Iterable[HalfMessage],
    *,
    topic: str,
    queue_id: int,
    born_time_ms: int,
    born_host: bytes,
    store_host: bytes,
    delayed: bool = False,
) -> tuple[bytes, int]:
    """(payload, number of messages). ``store_host``: the broker's address as its other messages state it. ``delayed``: all have delays.

    Hosts are 4 bytes of IP and an int32 port. The sum of the payload (``crc32``) goes beside it in the request.
    """
    items: list[bytes] = []
    delays: list[bytes] = []
    entries: list[bytes] = []
    at = HALF_BATCH_PAYLOAD_AT
    for number, (flag, sys_flag, body, properties) in enumerate(messages):
        message = _EMPTY_MESSAGE._replace(
            topic=topic, queue_id=queue_id, flag=flag, sys_flag=sys_flag, born_time_ms=born_time_ms,
            born_host=born_host, store_host=store_host, body=body, body_crc=crc32(body) & 0x7FFFFFFF,
            properties=properties,
        )  # fmt: skip
        size = size_of(len(topic), len(body), len(properties))
        pairs, _, _, unique_id, tags, _ = common_values(properties)
        items.append(ITEM_HEAD.pack(BATCHED, 0, 0, ITEM_HEAD_BYTES + size, at, number))
        items += encode(message, 0)
        entries.append(PAYLOAD_ENTRY.pack(at, size, tag_hashes[tags], hash64(unique_id) if unique_id else 0))
        if delayed:
            delays.append(delay_in(pairs).to_bytes(DELAY_BYTES, "big", signed=True))
        at += ITEM_HEAD_BYTES + size
    return b"".join(items + delays + entries), len(entries)


class Verified(NamedTuple):
    """What the broker needs to know of a correct payload."""

    #: Whether a message has KEYS, which the key index contains.
    has_keys: bool
    #: CRC-32 of the entries.
    entries_checksum: int


def verification(
    payload: bytes,
    messages: int,
    *,
    topic: str,
    queue_id: int,
    store_host: bytes,
    body_bytes_max: int,
    delayed: bool = False,
) -> Steps[Verified | str]:
    """Verify every message and entry of a payload from a peer. The result is the problem as a sentence if there is one.

    ``delayed``: all messages have delays. About 2 us for each message, 4 us with delays.
    """
    entries_at = len(payload) - messages * ENTRY_BYTES
    items_end = entries_at - messages * DELAY_BYTES if delayed else entries_at
    if messages < 1 or items_end < messages * ITEM.size:
        return f"{len(payload)} bytes cannot be {messages} messages"
    tail = bytes((len(topic),)) + topic.encode()
    tail_bytes = len(tail)
    if tail_bytes > limits.TOPIC_CHARS_MAX + 1:
        return f"topic {topic!r} is too long for a half batch"
    constants = (BATCHED << 24, MAGIC_V1, queue_id, bytes(16), bytes(8) + store_host, bytes(12))
    raw_entries = payload[entries_at:]
    raw_delays = payload[items_end:entries_at]
    keys_found = 0
    at = next_yield = 0
    # The loop is the cost of a half batch: constants are compared as one tuple, and nothing is looked up twice.
    for number, (entry_at, entry_bytes, tag_hash, high, low) in enumerate(_UNSIGNED_ENTRY.iter_unpack(raw_entries)):
        if at >= next_yield:
            next_yield = at + _BYTES_AT_ONCE
            yield
        body_at = at + ITEM.size
        if body_at > items_end:
            return f"message {number} ends beyond the messages"
        item_bytes, from_start, said_number, total, body_crc, sys_flag, body_bytes = _variables(payload, at)
        end = at + item_bytes
        body_end = body_at + body_bytes
        tail_end = body_end + tail_bytes
        if (
            _constants(payload, at) != constants or said_number != number or from_start != HALF_BATCH_PAYLOAD_AT + at
            or total != item_bytes - ITEM_HEAD_BYTES or sys_flag & ~_FLAGS_ALLOWED
        ):  # fmt: skip
            return _head_problem(payload, at, number, store_host)
        if not 0 <= body_bytes <= body_bytes_max:
            return f"message {number} has a body of {body_bytes} bytes; at most {body_bytes_max}"
        if end > items_end or tail_end + 2 > end or payload[body_end:tail_end] != tail:
            return f"message {number} has a wrong length, or another topic"
        if payload[tail_end] << 8 | payload[tail_end + 1] != end - tail_end - 2:
            return f"message {number} has a wrong length of its properties"
        if crc32(payload[body_at:body_end]) & 0x7FFFFFFF != body_crc:
            return f"message {number}: its body does not have the CRC that it states"
        if entry_at != from_start or entry_bytes != total:
            return f"message {number}: its entry has another place or length"
        properties = payload[tail_end + 2 : end]
        pairs, tran_msg, _, unique_id, tags, keys = common_values(properties)
        if keys:
            keys_found += keys.count(b" ") + 1
        low_is, high_is = 0, 0
        if unique_id:  # ``hash64``, unsigned
            low_is = crc32(unique_id)
            high_is = crc32(unique_id, low_is ^ 0xA5A5A5A5)
        if low != low_is or high != high_is or tag_hash != tag_hashes[tags]:
            return f"message {number}: its entry has another tag hash or key hash than its properties"
        if delayed or pairs or tran_msg or not properties.isascii() or len(properties) > limits.PROPERTIES_BYTES_MAX:
            problem = _properties_problem(properties, tran_msg, pairs)
            problem = problem or _delay_problem(delay_in(pairs), raw_delays, number)
            if problem:
                return f"message {number}: {problem}"
        at = end
    if at != items_end:
        return "there are bytes between the last message and what follows the messages"
    if keys_found > limits.REQUEST_KEYS_MAX:
        return f"the messages have {keys_found} keys together; at most {limits.REQUEST_KEYS_MAX}"
    return Verified(keys_found > 0, crc32(raw_entries))


def _head_problem(payload: bytes, at: int, number: int, store_host: bytes) -> str:
    if _constants(payload, at)[4] != bytes(8) + store_host:
        return f"message {number} has another store host than this broker, or a store time"
    return f"message {number} has a wrong head"


def _properties_problem(properties: bytes, tran_msg: bytes, pairs: Mapping[bytes, bytes]) -> str:
    if len(properties) > limits.PROPERTIES_BYTES_MAX:
        return f"properties of {len(properties)} bytes; at most {limits.PROPERTIES_BYTES_MAX}"
    try:
        properties.decode()
    except UnicodeDecodeError:
        return "its properties are not UTF-8"
    if _HMQ_COORDINATOR in pairs:  # it would be a transaction that anybody settles
        return f"a half batch has no coordinator: send the messages with {HMQ_COORDINATOR} as single halves"
    if _HMQ_USER in pairs:
        return f"{HMQ_USER} is written by the broker: leave it out"
    return "the messages of a half batch have no TRAN_MSG" if tran_msg else ""


def _delay_problem(delay: int, stated: bytes, number: int) -> str:
    """``stated``: the column of delays; empty if the messages have none."""
    if not stated:
        return "it has a delay, and its half batch is not said to have delayed messages" if delay else ""
    if not delay:
        return "it has no delay, and its half batch is said to have only delayed messages"
    # Read, not written: properties may say a delay that needs more than 8 bytes.
    if _delay_at(stated, number * DELAY_BYTES)[0] != delay:
        return f"its properties say a delay of {delay}, and the half batch another one"
    return ""


def delayed_entries_of(payload: bytes, messages: int) -> bytes:
    """Delays and entries at the end of a verified payload whose messages have delays."""
    return payload[len(payload) - messages * (DELAY_BYTES + ENTRY_BYTES) :]


def delays_in(delayed_entries: bytes) -> tuple[int, ...]:
    """The delay of each message, as ``message_facts.delay_in``."""
    messages = len(delayed_entries) // (DELAY_BYTES + ENTRY_BYTES)
    return struct.unpack_from(f">{messages}q", delayed_entries)


class DelayedItem(NamedTuple):
    """A message of a half batch with delays. ``at``: bytes from the start of the record to the item."""

    delay: int
    at: int
    message_bytes: int
    tag_hash: int
    key_hash: int


def delayed_items(delayed_entries: bytes) -> Iterator[DelayedItem]:
    """What ``delayed_entries_of`` says, message by message."""
    delays = delays_in(delayed_entries)
    entries = PAYLOAD_ENTRY.iter_unpack(delayed_entries[len(delays) * DELAY_BYTES :])
    return (DelayedItem(delay, *entry) for delay, entry in zip(delays, entries, strict=True))


def first_has_marker(payload: bytes) -> bool:
    """Whether the first message of a payload has a marker, and thus all of them: they are one transaction. False if it is no payload."""
    try:
        properties_at = properties_from(payload, ITEM_HEAD_BYTES)
    except struct.error:
        return False
    return has_marker(payload[properties_at : int.from_bytes(payload[4:8], "big")])


def half_of(record: HalfBatch) -> Half:
    """A half batch that was prepared, as it is while undecided."""
    return Half(
        record.index, record.half_index, record.offset, record.offset, record.topic_id, record.queue_id, record.size, 0,
        0, 0, record.batch, first_has_marker(record.payload),
    )  # fmt: skip


def item_places(payload: bytes, messages: int) -> Iterator[tuple[int, int]]:
    """(bytes from the start of the record to the item, message bytes) of each message of a verified payload."""
    for entry_at, message_bytes, _, _ in PAYLOAD_ENTRY.iter_unpack(payload[len(payload) - messages * ENTRY_BYTES :]):
        yield entry_at, message_bytes
