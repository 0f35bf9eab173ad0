"""HMQ_RAW_READ, a command of halfmq: the queue entries of a range of one queue, and their messages as they are stored.

    request   code 29015, ext ``consumerGroup``, ``store`` (32 hex digits), ``topic``, ``topicId``, ``queueId``, ``firstOffset``,
              ``endOffset``, ``maxBytes`` (of messages; at most 8 MiB, and the first message always fits); ``storedChecksums``: 1; ``continues``: 1
    response  code 0   ext ``entries`` (their number, N), ``runs`` (R), ``nextBeginOffset``, ``minOffset``, ``logStart``, ``position``, and
                       ``continues`` (1: the broker knows that field); body:
                         CRC-32 of the rest of the body 4
                         queue entries, N times 48 (docs/storage-format.md)
                         messages in each run, R times 4; N in total
                         N stored messages, in the same order; an entry states the length of its message. Before each but the first of a
                         run are 16 bytes to skip
                       with ext ``halfBatches`` (H > 0), only if ``storedChecksums`` was 1: in H of the numbers of a run the highest bit is
                       set. These runs are all messages of a half batch. Body:
                         CRC-32 of the rest of the body before the messages 4
                         queue entries, and numbers of messages, as above
                         checksum that is stored with each of the half batches, H times 4 (see ``half_batch_checksum``)
                         CRC-32 of the messages of all other runs, with what is between them 4
                         messages, as above
              17  the topic does not exist, or has another id;  22  this is another store (ext ``store``)
              19  the queue ends at ``nextBeginOffset``, at or before ``firstOffset``
              21  the messages before ``nextBeginOffset`` are past retention
              1   with ``nextBeginOffset``: the message there is damaged; without: as any other request
              2   ask again in a moment

A run is messages whose records follow one another in the log, which one copy takes, with the heads of the records between them. Whoever
reads it should compare the log offsets of its entries: the broker only looks at the first and the last record.

Messages are not patched. Queue offsets are ``firstOffset`` and the following ones; store time, and whether the message was a half, are in
its entry. RocketMQ, and halfmq before this command, respond with 3.

A request with ``continues`` begins where the response to the raw read before it on the same connection ended, whatever its
``firstOffset``; that must have been of the same topic and queue. So a reader has several requests in flight without guessing offsets. If
that response ended at ``endOffset`` or later, the response is code 19; if it had no messages, 2.

Pure functions.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from halfmq.errors import ProtocolError
from halfmq.model.checksum import crc32
from halfmq.model.half_batch import ITEM_HEAD, ITEM_HEAD_BYTES
from halfmq.model.records import BATCHED, HALF_BATCH_PAYLOAD_AT, MESSAGE_AT

EXT_STORE: Final = "store"
EXT_ENTRIES: Final = "entries"
EXT_RUNS: Final = "runs"
EXT_HALF_BATCHES: Final = "halfBatches"
EXT_NEXT: Final = "nextBeginOffset"
EXT_MIN: Final = "minOffset"
EXT_LOG_START: Final = "logStart"
EXT_POSITION: Final = "position"
EXT_CONTINUES: Final = "continues"
_EXT_STORED_CHECKSUMS: Final = "storedChecksums"
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
#: Message bytes in an entry of a payload (``model.half_batch.ENTRY``).
_SIZE_AT: Final = 4


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
    with_stored_checksums: bool = False
    #: Begin where the response before ended, not at ``first``.
    continues: bool = False


class FoundFields(NamedTuple):
    """Ext fields of a response with messages."""

    entries: int
    runs: int
    next_offset: int
    #: Runs that are all messages of a half batch.
    half_batches: int = 0
    #: Whether the broker accepts requests that continue.
    continues: bool = False


def encode_request_fields(fields: RawReadFields) -> dict[str, str]:
    """Ext fields of the request."""
    ext = {"consumerGroup": fields.group, EXT_STORE: fields.store, "topic": fields.topic}
    ext |= zip(_NUMBERS, map(str, fields[3 : 3 + len(_NUMBERS)]), strict=True)
    if fields.with_stored_checksums:
        ext[_EXT_STORED_CHECKSUMS] = "1"
    if fields.continues:
        ext[EXT_CONTINUES] = "1"
    return ext


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
    topic_id, queue_id, first, end, bytes_max = numbers
    return RawReadFields(
        ext.get("consumerGroup", ""), ext.get(EXT_STORE, ""), topic, topic_id, queue_id, first, end, bytes_max,
        with_stored_checksums=ext.get(_EXT_STORED_CHECKSUMS) == "1", continues=ext.get(EXT_CONTINUES) == "1",
    )  # fmt: skip


def complete_frame(
    head: bytes, data: bytearray, messages_at: int = 0, whole: Sequence[tuple[int, int]] = ()
) -> memoryview:
    """The response with messages as a complete frame, in the memory of ``data``: ``HEAD_BYTES`` free bytes, entries, runs, messages.

    ``head``: of a frame with ``body_bytes(data)`` of body, at most ``HEAD_BYTES - CHECKSUM_BYTES`` long. ``whole``: start and end in ``data``
    of each whole half batch; then messages begin at ``messages_at``, and the checksum of the others is set before them.
    """
    view = memoryview(data)
    body_at = HEAD_BYTES - CHECKSUM_BYTES
    start = body_at - len(head)
    if start < 0:
        raise ProtocolError(f"a head of {len(head)} bytes; the maximum is {body_at}")
    summed = view[HEAD_BYTES:]
    if whole:
        _CHECKSUM.pack_into(data, messages_at - CHECKSUM_BYTES, checksum_beside(view, messages_at, whole))
        summed = view[HEAD_BYTES:messages_at]
    _CHECKSUM.pack_into(data, body_at, crc32(summed))
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
        found = FoundFields(
            int(ext[EXT_ENTRIES]), int(ext[EXT_RUNS]), int(ext[EXT_NEXT]), int(ext.get(EXT_HALF_BATCHES, 0)),
            ext.get(EXT_CONTINUES) == "1",
        )  # fmt: skip
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"a response to HMQ_RAW_READ is malformed: {error!r}") from error
    if not 0 <= found.half_batches <= found.runs <= found.entries or found.runs == 0 or found.next_offset <= 0:
        raise ProtocolError(
            f"a response to HMQ_RAW_READ has {found.entries} entries, {found.runs} runs, {found.half_batches} half batches, "
            f"next offset {found.next_offset}"
        )
    return found


def is_intact(body: memoryview) -> bool:
    """Whether the body of a response has the checksum that it states."""
    return len(body) > CHECKSUM_BYTES and crc32(body[CHECKSUM_BYTES:]) == _CHECKSUM.unpack_from(body)[0]


def checksum_beside(data: memoryview, messages_at: int, whole: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of the messages from ``messages_at`` on that are not in ``whole``, which are the starts and ends of half batches."""
    found, at = 0, messages_at
    for start, end in whole:
        found = crc32(data[at:start], found)
        at = end
    return crc32(data[at:], found)


def half_batch_checksum(messages: memoryview, entries: bytes) -> int:
    """What is stored with a half batch: the checksum of its payload (``model.half_batch``), which begins with the head of the first message
    and ends with ``entries``. ``messages``: all of them, with the heads between them.
    """
    (first_bytes,) = _CHECKSUM.unpack_from(entries, _SIZE_AT)
    head = ITEM_HEAD.pack(BATCHED, 0, 0, ITEM_HEAD_BYTES + first_bytes, HALF_BATCH_PAYLOAD_AT, 0)
    return crc32(entries, crc32(messages, crc32(head)))
