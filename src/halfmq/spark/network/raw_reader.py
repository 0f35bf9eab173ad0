"""Reads ranges of queues from a halfmq broker with raw reads (``wire.remoting.raw_read``): stored messages and their queue entries.

Requests for the next messages are in flight while a response is received, verified, decoded, and written to Spark, so neither the broker's
work nor, over short distances, the way there and back is waited for. One response is one batch. Nothing is done per message in Python.

What a pull patches in a message comes from its entry, as in the direct reader: queue offset, store time, whether it was a half.
"""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from halfmq.client.blocking import Answer, RawConnection, Unavailable, check_success
from halfmq.errors import ProtocolError
from halfmq.model.address import Address
from halfmq.model.half_batch import WHOLE
from halfmq.model.records import HALF_BATCH_PAYLOAD_AT
from halfmq.model.stored_message import MAGIC_V1, MAGIC_V2
from halfmq.model.text_fields import write_fields
from halfmq.spark.network.pull_reader import Lost
from halfmq.spark.plan.partitions import QueueRange
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.byte_slices import ENTRY, PAYLOAD_ENTRY, Entries, Ints, as_bytes, gather
from halfmq.spark.rows.stored_rows import StoredRows, chosen_rows, record_batch
from halfmq.wire.remoting.codes import HMQ_RAW_READ, ResponseCode
from halfmq.wire.remoting.raw_read import (
    BETWEEN_BYTES,
    CHECKSUM_BYTES,
    EXT_NEXT,
    FoundFields,
    RawReadFields,
    checksum_beside,
    decode_found,
    half_batch_checksum,
    is_intact,
)

if TYPE_CHECKING:
    from halfmq.spark.network.wire_reader import WireReader

#: Bytes of messages and entries in a response; the broker also limits their number. Larger ones hold up its loop for longer than 5 ms.
ANSWER_BYTES: Final = 9 << 18
#: Requests in flight beside the response that is received. Decision 0043 has figures.
IN_FLIGHT: Final = 2
#: Number of messages in a run, and a checksum.
_WORD: Final = np.dtype(">u4")
#: Size and magic number of a stored message.
_MESSAGE_HEAD_BYTES: Final = 8


class _Sent(NamedTuple):
    """A request in flight: for the messages of ``range`` from ``first`` on, or, if that is not known yet, -1, from where the one before
    ends.
    """

    store: str
    range: QueueRange
    first: int
    #: False: one checksum for all of the response, after that of a half batch was wrong.
    with_stored_checksums: bool = True


class _Response(NamedTuple):
    """Places in the body of a response. ``counts``: messages in each run; ``whole``: whether the run is a whole half batch.
    ``ends``: where each message ends.
    """

    body: memoryview
    entries: Entries
    sizes: Ints
    counts: Ints
    whole: npt.NDArray[np.bool_]
    #: The first message of each run.
    first: Ints
    ends: Ints


class _Suspect(NamedTuple):
    """A half batch in a response: queue offset of its first message, their number, and the checksum that is stored with it."""

    offset: int
    messages: int
    checksum: int


