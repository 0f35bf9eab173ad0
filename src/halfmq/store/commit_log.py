"""The log: one writer appends batches to segments, one sync at a time makes them durable, and any thread reads.

    append    one batch, one write; a batch whose first record is a base begins the next segment
    sync      fdatasync of every segment written since the last sync, and of the name of each new one
    prepare   create the next segment early, so that a full disk is detected one segment ahead

``end`` is the offset of the next batch. ``synced_position`` is what survives a power loss. Each batch states its value at the time
of writing, and recovery requires the disk to contain the log up to it.

A full disk is not a failed disk: ``StoreFull`` changes nothing, and the rest of the current segment is the reserve for verdicts.
After a failed write or sync the log is poisoned: nothing is appended or reported durable any more. Nothing is retried, since after
a failed fsync the kernel may have dropped the pages and report success the next time.

Threads: ``append`` and ``roll`` on the writer's thread; ``sync`` and ``prepare_next`` on any thread, one at a time by their locks.
"""

import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.errors import InvariantViolated, StoreDamaged, StoreFull, StorePoisoned
from halfmq.model.checksum import crc32
from halfmq.model.half_batch import ENTRY_BYTES
from halfmq.model.layout import PAYLOAD_ENTRY
from halfmq.model.records import (
    BATCH_HEADER_BYTES,
    BATCHED,
    HALF_BATCH_PAYLOAD_AT,
    RECORD_HEAD_BYTES,
    Base,
    Committed,
    Decided,
    Kind,
    OperatorActed,
    Record,
    RolledBack,
)
from halfmq.model.stored_message import (
    AT_BODY_V4,
    V6_MORE,
    StoredMessage,
    body_crc_of,
    body_place,
    topic_width,
)
from halfmq.model.stored_message import decode as decode_message
from halfmq.runtime.disk import Disk
from halfmq.store.batch_codec import encode_batch
from halfmq.store.half_names import HALF_BATCHES, VERDICT_KINDS
from halfmq.store.record_codec import (
    MESSAGE_AT_BY_KIND,
    HalfBatchHead,
    Pieces,
    decode_records,
    half_batch_head,
    kind_and_size,
    operator_acted_before,
    split_message,
)
from halfmq.store.segment import RESTORE, Segment, SegmentFiles, create_segment

#: Records that contain a copy; the first offset of the message follows their head.
_COPIED = frozenset({Kind.COPIED_HALF, Kind.COPIED_DELAYED, Kind.COPIED_HALF_BATCH})
#: Bytes to read for a record of unknown length: most records are shorter.
READ_BYTES: Final = 4_096
#: Maximum length of a record with a message, and of a verdict. An offset invented by a client may lead to larger values.
RECORD_BYTES_MAX: Final = limits.FRAME_BYTES_MAX + (1 << 20)
#: Maximum size of one read that is cached, unless a single record is longer.
_WINDOW_BYTES_MAX: Final = 1 << 18
#: Everything of a message before its body, with two IPv6 hosts.
_MESSAGE_HEAD_BYTES_MAX: Final = AT_BODY_V4 + 2 * V6_MORE
#: More than the largest OPERATOR_ACTED record, with four texts of maximum length.
_OPERATOR_ACTED_BYTES_MAX: Final = 8_192
#: Half batches that are examined ahead of verdicts: several of the largest.
_INTACT_MAX: Final = 4 * limits.TRANSACTION_HALF_BATCHES_MAX
_NO_WINDOW: Final = memoryview(b""), 0


class BeforeLogStart(LookupError):
    """A log offset before the oldest segment."""


class BatchedPlace(NamedTuple):
    """The half batch that contains a message, and the number of the message in it."""

    #: Log offset of the record.
    offset: int
    half_index: int
    number: int


