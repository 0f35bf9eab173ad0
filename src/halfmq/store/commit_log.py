"""The log itself: one writer appends batches to segments, one sync at a time makes them durable, anybody reads.

    append    one batch, one write; a batch whose first record is a base begins the next segment
    sync      fdatasync of every segment written since the last sync, and of the name of each new one
    prepare   the next segment is made early, so that a full disk is known a segment ahead

``end`` is where the next batch would start. ``synced_position`` is what survives power loss; each batch names it as it was
when the batch was written, and recovery holds the disk to it.

A full disk is not a failed disk: ``StoreFull`` leaves everything as it was, and what is left of the current segment is the
reserve for verdicts. A failed write or sync is: the log is poisoned, nothing is appended or called durable any more, and
nothing is tried again, since after a failed fsync the kernel may have dropped the pages and call the next one a success.

Threads: ``append`` and ``roll`` on the writer's; ``sync`` and ``prepare_next`` on any, one at a time by their locks.
"""

import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from halfmq import limits
from halfmq.errors import InvariantViolated, StoreDamaged, StoreFull, StorePoisoned
from halfmq.model.records import (
    BATCH_HEADER_BYTES,
    RECORD_HEAD_BYTES,
    Base,
    Committed,
    Kind,
    OperatorActed,
    Record,
    RolledBack,
)
from halfmq.model.stored_message import StoredMessage, body_crc_of
from halfmq.model.stored_message import decode as decode_message
from halfmq.runtime.disk import Disk
from halfmq.store.batch_codec import encode_batch
from halfmq.store.record_codec import (
    MESSAGE_AT_BY_KIND,
    Pieces,
    decode_records,
    kind_and_size,
    operator_acted_before,
    split_message,
)
from halfmq.store.segment import RESTORE, Segment, SegmentFiles, create_segment

#: Records that hold a copy; where the message first came in stands directly after their heads.
_COPIED = frozenset({Kind.COPIED_HALF, Kind.COPIED_DELAYED})
_VERDICTS = frozenset({Kind.COMMITTED, Kind.ROLLED_BACK})
#: Bytes read for a record when nobody says how long it is: most are shorter.
READ_BYTES: Final = 4_096
#: No record with a message, and no verdict, is longer. An offset that a peer made up may lead to bytes that say so.
_RECORD_BYTES_MAX: Final = limits.FRAME_BYTES_MAX + (1 << 20)
#: What is read at once, and kept, is longer than this only for a record that is.
_WINDOW_BYTES_MAX: Final = 1 << 18
#: More than an OPERATOR_ACTED record takes whose four texts are as long as they may be.
_OPERATOR_ACTED_BYTES_MAX: Final = 8_192
_NO_WINDOW: Final = memoryview(b""), 0