class RawReader:
    """Reads ranges. The caller must call ``close``."""

    def __init__(self, planned: "WireReader", deadline: RetryDeadline, group: str) -> None:
        self._planned = planned
        self._deadline = deadline
        self._group = group
        self._connection: RawConnection | None = None
        #: Requests in flight, in order; and how many before them ask for what is after the end of their range.
        self._sent: deque[_Sent] = deque()
        self._beyond = 0
        #: Half batches of the response that is read again, whose stored checksum was not theirs.
        self._suspects: list[_Suspect] = []

    def close(self) -> None:
        self._sent.clear()
        self._beyond = 0
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read_range(self, one: QueueRange, store: str, lost: Lost) -> Iterator[StoredRows]:
        """The messages of the range. ``lost`` is called with a sentence about missing ones; if it returns, reading continues after them.

        The next step overwrites the memory of the rows.
        """
        at = one.start
        what = one.in_words()
        while at < one.end:
            rows, at = self._deadline.until(lambda: self._attempt(one, at, store, lost), what)  # noqa: B023
            if rows is not None and len(rows.starts):
                yield rows

    def _attempt(self, one: QueueRange, at: int, store: str, lost: Lost) -> tuple[StoredRows | None, int]:
        """(messages from ``at`` on, next offset)."""
        address = self._planned.address_of(one, store, lost)
        if address is None:
            return None, one.end
        self._suspects = []
        # Again with one of all, which tells damage on the disk from a change on the way.
        stored_checksums = iter((True, False))

        def read() -> tuple[Answer, _Response | None] | None:
            answer, body = self._receive(address, _Sent(store, one, at, with_stored_checksums=next(stored_checksums)))
            if answer.code != ResponseCode.SUCCESS:
                return answer, None
            response = self._verified(answer, body, one, at)
            return None if response is None else (answer, response)

        answer, response = self._planned.intact(address, read, self.close, f"a response for {one.in_words()} at {at}")
        if response is None:
            return None, self._nothing(answer, address, one, at, store, lost)
        rows = _rows(response, one, at, lost)
        for suspect in self._suspects:
            _report_damage(suspect, response, rows, one, at, lost)
        return rows, at + len(response.sizes)

    def _verified(self, answer: Answer, body: memoryview, one: QueueRange, at: int) -> _Response | None:
        """The response; None if a checksum is wrong."""
        found = decode_found(answer.ext)
        if not is_intact(_summed(body, found)):
            return None
        response = _parse(body, found, one, at)
        if not found.half_batches:
            return response
        self._suspects, is_right = _wrong_half_batches(response, found, at)
        return response if is_right and not self._suspects else None

    def _receive(self, address: Address, wanted: _Sent) -> tuple[Answer, memoryview]:
        """The response, after the next requests were sent."""
        connection = self._connection
        if connection is None or connection.address != address or (self._sent and self._sent[0] != wanted):
            self.close()
            connection = self._connection = RawConnection.open(address, self._planned.security)
        while self._beyond:
            if connection.head().code == ResponseCode.SUCCESS:
                raise ProtocolError(f"a response for {wanted.range.in_words()} is after the end of the range")
            connection.body()
            self._beyond -= 1
        if not self._sent:
            self._send(connection, wanted)
        answer = connection.head()
        self._sent.popleft()
        if answer.code == ResponseCode.SUCCESS:
            self._send_ahead(connection, wanted, decode_found(answer.ext))
        elif self._sent:  # they continue what has no end
            self.close()
            return answer, memoryview(b"")
        return answer, connection.body()

    def _send_ahead(self, connection: RawConnection, wanted: _Sent, found: FoundFields) -> None:
        """Request what follows a response of ``found``, if it has the usual number of messages not further than to the end."""
        after, end, sent = found.next_offset, wanted.range.end, self._sent
        if not wanted.first < after < end:
            self._beyond = len(sent)
            sent.clear()
            return
        following = _Sent(wanted.store, wanted.range, after)
        if sent:
            sent[0] = following
        else:
            self._send(connection, following)
        while len(sent) < IN_FLIGHT and after + len(sent) * found.entries < end:
            self._send(connection, following._replace(first=-1))

    def _send(self, connection: RawConnection, wanted: _Sent) -> None:
        one = wanted.range
        fields = RawReadFields(
            self._group, wanted.store, one.topic, one.topic_id, one.queue, max(wanted.first, 0), one.end, ANSWER_BYTES,
            int(wanted.with_stored_checksums), int(wanted.first < 0),
        )  # fmt: skip
        connection.send(HMQ_RAW_READ, write_fields(fields))
        self._sent.append(wanted)

    def _nothing(self, answer: Answer, address: Address, one: QueueRange, at: int, store: str, lost: Lost) -> int:
        """Where to continue after a response without messages.

        Raises:
            Unavailable: ask again.
        """
        what = one.in_words()
        match answer.code:
            case ResponseCode.QUERY_NOT_FOUND | ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # the latter: RocketMQ
                self._planned.look_up_again(address, broken=False)
                raise Unavailable("another store is at the address of the broker")
            case ResponseCode.TOPIC_NOT_EXIST:
                if self._planned.is_planned_topic(one, store, at, lost):
                    raise Unavailable(f"topic {one.topic} is there again")
                return one.end
            case ResponseCode.PULL_NOT_FOUND:
                raise Unavailable(f"offset {at} was planned, but does not exist")
        after = int(answer.ext.get(EXT_NEXT, -1))
        if answer.code == ResponseCode.PULL_OFFSET_MOVED and after > at:
            lost(f"messages {at} to {min(after, one.end) - 1} of {what} are past retention")
            return min(after, one.end)
        if answer.code == ResponseCode.SYSTEM_ERROR and after == at:
            lost(f"message {at} of {what} cannot be read: {answer.remark}")
            return at + 1
        check_success(answer, f"a raw read from {what}")
        raise ProtocolError(f"a raw read from {what} at {at} returned next offset {after}")


