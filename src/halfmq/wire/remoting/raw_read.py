"""HMQ_RAW_READ, a command of halfmq: the queue entries of a range of one queue, and their messages as they are stored.

    request   code 29015, ext ``consumerGroup``, ``store`` (32 hex digits), ``topic``, ``topicId``, ``queueId``, ``firstOffset``,
              ``endOffset``, ``maxBytes`` (of messages; at most 8 MiB, and the first message always fits); ``storedChecksums``: 1;
              ``continues``: 1
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
from typing import Annotated, Final

from msgspec import Meta, field

from halfmq.errors import ProtocolError
from halfmq.model.checksum import crc32
from halfmq.model.half_batch import ITEM_HEAD_BYTES
from halfmq.model.layout import ITEM_HEAD
from halfmq.model.records import BATCHED, HALF_BATCH_PAYLOAD_AT, MESSAGE_AT
from halfmq.model.text_fields import Count32, Count64, Fields, Int32, NotEmpty
from halfmq.wire.remoting.fields import read_answer_fields

EXT_NEXT: Final = "nextBeginOffset"
EXT_STORE: Final = "store"
#: Before each message but the first of a run: the head of its record.
BETWEEN_BYTES: Final = MESSAGE_AT
#: Length of the checksum at the start of the body.
CHECKSUM_BYTES: Final = 4
#: More than the head of a frame with these fields, and the checksum.
HEAD_BYTES: Final = 1_024

_CHECKSUM: Final = struct.Struct(">I")
#: Message bytes in an entry of a payload (``model.half_batch.ENTRY``).
_SIZE_AT: Final = 4


class RawReadFields(Fields, gc=False, omit_defaults=True):
    """A request."""

    group: str = field(name="consumerGroup")
    store: str
    topic: NotEmpty
    topic_id: Count64
    queue_id: Count32
    first: Count64 = field(name="firstOffset")
    end: Count64 = field(name="endOffset")
    bytes_max: Count64 = field(name="maxBytes")
    #: 1: return whole half batches with the checksums that are stored with them.
    stored_checksums: Int32 = 0
    #: 1: begin where the response before ended, not at ``first``.
    continues: Int32 = 0


class FoundFields(Fields, gc=False, omit_defaults=True):
    """Ext fields of a response with messages."""

    entries: Count64
    runs: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    next_offset: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] = field(name="nextBeginOffset")
    min_offset: Count64 | None = None
    log_start: Count64 | None = None
    position: Count64 | None = None
    #: 1: the broker accepts requests that continue.
    continues: Int32 = 0
    #: Runs that are all messages of a half batch.
    half_batches: Count64 = 0


def complete_frame(
    head: bytes, data: bytearray, messages_at: int = 0, whole: Sequence[tuple[int, int]] = ()
) -> memoryview:
    """The response with messages as a complete frame, in the memory of ``data``: ``HEAD_BYTES`` free bytes, entries, runs, messages.

    ``head``: of a frame with ``body_bytes(data)`` of body, at most ``HEAD_BYTES - CHECKSUM_BYTES`` long. ``whole``: start and end in
    ``data`` of each whole half batch; then messages begin at ``messages_at``, and the checksum of the others is set before them.
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
    found = read_answer_fields(FoundFields, ext, "a response to HMQ_RAW_READ")
    if not found.half_batches <= found.runs <= found.entries:
        raise ProtocolError(
            f"a response to HMQ_RAW_READ has {found.entries} entries, {found.runs} runs, {found.half_batches} half batches"
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
