"""HMQ_RAW_READ, a command of halfmq: the queue entries of a range of one queue, and their messages as they are stored.

    request   code 29015, ext ``consumerGroup``, ``store`` (32 hex digits), ``topic``, ``topicId``, ``queueId``, ``firstOffset``,
              ``endOffset``, ``maxBytes`` (of messages; at most 8 MiB, and the first message always fits)
    response  code 0   ext ``entries`` (their number, N), ``runs`` (R), ``nextBeginOffset``, ``minOffset``, ``logStart``, ``position``; body:
                         CRC-32 of the rest of the body 4
                         queue entries, N times 48 (docs/storage-format.md)
                         messages in each run, R times 4; N in total
                         N stored messages, in the same order; an entry states the length of its message. Before each but the first of a
                         run are 16 bytes to skip
              17  the topic does not exist, or has another id;  22  this is another store (ext ``store``)
              19  the queue ends at ``nextBeginOffset``, at or before ``firstOffset``
              21  the messages before ``nextBeginOffset`` are past retention
              1   with ``nextBeginOffset``: the message there is damaged; without: as any other request
              2   ask again in a moment

A run is messages whose records follow one another in the log, which one copy takes, with the heads of the records between them. Whoever
reads it should compare the log offsets of its entries: the broker only looks at the first and the last record.

Messages are not patched. Queue offsets are ``firstOffset`` and the following ones; store time, and whether the message was a half, are in
its entry. The request for the next messages can be sent as soon as the header of a response is there. RocketMQ, and halfmq before this
command, respond with 3. Pure functions.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from halfmq.errors import ProtocolError
from halfmq.model.checksum import crc32
from halfmq.model.records import MESSAGE_AT

EXT_STORE: Final = "store"
EXT_ENTRIES: Final = "entries"
EXT_RUNS: Final = "runs"
EXT_NEXT: Final = "nextBeginOffset"
EXT_MIN: Final = "minOffset"
EXT_LOG_START: Final = "logStart"
EXT_POSITION: Final = "position"
_NUMBERS: Final = ("topicId", "queueId", "firstOffset", "endOffset", "maxBytes")
#: Before each message but the first of a run: the head of its record.
BETWEEN_BYTES: Final = MESSAGE_AT
#: Length of the checksum at the start of the body.
CHECKSUM_BYTES: Final = 4
#: More than the head of a frame with these fields, and the checksum.
HEAD_BYTES: Final = 1_024
#: Numbers have at most 19 digits (64 bits); longer ones are not parsed.
_DIGITS_MAX: Final = 19

_CHECKSUM: Final = struct.Struct(">I")


class RawReadFields(NamedTuple):
    """A request."""

    group: str
    store: str
    topic: str
    topic_id: int
    queue_id: int
    first: int
    end: int
    bytes_max: int


class FoundFields(NamedTuple):
    """Ext fields of a response with messages."""

    entries: int
    runs: int
    next_offset: int


def encode_request_fields(fields: RawReadFields) -> dict[str, str]:
    """Ext fields of the request."""
    numbers = map(str, fields[3:])
    return {"consumerGroup": fields.group, EXT_STORE: fields.store, "topic": fields.topic} | dict(
        zip(_NUMBERS, numbers, strict=True)
    )


def decode_request_fields(ext: Mapping[str, str]) -> RawReadFields | str:
    """The request, or a text that says what is wrong with it. The caller checks ranges."""
    numbers = []
    for name in _NUMBERS:
        text = ext.get(name, "")
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
            return f"{name} {text[:40]!r}: not a number"
        numbers.append(int(text))
    topic = ext.get("topic", "")
    if not topic:
        return "topic is missing"
    return RawReadFields(ext.get("consumerGroup", ""), ext.get(EXT_STORE, ""), topic, *numbers)


def complete_frame(head: bytes, data: bytearray) -> memoryview:
    """The response with messages as a complete frame, in the memory of ``data``: ``HEAD_BYTES`` free bytes, entries, runs, messages.

    ``head``: of a frame with ``body_bytes(data)`` of body, at most ``HEAD_BYTES - CHECKSUM_BYTES`` long.
    """
    view = memoryview(data)
    body_at = HEAD_BYTES - CHECKSUM_BYTES
    start = body_at - len(head)
    if start < 0:
        raise ProtocolError(f"a head of {len(head)} bytes; the maximum is {body_at}")
    _CHECKSUM.pack_into(data, body_at, crc32(view[HEAD_BYTES:]))
    data[start:body_at] = head
    return view[start:]


def body_bytes(data: bytearray) -> int:
    """Length of the body of the response."""
    return len(data) - HEAD_BYTES + CHECKSUM_BYTES


def decode_found(ext: Mapping[str, str]) -> FoundFields:
    """Ext fields of a response with code 0.

    Raises:
        ProtocolError: a field is missing or invalid.
    """
    if EXT_RUNS not in ext:
        raise ProtocolError(
            "the broker is an earlier version of halfmq, whose raw reads have no runs: upgrade it first"
        )
    try:
        found = FoundFields(int(ext[EXT_ENTRIES]), int(ext[EXT_RUNS]), int(ext[EXT_NEXT]))
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"a response to HMQ_RAW_READ is malformed: {error!r}") from error
    if not 0 < found.runs <= found.entries or found.next_offset <= 0:
        raise ProtocolError(
            f"a response to HMQ_RAW_READ has {found.entries} entries, {found.runs} runs, next offset {found.next_offset}"
        )
    return found


def is_intact(body: memoryview) -> bool:
    """Whether the body of a response has the checksum that it states."""
    return len(body) > CHECKSUM_BYTES and crc32(body[CHECKSUM_BYTES:]) == _CHECKSUM.unpack_from(body)[0]
