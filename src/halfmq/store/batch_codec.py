"""Encoding and validation of a batch: header, records, padding.

The checksum covers the header (with the checksum as zero) and every byte of the records except message bodies. A body is covered
by the CRC that its message states, which is among the checksummed bytes. Each byte is thus checksummed once: the body when it was
received, the rest here.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from halfmq.errors import InvariantViolated
from halfmq.model.checksum import crc32
from halfmq.model.placement import aligned
from halfmq.model.records import BATCH_HEADER_BYTES, Kind, Record
from halfmq.model.stored_message import AT_BODY_V4, SYS_HOSTS_V6, body_fields, body_place
from halfmq.store.layout import BATCH_CHECKSUM_AT, BATCH_HEADER, BATCH_MAGIC, BATCH_VERSION
from halfmq.store.record_codec import (
    ENCODE_BY_TYPE,
    MESSAGE_AT_BY_KIND,
    Buffer,
    Copy,
    decode_records,
    kind_and_size,
)

_PADDING: Final = (b"", b"\0", b"\0\0", b"\0\0\0", b"\0\0\0\0", b"\0" * 5, b"\0" * 6, b"\0" * 7)
_BODY_CRC_MASK: Final = 0x7FFFFFFF
_NO_CHECKSUM: Final = b"\0\0\0\0"
#: Average bytes of a piece from which on a call for each piece is cheaper than joining them.
_LARGE_BYTES: Final = 4_096


def encode_batch(
    records: Sequence[Record], *, broker_time_ms: int, epoch: int, durable_position: int, copy: Copy
) -> bytes:
    """The bytes of the whole batch. It starts 64 bytes before its first record.

    Raises:
        InvariantViolated: the offset or the size of a record is wrong.
    """
    place = records[0].offset
    start = place - BATCH_HEADER_BYTES
    parts: list[bytes] = [b""]
    summed: list[bytes] = [b""]
    for record in records:
        pieces = ENCODE_BY_TYPE[type(record)](record, copy)
        # The check stands in both branches: where records of several types pass, Python loads an attribute ten times slower.
        if type(pieces) is tuple:
            before, body, after = pieces
            parts += pieces
            summed += (before, after)
            size = len(before) + len(body) + len(after)
            if record.offset != place or record.size != size:
                raise _misplaced(record, place, size)
        elif type(pieces) is list:  # of a half batch, which is not joined twice
            parts += pieces
            summed += pieces
            size = sum(map(len, pieces))
            if record.offset != place or record.size != size:
                raise _misplaced(record, place, size)
        else:
            parts.append(pieces)  # type: ignore[arg-type]
            summed.append(pieces)  # type: ignore[arg-type]
            size = len(pieces)
            if record.offset != place or record.size != size:
                raise _misplaced(record, place, size)
        place += size
    length = place - start
    padded = aligned(place) - start
    fields = (
        BATCH_MAGIC, BATCH_VERSION, 0, 0, len(records), padded, start, durable_position, broker_time_ms, epoch, length,
    )  # fmt: skip
    summed[0] = BATCH_HEADER.pack(*fields, 0)
    parts[0] = BATCH_HEADER.pack(*fields, _sum(summed, length))
    parts.append(_PADDING[padded - length])
    return b"".join(parts)


def _sum(pieces: Sequence[bytes], length: int) -> int:
    """CRC-32 of the joined pieces. ``length``: about their bytes; joining many is cheaper than many calls, unless they are large."""
    if length < _LARGE_BYTES * len(pieces):
        return crc32(b"".join(pieces))
    checksum = 0
    for piece in pieces:
        checksum = crc32(piece, checksum)
    return checksum


def _misplaced(record: Record, place: int, size: int) -> InvariantViolated:
    name = type(record).__name__
    if record.offset != place:
        return InvariantViolated(f"{name} says log offset {record.offset}, it would lie at {place}")
    return InvariantViolated(f"{name} at {place} says it takes {record.size} bytes, encoded it is {size}")


class Header(NamedTuple):
    """Header fields. ``length`` in bytes with header and padding, ``data_length`` without padding."""

    offset: int
    length: int
    data_length: int
    record_count: int
    #: Highest position known to be durable when the batch was written.
    durable_position: int
    broker_time_ms: int
    epoch: int
    checksum: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class NotABatch(NamedTuple):
    """The bytes are not a complete batch. ``why``: a sentence for people."""

    why: str


def read_header(buffer: Buffer, at: int, offset: int, space: int) -> Header | NotABatch:
    """The header at ``buffer[at:]``, if it states log offset ``offset`` and a length of at most ``space`` bytes.

    ``buffer`` may end after the header; ``space`` is the number of bytes that exist.
    """
    if space < BATCH_HEADER_BYTES or len(buffer) - at < BATCH_HEADER_BYTES:
        return NotABatch("too little space for a batch header")
    (magic, version, flags, reserved, count, length, own, durable, time_ms, epoch, data_length,
     checksum) = BATCH_HEADER.unpack_from(buffer, at)  # fmt: skip
    if magic != BATCH_MAGIC:
        return NotABatch("no batch begins here")
    if version != BATCH_VERSION or flags or reserved:
        return NotABatch(f"the batch header is of version {version}, flags {flags}")
    if own != offset:
        return NotABatch(f"the batch header states log offset {own}")
    if length > space or not BATCH_HEADER_BYTES < data_length <= length < data_length + 8:
        return NotABatch(f"the batch header says {length} bytes, which is impossible")
    return Header(offset, length, data_length, count, durable, time_ms, epoch, checksum)


def examine(buffer: Buffer, at: int, offset: int, space: int) -> Header | NotABatch:
    """Validate the batch at ``buffer[at:]``: header, checksum, record lengths, and the CRC of every body."""
    header = read_header(buffer, at, offset, min(space, len(buffer) - at))
    if isinstance(header, NotABatch):
        return header
    end = at + header.data_length
    summed_from = at + BATCH_HEADER_BYTES
    checksum = crc32(buffer[at : at + BATCH_CHECKSUM_AT])
    checksum = crc32(_NO_CHECKSUM, checksum)
    checksum = crc32(buffer[at + BATCH_CHECKSUM_AT + 4 : summed_from], checksum)
    place = summed_from
    count = 0
    rotten = 0
    while place < end:
        if end - place < 8:
            return NotABatch("a record ends beyond its batch")
        kind, size = kind_and_size(buffer, place)
        if size < 8 or place + size > end:
            return NotABatch("a record ends beyond its batch")
        message_at = MESSAGE_AT_BY_KIND[kind]
        if message_at:
            body_start = place + message_at + AT_BODY_V4
            if body_start > end:
                return NotABatch("a message ends beyond its batch")
            crc, sys_flag, length = body_fields(buffer, place + message_at)
            if sys_flag & SYS_HOSTS_V6:
                try:
                    body_start, body_end, crc = body_place(buffer, place + message_at)
                except struct.error:
                    return NotABatch("a message ends beyond its batch")
            else:
                body_end = body_start + length
            if not body_start <= body_end <= place + size:
                return NotABatch("a body ends beyond its record")
            checksum = crc32(buffer[summed_from:body_start], checksum)
            if crc32(buffer[body_start:body_end]) & _BODY_CRC_MASK != crc:
                rotten = rotten or place
            summed_from = body_end
        place += size
        count += 1
    if crc32(buffer[summed_from:end], checksum) != header.checksum:
        return NotABatch("the checksum of the batch is wrong")
    if rotten:
        return NotABatch(f"the body of the record at {offset + rotten - at} does not have the CRC that it states")
    if count != header.record_count:
        return NotABatch(f"the batch says {header.record_count} records and has {count}")
    return header


def decode_batch(buffer: Buffer, at: int, header: Header) -> list[Record]:
    """The records of a batch that ``examine`` accepted."""
    data = bytes(buffer[at : at + header.data_length])
    return decode_records(data, BATCH_HEADER_BYTES, header.data_length, header.offset + BATCH_HEADER_BYTES)


def previous_end_of(buffer: Buffer, at: int) -> int | None:
    """End of the log before the segment of the examined batch at ``buffer[at:]``; None if the batch has no base."""
    place = at + BATCH_HEADER_BYTES
    if buffer[place] != Kind.BASE:
        return None
    return int.from_bytes(buffer[place + 8 : place + 16], "big")