class CommitLog:
    """The log of a store, open for one writer; which thread may call what is said above."""

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
        """Segments among ``files`` that lie whole after ``end`` are zero and of full size; they are used next.

        ``before_make``: called before a segment is made; raises where none may be.
        """
        self.segment_bytes = files.segment_bytes
        self.epoch = epoch
        self.end = end
        self.synced_position = synced_position
        #: Why the log is poisoned; None while it is not.
        self.failure: OSError | None = None
        #: No space for the next segment, or less than the reserve is free beside it.
        self.space_low = False
        self._disk = disk
        self._files = files
        self._opened = files.opened
        self._directory = files.directory
        self._reserve_bytes = reserve_bytes
        self._before_make = before_make
        #: What was read last: (bytes, log offset of the first). All of it lies before the log's end, so it never changes.
        self._window: tuple[memoryview, int] = _NO_WINDOW
        self._sync_lock = threading.Lock()
        self._prepare_lock = threading.Lock()
        #: Starts of segments that were let go and have their files yet, oldest first.
        self._to_unlink: list[int] = []

    # --- write -----------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record], broker_time_ms: int) -> int:
        """Write one batch whose records say where they lie; returns the log's new end. Not durable before ``sync``.

        Raises:
            StoreFull: the batch begins a segment and there is no space for it; nothing was changed.
            StorePoisoned: this or an earlier write or sync failed.
            InvariantViolated: the records do not stand where the log goes on, or do not fit.
        """
        if self.failure is not None:
            raise self._poisoned()
        start = records[0].offset - BATCH_HEADER_BYTES
        number, place = divmod(start, self.segment_bytes)
        if start != self.end or place == 0:
            self._check_roll(start, records[0])
            self.ensure_space_for_roll()
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
        """Where the next segment begins; the log's end itself when the segment before is exactly full, or none is there."""
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
        """The segment that the next roll goes to is there."""
        return self._next_start() // self.segment_bytes in self._files

    def ensure_space_for_roll(self) -> None:
        """See to it that a roll can follow.

        Raises:
            StoreFull: no space for another segment; nothing was changed. Refuse what needs it, or try again later.
            StorePoisoned: the segment could not be made for another reason.
        """
        if self.next_is_ready:
            return
        with self._prepare_lock:
            if self.next_is_ready:
                return
            self._make_next()

    def prepare_next(self) -> bool:
        """Make the next segment early, where it is missing, and look at the free space. False: space is low.

        Called after a roll, and again from time to time while space is low.
        """
        with self._prepare_lock:
            if self.failure is not None:
                return False
            if not self.next_is_ready:
                try:
                    self._make_next()
                except StoreFull:
                    return False
            self.space_low = self._disk.free_bytes(self._directory) < self._reserve_bytes
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
        if self._files.too_many:  # at durability level memory nothing else syncs before the next checkpoint
            self._files.close_old(self.sync(self.end))

    # --- durable ---------------------------------------------------------------------------------------------

    def sync(self, position: int) -> int:
        """Make everything before ``position`` durable; returns the new ``synced_position``.

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
        """The stored message in the record at ``offset``. Read and not mapped: what cannot be read is an error.

        ``ahead``: bytes that are asked for next, from ``offset`` on; they come with one read.

        Raises:
            LookupError: it lies before the log's start, or no message does there.
            StoreDamaged: the file is shorter than it was, or the disk cannot read it.
        """
        data, start = self._window
        at = offset - start
        if at < 0 or at + RECORD_HEAD_BYTES > len(data):
            data, at = self._bytes(offset, RECORD_HEAD_BYTES, ahead)
        kind, size = kind_and_size(data, at)
        message_at = MESSAGE_AT_BY_KIND[kind]
        if not message_at or size > _RECORD_BYTES_MAX:
            raise LookupError(f"no message at log offset {offset}")
        if at + size > len(data):
            data, at = self._bytes(offset, size, max(ahead, size))
        return data[at + message_at : at + size]

    def kind_at(self, offset: int) -> int:
        """Kind of the record at ``offset``. Raises as ``stored_view``."""
        data, at = self._bytes(offset, RECORD_HEAD_BYTES, READ_BYTES)
        return data[at]

    def first_offset(self, offset: int) -> int:
        """Log offset of the record that the message at ``offset`` first came in; its own unless it was copied forward.

        Raises as ``stored_view``.
        """
        data, start = self._window
        at = offset - start
        if at < 0 or at + RECORD_HEAD_BYTES + 8 > len(data):
            data, at = self._bytes(offset, RECORD_HEAD_BYTES + 8, READ_BYTES)
        if data[at] not in _COPIED:
            return offset
        return int.from_bytes(data[at + RECORD_HEAD_BYTES : at + RECORD_HEAD_BYTES + 8], "big")

    def _bytes(self, offset: int, length: int, ahead: int) -> tuple[memoryview, int]:
        """(bytes, where in them ``offset`` is): ``length`` of them, or zeros where segment or log are not as long."""
        number, place = divmod(offset, self.segment_bytes)
        try:
            segment = self._opened.get(number) or self.open_segment(number)
        except OSError as error:
            raise StoreDamaged(
                f"{self._path(offset)} cannot be opened to read log offset {offset}: {error.strerror or error}",
                hint=RESTORE,
            ) from error
        if segment is None or not 0 <= offset < self.end:
            raise LookupError(f"no record at log offset {offset}: the log does not reach there")
        data, start = self._window
        at = offset - start
        if at >= 0 and at + length <= len(data):
            return data, at
        there = min(self.segment_bytes - place, self.end - offset)
        length = min(length, there)
        wanted = min(max(length, min(ahead, _WINDOW_BYTES_MAX)), there)
        read = segment.read(place, wanted)
        if len(read) < wanted:
            raise StoreDamaged(
                f"{segment.path} has {segment.file.size()} bytes instead of {self.segment_bytes}, and the log goes on after "
                f"them: the record at log offset {offset} cannot be read",
                hint=RESTORE,
            )
        data = memoryview(read if wanted >= RECORD_HEAD_BYTES + 8 else read.ljust(RECORD_HEAD_BYTES + 8, b"\0"))
        self._window = (data, offset) if RECORD_HEAD_BYTES + 8 <= wanted <= _WINDOW_BYTES_MAX else _NO_WINDOW
        return data, 0

    def verdict_names(self, position: int) -> tuple[str, str]:
        """(producer group, transaction id) in the verdict record at ``position``.

        Raises:
            LookupError: before the log's start, or no verdict there.
        """
        data, at = self._bytes(position, RECORD_HEAD_BYTES, READ_BYTES)
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        if data[at] not in _VERDICTS or size > _RECORD_BYTES_MAX:
            raise LookupError(f"no verdict at log offset {position}")
        data, at = self._bytes(position, size, size)
        if at + size > len(data):
            raise LookupError(f"no verdict at log offset {position}")
        try:
            (record,) = decode_records(bytes(data[at : at + size]), 0, size, position)
        except StoreDamaged as error:
            raise LookupError(f"the record at log offset {position} cannot be read") from error
        assert isinstance(record, Committed | RolledBack)
        return record.group, record.tx_id

    def open_segment(self, number: int) -> Segment | None:
        """The segment, to be read; where too many are open, old ones are closed before. None when there is none."""
        if self._files.too_many:
            self._files.close_old(self.synced_position)
        return self._files.get(number)

    def _segment(self, number: int) -> Segment:
        segment = self._opened.get(number) or self.open_segment(number)
        if segment is None:
            raise LookupError(f"{self._files.path(number)} is not there")
        return segment

    def operator_of(self, position: int) -> OperatorActed | None:
        """Who caused the record at ``position``, as the record directly before it says; None: nobody does.

        Raises: as ``stored_view``.
        """
        if not 0 <= position < self.end:
            raise LookupError(f"no record at log offset {position}: the log does not reach there")
        ahead = min(position % self.segment_bytes, _OPERATOR_ACTED_BYTES_MAX)
        if not ahead:
            return None
        data, at = self._bytes(position - ahead, ahead, ahead)
        return operator_acted_before(data[at:], ahead, position)

    def read_message(self, offset: int) -> tuple[int, StoredMessage]:
        """(kind, message) of the record at ``offset``.

        Raises:
            LookupError: as ``stored_view``.
            StoreDamaged: as ``stored_view``, or what lies there is no message.
        """
        view = self.stored_view(offset)
        try:
            message, _, _ = decode_message(view)
        except (ValueError, IndexError, struct.error) as error:
            raise StoreDamaged(
                f"the record at log offset {offset} in {self._path(offset)} cannot be decoded: {error}", hint=RESTORE
            ) from error
        return self.kind_at(offset), message

    def copy_of(self, source: int) -> Pieces:
        """The stored message of the record at ``source``, to be written again.

        Raises:
            StoreDamaged: its body does not have the CRC that it states. A copy would carry the damage on.
        """
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
        """What is wrong with the stored message of ``message_bytes`` at ``source``, and what to do; None: it can be copied.

        Ask before a record that copies it is applied: afterwards it is too late to refuse.
        """
        try:
            pieces = self.copy_of(source)
            length = sum(map(len, pieces))
        except StoreDamaged as error:
            self._window = _NO_WINDOW  # the file may be mended: the next try reads it again
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

    def _path(self, offset: int) -> Path:
        return self._files.path(offset // self.segment_bytes)

    @property
    def start(self) -> int:
        """First offset of the oldest segment."""
        return min(self._files.numbers(), default=0) * self.segment_bytes

    # --- end -------------------------------------------------------------------------------------------------

    def detach(self, log_start: int) -> list[int]:
        """Know nothing more of the segments that lie whole before ``log_start``; returns their starts, for ``unlink``.

        The record that says so is durable. On the writer's thread.
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
        """Unlink what ``detach`` gave, in its order. Any thread, one at a time: a gibibyte takes a while.

        Oldest first, and each name's removal is durable before the next one's: a crash must not leave a gap. So what stays
        is tried first the next time.

        Raises:
            SegmentStays: one cannot be removed; it stays, and those after it.
        """
        left = self._to_unlink
        left.extend(starts)
        while left:
            self._files.unlink(left[0] // self.segment_bytes)
            self._disk.sync_directory(self._directory)
            del left[0]

    def trim(self, log_start: int) -> list[int]:
        """``detach`` and ``unlink``; returns the starts of the segments that went."""
        gone = self.detach(log_start)
        self.unlink(gone)
        return gone

    def close(self) -> None:
        self._files.close()