def _summed(body: memoryview, found: FoundFields) -> memoryview:
    """What the checksum at the start of the body covers, with that checksum: without whole half batches the complete body."""
    return body[: _messages_at(found)] if found.half_batches else body


def _messages_at(found: FoundFields) -> int:
    stored = (found.half_batches + 1) * CHECKSUM_BYTES if found.half_batches else 0
    return CHECKSUM_BYTES + found.entries * ENTRY.itemsize + found.runs * _WORD.itemsize + stored


def _parse(body: memoryview, found: FoundFields, one: QueueRange, at: int) -> _Response:
    """Raises ProtocolError: a response of the right checksum, but its lengths contradict each other."""
    number, number_of_runs, after, half_batches = found.entries, found.runs, found.next_offset, found.half_batches
    messages_at = _messages_at(found)
    if after != at + number or after > one.end or messages_at > len(body):
        raise ProtocolError(f"a response with {number} entries from {at} to {after} in {len(body)} bytes")
    entries = np.frombuffer(body, ENTRY, number, CHECKSUM_BYTES)
    runs = np.frombuffer(body, _WORD, number_of_runs, CHECKSUM_BYTES + number * ENTRY.itemsize)
    whole = (runs & WHOLE) != 0
    counts: Ints = (runs & ~np.uint32(WHOLE)).astype(np.int64)
    if int(counts.min()) < 1 or int(counts.sum()) != number or int(whole.sum()) != half_batches:
        raise ProtocolError(
            f"a response with {number} entries and {half_batches} half batches, and {counts.sum()} and {whole.sum()} in its runs"
        )
    sizes: Ints = entries["message_bytes"].astype(np.int64)
    first: Ints = np.cumsum(counts) - counts
    between = np.full(number, BETWEEN_BYTES)
    between[first] = 0
    ends: Ints = messages_at + np.cumsum(sizes + between)
    if int(sizes.min()) < _MESSAGE_HEAD_BYTES or int(ends[-1]) != len(body):
        raise ProtocolError(f"a response of {len(body)} bytes; its entries and their messages have {ends[-1]}")
    return _Response(body, entries, sizes, counts, whole, first, ends)