class CommitLog:
    """The log of a store, open for one writer. See the module for threads."""

    def __init__(
        self,
        disk: Disk,
        files: SegmentFiles,
        *,
        epoch: int,
        end: int = 0,
        synced_position: int = 0,
        reserve_bytes: int = 0,
        before_make: Callable[[], None] = lambda: None,
    ) -> None:
        """Segments of ``files`` that lie completely after ``end`` are zero and of full size; they are used next.

        ``before_make``: called before a segment is created; raises if it must not be.
        """
        self.segment_bytes = files.segment_bytes
        self.epoch = epoch
        self.end = end
        self.synced_position = synced_position
        #: Why the log is poisoned; None if it is not.
        self.failure: OSError | None = None
        #: There is no space for the next segment, or less than the reserve is free besides it.
        self.space_low = False
        self._disk = disk
        self._files = files
        self._opened = files.opened
        self._directory = files.directory
        #: With less free space, ``space_low`` is set. It may be changed at any time.
        self.reserve_bytes = reserve_bytes
        self._before_make = before_make
        #: The last read: (bytes, log offset of the first). All of it is before the end of the log, so it never changes.
        self._window: tuple[memoryview, int] = _NO_WINDOW
        self._sync_lock = threading.Lock()
        self._prepare_lock = threading.Lock()
        #: Half batches whose entries were examined before a verdict: log offset -> messages.
        self._intact: dict[int, int] = {}
        #: Starts of detached segments whose files still exist, oldest first.
        self._to_unlink: list[int] = []

    # --- write -----------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record], broker_time_ms: int) -> int:
        """Write one batch, at the offsets of its records. Returns the new end of the log. Not durable before ``sync``.

        Raises:
            StoreFull: the batch begins a segment and there is no space for it; nothing was changed.
            StorePoisoned: this or an earlier write or sync failed.
            InvariantViolated: the records do not start at the end of the log, or do not fit.
        """
        if self.failure is not None:
            raise self._poisoned()
        start = records[0].offset - BATCH_HEADER_BYTES
        number, place = divmod(start, self.segment_bytes)
        if start != self.end or place == 0:
            self._check_roll(start, records[0])
            self.reserve_roll()
        data = encode_batch(
            records,
            broker_time_ms=broker_time_ms,
            epoch=self.epoch,
            durable_position=self.synced_position,
            copy=self.copy_of,
        )
        if place + len(data) > self.segment_bytes:
            raise InvariantViolated(f"a batch of {len(data)} bytes at {start} does not fit its segment")
        try:
            self._segment(number).write(place, data)
        except OSError as error:
            self.failure = error
            raise self._poisoned() from error
        self.end = start + len(data)
        return self.end

    def _next_start(self) -> int:
        """Start of the next segment; the end of the log itself if the last segment is exactly full, or if there is none."""
        return -(-self.end // self.segment_bytes) * self.segment_bytes

    def _check_roll(self, start: int, first: Record) -> None:
        if start != self._next_start():
            raise InvariantViolated(f"a batch at {start} does not follow the log's end, {self.end}")
        if not isinstance(first, Base) or first.previous_end != self.end:
            raise InvariantViolated(
                f"the segment at {start} must begin with a base that says the log ended at {self.end}"
            )

    def _poisoned(self) -> StorePoisoned:
        return StorePoisoned(
            f"the log in {self._directory} accepts no more writes: {self.failure}",
            hint="what the failed write or sync left on the disk is not known; check the disk, then restart to recover",
        )

    # --- space ------------------------------------------------------------------------------------------------

    @property
    def next_is_ready(self) -> bool:
        """Whether the segment for the next roll exists."""
        return self._next_start() // self.segment_bytes in self._files

    def reserve_roll(self) -> None:
        """Make sure that a roll is possible.

        Raises:
            StoreFull: there is no space for another segment; nothing was changed. Reject the request or retry later.
            StorePoisoned: creating the segment failed for another reason.
        """
        if self.next_is_ready:
            return
        with self._prepare_lock:
            if self.next_is_ready:
                return
            self._make_next()

    def prepare_next(self) -> bool:
        """Create the next segment if it is missing, and check the free space. False: space is low.

        Call it after a roll, and at intervals while space is low.
        """
        with self._prepare_lock:
            if self.failure is not None:
                return False
            if not self.next_is_ready:
                try:
                    self._make_next()
                except StoreFull:
                    return False
            self.space_low = self._disk.free_bytes(self._directory) < self.reserve_bytes
            return not self.space_low

    def _make_next(self) -> None:
        start = self._next_start()
        try:
            self._before_make()
            segment = create_segment(self._disk, self._directory, start, self.segment_bytes)
        except StoreFull:
            self.space_low = True
            raise
        except OSError as error:
            self.failure = error
            raise self._poisoned() from error
        self._files.add(segment)
        self._files.close_old(self.synced_position)
        if self._files.too_many:  # with durability memory nothing else syncs before the next checkpoint
            self._files.close_old(self.sync(self.end))

    # --- durable ---------------------------------------------------------------------------------------------

    def sync(self, position: int) -> int:
        """Make everything before ``position`` durable. Returns the new ``synced_position``.

        Raises:
            StorePoisoned: this or an earlier write or sync failed; nothing more becomes durable.
        """
        with self._sync_lock:
            if self.failure is not None:
                raise self._poisoned()
            if position > self.synced_position:
                try:
                    self._sync_range(self.synced_position, position)
                except OSError as error:
                    self.failure = error
                    raise self._poisoned() from error
                self.synced_position = position
            return self.synced_position

    def _sync_range(self, start: int, position: int) -> None:
        for number in range(start // self.segment_bytes, (position - 1) // self.segment_bytes + 1):
            segment = self._segment(number)
            if segment.name_synced:
                segment.file.sync()
            else:
                segment.sync_name(self._disk)
            self._files.close_old(min(position, segment.start + self.segment_bytes))

    # --- read ------------------------------------------------------------------------------------------------

    def stored_view(self, offset: int, ahead: int = READ_BYTES) -> memoryview:
        """The stored message in the record at ``offset``. It is read, not mapped, so an unreadable file raises an error.

        If the record is a half batch: its first message.

        ``ahead``: bytes from ``offset`` on that the caller will read next; the same read returns them.

        Raises:
            LookupError: the offset is before the log's start, or the record has no message.
            StoreDamaged: the file was truncated, or the disk cannot read it.
        """
        data, start = self._window
        at = offset - start
        if at < 0 or at + RECORD_HEAD_BYTES > len(data):
            data, at = self._bytes(offset, RECORD_HEAD_BYTES, ahead)
        kind, size = kind_and_size(data, at)
        message_at = MESSAGE_AT_BY_KIND[kind]
        if kind in HALF_BATCHES:
            return self.stored_view(offset + HALF_BATCH_PAYLOAD_AT, ahead)
        if not message_at or size > RECORD_BYTES_MAX:
            raise LookupError(f"no message at log offset {offset}")
        if at + size > len(data):
            data, at = self._bytes(offset, size, max(ahead, size))
        return data[at + message_at : at + size]

    def properties_at(self, offset: int) -> bytes:
        """The property string of the stored message in the record at ``offset``; of a half batch, of its first message. A large body is not
        read.

        Raises as ``stored_view``; StoreDamaged also for lengths that contradict each other.
        """
        data, at = self._bytes(offset, RECORD_HEAD_BYTES, READ_BYTES)
        kind, size = kind_and_size(data, at)
        if kind in HALF_BATCHES:
            return self.properties_at(offset + HALF_BATCH_PAYLOAD_AT)
        message_at = MESSAGE_AT_BY_KIND[kind]
        if not message_at or size > RECORD_BYTES_MAX:
            raise LookupError(f"no message at log offset {offset}")
        data, at = self._bytes(offset, min(size, message_at + _MESSAGE_HEAD_BYTES_MAX), READ_BYTES)
        try:
            width = topic_width(data, at + message_at)
            topic_at = body_place(data, at + message_at).end - at
            if message_at <= topic_at < size:
                data, at = self._bytes(offset + topic_at, size - topic_at, size - topic_at)
                length_at = at + width + int.from_bytes(data[at : at + width], "big")
                length = int.from_bytes(data[length_at : length_at + 2], "big")
                if length_at + 2 + length <= at + size - topic_at:
                    return bytes(data[length_at + 2 : length_at + 2 + length])
        except struct.error:
            pass
        raise StoreDamaged(f"the record at log offset {offset} in {self._path(offset)} has wrong lengths", hint=RESTORE)

    def read_at(self, offset: int, length: int) -> bytes:
        """``length`` bytes of the log from ``offset`` on; fewer at the end of its segment, or of the log. They may contain records that
        nobody may see. Raises as ``stored_view``.
        """
        segment, place = self._segment_at(offset)
        return segment.read(place, min(length, self.segment_bytes - place, self.end - offset))

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> int:
        """Fill ``buffers``, at most ``BUFFERS_MAX``, with the bytes of the log from ``offset`` on; returns their number, fewer than fit
        only at the end of its segment's file. They may contain records that nobody may see.

        Raises as ``stored_view``.
        """
        segment, place = self._segment_at(offset)
        return segment.read_into(place, buffers)

    def _segment_at(self, offset: int) -> tuple[Segment, int]:
        """(segment, place in it) of a log offset. Raises as ``stored_view``."""
        number, place = divmod(offset, self.segment_bytes)
        segment = self._opened.get(number) or self._open_to_read(number, offset)
        if segment is None or not 0 <= offset < self.end:
            text = f"no record at log offset {offset}: the log does not reach there"
            raise BeforeLogStart(text) if segment is None and offset < self.start else LookupError(text)
        return segment, place

    def kind_at(self, offset: int) -> int:
        """Kind of the record at ``offset``. Raises as ``stored_view``."""
        data, at = self._bytes(offset, RECORD_HEAD_BYTES, READ_BYTES)
        return data[at]

    def first_offset(self, offset: int) -> int:
        """Log offset of the first record of the message at ``offset``; equal to ``offset`` unless it was copied forward.

        Raises as ``stored_view``.
        """
        data, start = self._window
        at = offset - start
        if at < 0 or at + RECORD_HEAD_BYTES + 8 > len(data):
            data, at = self._bytes(offset, RECORD_HEAD_BYTES + 8, READ_BYTES)
        if data[at] == BATCHED:
            from_start = int.from_bytes(data[at + RECORD_HEAD_BYTES : at + RECORD_HEAD_BYTES + 4], "big")
            return self.first_offset(self._half_batch_start(offset, from_start)) + from_start
        if data[at] not in _COPIED:
            return offset
        return int.from_bytes(data[at + RECORD_HEAD_BYTES : at + RECORD_HEAD_BYTES + 8], "big")

    def _half_batch_start(self, offset: int, from_start: int) -> int:
        """Log offset of the half batch whose item lies at ``offset``, ``from_start`` bytes after its start.

        Raises:
            LookupError: no half batch begins there.
        """
        start = offset - from_start
        if from_start < HALF_BATCH_PAYLOAD_AT or start < 0 or self.kind_at(start) not in HALF_BATCHES:
            raise LookupError(f"no half batch contains log offset {offset}")
        return start

    def batched_place(self, offset: int) -> BatchedPlace:
        """Which message of which half batch begins at ``offset``, whose record kind is BATCHED.

        Raises:
            LookupError: none does. The bytes of a message may look like the head of one, but no entry leads there.
            StoreDamaged: as ``stored_view``.
        """
        data, at = self._bytes(offset, RECORD_HEAD_BYTES + 8, READ_BYTES)
        from_start, number = struct.unpack_from(">II", data, at + RECORD_HEAD_BYTES)
        start = self._half_batch_start(offset, from_start)
        head = self.half_batch_head_at(start)
        if number >= head.messages:
            raise LookupError(f"no half batch contains log offset {offset}")
        entry_at = HALF_BATCH_PAYLOAD_AT + head.payload_bytes - (head.messages - number) * ENTRY_BYTES
        data, at = self._bytes(start + entry_at, ENTRY_BYTES, ENTRY_BYTES)
        if PAYLOAD_ENTRY.unpack_from(data, at)[0] != from_start:
            raise LookupError(f"no half batch contains log offset {offset}")
        return BatchedPlace(start, head.half_index, number)

    def half_batch_head_at(self, offset: int) -> HalfBatchHead:
        """The head of the half batch record at ``offset``.

        Raises:
            LookupError: there is none; or as ``stored_view``.
        """
        data, at = self._bytes(offset, HALF_BATCH_PAYLOAD_AT, READ_BYTES)
        if at + HALF_BATCH_PAYLOAD_AT > len(data) or data[at] not in HALF_BATCHES:
            raise LookupError(f"no half batch at log offset {offset}")
        return half_batch_head(data, at)

    def half_batch_entries(self, offset: int) -> memoryview:
        """The entries of the half batch at ``offset``, as in ``model.half_batch``. Raises as ``half_batch_head_at``."""
        return self._entries_of(offset, self.half_batch_head_at(offset))

    def _entries_of(self, offset: int, head: HalfBatchHead) -> memoryview:
        length = head.messages * ENTRY_BYTES
        start = offset + HALF_BATCH_PAYLOAD_AT + head.payload_bytes - length
        data, at = self._bytes(start, length, length)
        if len(data) - at < length:
            raise LookupError(f"the half batch at log offset {offset} ends beyond the log")
        return data[at : at + length]

    def half_batch_payload(self, offset: int) -> bytes:
        """The payload of the half batch at ``offset``.

        Raises:
            StoreDamaged: it does not have the checksum that its head states.
            LookupError: as ``half_batch_head_at``.
        """
        head = self.half_batch_head_at(offset)
        data, at = self._bytes(offset + HALF_BATCH_PAYLOAD_AT, head.payload_bytes, head.payload_bytes)
        payload = bytes(data[at : at + head.payload_bytes])
        if len(payload) != head.payload_bytes or crc32(payload) != head.checksum:
            raise StoreDamaged(
                f"the half batch at log offset {offset} in {self._path(offset)} does not have the checksum that it states",
                hint=RESTORE,
            )
        return payload

    def _bytes(self, offset: int, length: int, ahead: int) -> tuple[memoryview, int]:
        """(bytes, place of ``offset`` in them): ``length`` bytes from there on, zeros after the end of the segment or the log."""
        data, start = self._window
        at = offset - start
        if at >= 0 and at + length <= len(data):
            return data, at
        segment, place = self._segment_at(offset)
        there = min(self.segment_bytes - place, self.end - offset)
        length = min(length, there)
        wanted = min(max(length, min(ahead, _WINDOW_BYTES_MAX)), there)
        read = segment.read(place, wanted)
        if len(read) < wanted:
            raise self._truncated(segment, offset)
        data = memoryview(read if wanted >= RECORD_HEAD_BYTES + 8 else read.ljust(RECORD_HEAD_BYTES + 8, b"\0"))
        self._window = (data, offset) if RECORD_HEAD_BYTES + 8 <= wanted <= _WINDOW_BYTES_MAX else _NO_WINDOW
        return data, 0

    def _open_to_read(self, number: int, offset: int) -> Segment | None:
        try:
            return self.open_segment(number)
        except OSError as error:
            raise StoreDamaged(
                f"{self._path(offset)} cannot be opened to read log offset {offset}: {error.strerror or error}",
                hint=RESTORE,
            ) from error

    def _truncated(self, segment: Segment, offset: int) -> StoreDamaged:
        return StoreDamaged(
            f"{segment.path} has {segment.file.size()} bytes instead of {self.segment_bytes}, and the log continues after "
            f"them: the record at log offset {offset} cannot be read",
            hint=RESTORE,
        )

    def verdict_names(self, position: int) -> tuple[str, str]:
        """(producer group, transaction id) in the verdict record at ``position``. Raises: as ``verdict``."""
        record = self.verdict(position)
        return record.group, record.tx_id

    def user_of(self, position: int) -> str:
        """The user in the verdict record at ``position``; "": none. Raises: as ``verdict``."""
        return self.verdict(position).user

    def verdict(self, position: int) -> Committed | RolledBack | Decided:
        """The verdict record at ``position``.

        Raises:
            LookupError: the position is before the log's start, or the record is not a verdict, or is damaged.
        """
        data, at = self._bytes(position, RECORD_HEAD_BYTES, READ_BYTES)
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        if data[at] not in VERDICT_KINDS or size > RECORD_BYTES_MAX:
            raise LookupError(f"no verdict at log offset {position}")
        data, at = self._bytes(position, size, size)
        if at + size > len(data):
            raise LookupError(f"no verdict at log offset {position}")
        try:
            (record,) = decode_records(bytes(data[at : at + size]), 0, size, position)
        except StoreDamaged as error:
            raise LookupError(f"the record at log offset {position} cannot be read") from error
        assert isinstance(record, Committed | RolledBack | Decided)
        return record

    def open_segment(self, number: int) -> Segment | None:
        """The segment, open for reading; None if it does not exist. Closes old ones if too many are open."""
        if self._files.too_many:
            self._files.close_old(self.synced_position)
        return self._files.get(number)

    def _segment(self, number: int) -> Segment:
        segment = self._opened.get(number) or self.open_segment(number)
        if segment is None:
            raise LookupError(f"{self._files.path(number)} is not there")
        return segment

    def operator_of(self, position: int) -> OperatorActed | None:
        """The operator who caused the record at ``position``, from the record directly before it; None: no operator did.

        Raises as ``stored_view``.
        """
        if not 0 <= position < self.end:
            raise LookupError(f"no record at log offset {position}: the log does not reach there")
        ahead = min(position % self.segment_bytes, _OPERATOR_ACTED_BYTES_MAX)
        if not ahead:
            return None
        data, at = self._bytes(position - ahead, ahead, ahead)
        return operator_acted_before(data[at:], ahead, position)

    def read_message(self, offset: int) -> StoredMessage:
        """The message of the record at ``offset``.

        Raises:
            LookupError: as ``stored_view``.
            StoreDamaged: as ``stored_view``, or the bytes are not a message.
        """
        view = self.stored_view(offset)
        try:
            message, _, _ = decode_message(view)
        except (ValueError, IndexError, struct.error) as error:
            raise StoreDamaged(
                f"the record at log offset {offset} in {self._path(offset)} cannot be decoded: {error}", hint=RESTORE
            ) from error
        return message

    def copy_of(self, source: int) -> Pieces:
        """The stored message of the record at ``source``, to write it again.

        Raises:
            StoreDamaged: the CRC of its body is wrong, or the checksum of a half batch. A copy would preserve the damage.
        """
        if self.kind_at(source) in HALF_BATCHES:
            return b"", self.half_batch_payload(source), b""
        view = self.stored_view(source)
        pieces = split_message(view, 0, len(view))
        if body_crc_of(pieces[1]) != int.from_bytes(pieces[0][8:12], "big"):
            raise StoreDamaged(
                f"the body of the record at log offset {source} in {self._path(source)} does not have the CRC that it "
                "states",
                hint=RESTORE,
            )
        return pieces

    def why_not_copied(self, source: int, message_bytes: int) -> str | None:
        """Describes the damage of the stored message of ``message_bytes`` at ``source``, with advice; None if it can be copied.

        Of a half batch, ``message_bytes`` is the size of its record.

        Call it before a record that copies the message is applied: afterwards it cannot be rejected.
        """
        try:
            pieces = self.copy_of(source)
            length = sum(map(len, pieces))
            if not pieces[0]:
                length = self.record_bytes(source)
        except StoreDamaged as error:
            self._window = _NO_WINDOW  # the file may be repaired: read it again the next time
            return str(error)
        except (LookupError, ValueError, struct.error) as error:
            self._window = _NO_WINDOW
            return f"the record at log offset {source} in {self._path(source)} is damaged: {error} ({RESTORE})"
        if length != message_bytes:
            return (
                f"the record at log offset {source} in {self._path(source)} is damaged: its message has {length} bytes "
                f"instead of {message_bytes} ({RESTORE})"
            )
        return None

    def record_bytes(self, offset: int) -> int:
        """Size of the record at ``offset``. Raises as ``stored_view``."""
        data, at = self._bytes(offset, RECORD_HEAD_BYTES, READ_BYTES)
        size: int = kind_and_size(data, at)[1]
        return size

    def examine_shown(self, offset: int, messages: int) -> None:
        """Do what ``why_not_shown`` would do soon, so that it takes no time then. A verdict may show many half batches."""
        if offset not in self._intact and self._damage_of_shown(offset, messages) is None:
            if len(self._intact) >= _INTACT_MAX:
                self._intact.clear()  # of verdicts that were never reached
            self._intact[offset] = messages

    def why_not_shown(self, offset: int, messages: int) -> str | None:
        """Describes the damage of the entries of the half batch of ``messages`` at ``offset``, with advice; None if they can be used.

        Call it before a verdict that shows the messages is applied: afterwards it cannot be rejected. Bodies are not read.
        """
        if self._intact.pop(offset, -1) == messages:
            return None
        return self._damage_of_shown(offset, messages)

    def _damage_of_shown(self, offset: int, messages: int) -> str | None:
        try:
            head = self.half_batch_head_at(offset)
            entries = self._entries_of(offset, head)
        except (StoreDamaged, LookupError) as error:
            self._window = _NO_WINDOW
            return f"the half batch at log offset {offset} in {self._path(offset)} cannot be read: {error} ({RESTORE})"
        intact = head.messages == messages and crc32(entries) == head.entries_checksum
        if intact:
            return None
        self._window = _NO_WINDOW  # the file may be repaired: read it again the next time
        return f"the half batch at log offset {offset} in {self._path(offset)} is damaged: its entries do not have their checksum ({RESTORE})"

    def _path(self, offset: int) -> Path:
        return self._files.path(offset // self.segment_bytes)

    @property
    def start(self) -> int:
        """First offset of the oldest segment."""
        return min(self._files.numbers(), default=0) * self.segment_bytes

    # --- end -------------------------------------------------------------------------------------------------

    def detach(self, log_start: int) -> list[int]:
        """Remove the segments that lie completely before ``log_start`` from the log. Returns their starts, for ``unlink``.

        Call it on the writer's thread, once the record of the trim is durable.
        """
        gone = []
        self._window = _NO_WINDOW
        for number in self._files.numbers():
            start = number * self.segment_bytes
            if start + self.segment_bytes > min(log_start, self.synced_position):
                break
            self._files.forget(number)
            gone.append(start)
        return gone

    def unlink(self, starts: Sequence[int]) -> None:
        """Unlink the segments that ``detach`` returned, in its order. Any thread, one at a time: a gibibyte takes a while.

        Oldest first, and each removal is durable before the next one: a crash must not leave a gap. Segments that remain are removed first
        the next time.

        Raises:
            SegmentStays: a file cannot be removed; it remains, and so do the later ones.
        """
        left = self._to_unlink
        left.extend(starts)
        while left:
            self._files.unlink(left[0] // self.segment_bytes)
            self._disk.sync_directory(self._directory)
            del left[0]

    def close(self) -> None:
        self._files.close()