def _wrong_half_batches(response: _Response, found: FoundFields, at: int) -> tuple[list[_Suspect], bool]:
    """(whole half batches whose stored checksum is not that of their messages and queue entries; whether that of all others is right)."""
    body, messages_at = response.body, _messages_at(found)
    stored_at = messages_at - (found.half_batches + 1) * _WORD.itemsize
    *stored, beside = np.frombuffer(body, _WORD, found.half_batches + 1, stored_at).tolist()
    places, wrong = [], []
    for run, checksum in zip(np.flatnonzero(response.whole).tolist(), stored, strict=True):
        first, count = int(response.first[run]), int(response.counts[run])
        places.append(_place(response, first, count))
        suspect = _Suspect(at + first, count, checksum)
        if _is_wrong(suspect, response, at):
            wrong.append(suspect)
    return wrong, bool(checksum_beside(body, messages_at, places) == beside)


def _place(response: _Response, first: int, count: int) -> tuple[int, int]:
    """Start and end in the body of messages of one run."""
    return int(response.ends[first] - response.sizes[first]), int(response.ends[first + count - 1])


def _is_wrong(suspect: _Suspect, response: _Response, at: int) -> bool:
    first = suspect.offset - at
    start, end = _place(response, first, suspect.messages)
    entries = _payload_entries(response.entries[first : first + suspect.messages])
    return half_batch_checksum(response.body[start:end], entries) != suspect.checksum


def _report_damage(
    suspect: _Suspect, response: _Response, rows: StoredRows, one: QueueRange, at: int, lost: Lost
) -> None:
    """Tell ``lost`` of a half batch whose stored checksum is also wrong in a response that arrived as it was sent, unless that is known:
    messages that are none were reported, and bodies of a wrong CRC will be.
    """
    first = suspect.offset - at
    if len(rows.starts) != len(response.sizes) or first + suspect.messages > len(response.sizes):
        return
    if not _is_wrong(suspect, response, at):
        return  # it was changed on the way
    bad: list[int] = []
    these = chosen_rows(rows, slice(first, first + suspect.messages))
    record_batch(these, ("value",), lambda offset, why: bad.append(offset))
    if not bad:
        last = suspect.offset + suspect.messages - 1
        lost(
            f"the properties or queue entries of messages {suspect.offset} to {last} of {one.in_words()} are damaged: the "
            "checksum that was stored with these messages is another; `halfmq store verify` names the file to restore"
        )


def _payload_entries(entries: Entries) -> bytes:
    """The entries in the payload of a half batch, from the queue entries of all its messages."""
    made = np.empty(len(entries), PAYLOAD_ENTRY)
    made["from_start"] = entries["offset"] - entries["offset"][0] + HALF_BATCH_PAYLOAD_AT
    for name in ("message_bytes", "tag_hash", "key_hash"):
        made[name] = entries[name]
    return made.tobytes()


def _rows(response: _Response, one: QueueRange, at: int, lost: Lost) -> StoredRows:
    entries, sizes, first = response.entries, response.sizes, response.first
    buffer = pa.py_buffer(response.body)
    starts = response.ends - sizes
    heads = gather(as_bytes(buffer), starts, ">u8")
    # Messages with long topic names have another magic number.
    good = (heads == (sizes << 32 | MAGIC_V1)) | (heads == (sizes << 32 | MAGIC_V2))
    # In a run, messages are as far from each other as their records.
    from_first = entries["offset"].astype(np.int64) - starts
    good &= from_first == np.repeat(from_first[first], response.counts)
    offsets = np.arange(at, at + len(sizes))
    if not good.all():
        bad = offsets[~good]
        lost(
            f"{len(bad)} of the messages {bad[0]} to {bad[-1]} of {one.in_words()} cannot be read: "
            "what is stored there is no message; run `halfmq store verify`, and do not delete the directory"
        )
        entries, sizes, starts, offsets = entries[good], sizes[good], starts[good], offsets[good]
    return StoredRows(
        buffer=buffer,
        starts=starts,
        sizes=sizes,
        queue_offsets=offsets,
        store_times_ms=entries["store_time_ms"].astype(np.int64),
        transactional=entries["half_index"] >= 0,
        topic=one.topic,
        broker=one.broker,
        queue=one.queue,
        is_verified=bool(response.whole.all()),
    )
