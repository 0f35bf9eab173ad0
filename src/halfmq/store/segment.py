"""One file of the log: preallocated, zero-filled, never shrunk, named by its first log offset.

Never shrunk, because a reader may have it mapped, and touching a page behind a file's end kills the process
(SIGBUS). Preallocated, because then a batch that has a place cannot meet a full disk, and a sync need not write the
file's size. Zero-filled, because zeros behind the last batch are the proof that the log ends there.
"""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from halfmq.errors import StoreDamaged, StoreFull
from halfmq.runtime.disk import Disk, File

_DIGITS: Final = 20
SUFFIX: Final = ".seg"
#: What a file system says when it has no room: full, over quota, or over its largest file.
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
#: Bytes looked at in one piece when a segment is searched for something other than zeros.
_CHUNK: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK)
#: Segments kept open and mapped.
OPEN_SEGMENTS_MAX: Final = 128


def segment_name(start: int) -> str:
    return f"{start:0{_DIGITS}d}{SUFFIX}"


def segment_starts(names: list[str], directory: Path, segment_bytes: int) -> list[int]:
    """First offsets of the segments among ``names``, ascending; other files are none of ours.

    Raises:
        StoreDamaged: a segment's name that is no multiple of the segment size.
    """
    starts = []
    for name in names:
        stem = name.removesuffix(SUFFIX)
        if name == stem or len(stem) != _DIGITS or not stem.isdigit():
            continue
        if int(stem) % segment_bytes:
            raise StoreDamaged(
                f"{directory / name} does not begin at a multiple of the segment size, {segment_bytes}",
                hint="the file does not belong here, or store.json was changed: restore it from where it came",
            )
        starts.append(int(stem))
    return sorted(starts)


class Segment:
    """An open segment. ``view`` sees what is written later, and stays readable after ``close`` while somebody holds it."""

    __slots__ = ("file", "name_synced", "path", "start", "view")

    def __init__(self, file: File, start: int, *, name_synced: bool) -> None:
        self.file = file
        self.path = file.path
        self.start = start
        #: Its name and size survive power loss. Until then no batch in it may be called durable.
        self.name_synced = name_synced
        self.view = file.view()

    def sync_name(self, disk: Disk) -> None:
        """Make file and name durable, in this order: a name that survives must lead to a whole segment."""
        self.file.sync()
        disk.sync_directory(self.path.parent)
        self.name_synced = True

    def allocate(self, segment_bytes: int) -> None:
        """Claim the whole segment's space; what is new is zero.

        Raises:
            StoreFull: no room for it.
            OSError: anything else.
        """
        try:
            self.file.allocate(segment_bytes)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise _no_room(self.path, segment_bytes) from error
        self.view = self.file.view()

    def write(self, at: int, data: bytes) -> None:
        self.file.write(at, [data])

    def data_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        """Ranges at or after place ``start`` that may hold other bytes than zero, at most 1 MiB each, ascending."""
        for range_start, range_end in self.file.data_ranges(start):
            for at in range(range_start, range_end, _CHUNK):
                yield at, min(range_end, at + _CHUNK)

    def nonzero_chunks(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(place, bytes) of the ``data_ranges`` at or after ``start`` that are not all zeros.

        Read and not mapped: whoever made a copy or a backup left up to the whole segment in them, and the first touch of
        each mapped page costs more than reading it.
        """
        for at, end in self.data_ranges(start):
            chunk = self.file.read(at, end - at)
            if chunk != (_ZEROS if len(chunk) == _CHUNK else _ZEROS[: len(chunk)]):
                yield at, chunk

    def nonzero_from(self, start: int) -> int | None:
        """A place at or after ``start`` from which on not all is zero; None when all is. Exact to the range, not the byte."""
        return next((at for at, _ in self.nonzero_chunks(start)), None)

    def close(self) -> None:
        self.file.close()


def create_segment(disk: Disk, log_directory: Path, start: int, segment_bytes: int) -> Segment:
    """A new segment, zero-filled, its space claimed; its name survives power loss.

    The name is synced at every durability level: a segment that outlives the one before it would look like the oldest
    one of a trimmed log.

    Raises:
        StoreFull: no room for it, not even for its name; nothing of it is left.
        OSError: anything else.
    """
    path = log_directory / segment_name(start)
    try:
        segment = Segment(disk.open(path, create=True), start, name_synced=False)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise _no_room(path, segment_bytes) from error
    try:
        segment.allocate(segment_bytes)
    except StoreFull:
        segment.close()
        disk.remove(path)
        raise
    segment.sync_name(disk)
    return segment


def _no_room(path: Path, segment_bytes: int) -> StoreFull:
    return StoreFull(
        f"no room for a log segment of {segment_bytes} bytes: {path}",
        hint="free some space there; nothing is lost",
    )


class SegmentFiles:
    """The segments of a log by number (start // segment size), opened when needed.

    A mapped file takes two descriptors, and a process has about a thousand; so segments are closed again when too many are
    open. One that was written is synced before: who opens the file anew may not be told of a write that failed. ``opened``
    is for the hot path: one dictionary look-up on a hit.
    """

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        """
        Raises:
            StoreDamaged: a segment's name that is no multiple of the segment size.
        """
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.opened: dict[int, Segment] = {}
        #: The writer, the sync thread and the maintenance thread open and close.
        self._lock = threading.Lock()
        self._disk = disk
        starts = segment_starts(disk.list(directory), directory, segment_bytes)
        self._numbers = {start // segment_bytes for start in starts}

    def numbers(self) -> list[int]:
        """All that are there, oldest first."""
        return sorted(self._numbers)

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def path(self, number: int) -> Path:
        return self.directory / segment_name(number * self.segment_bytes)

    def get(self, number: int) -> Segment | None:
        """The segment, opened; None when there is none. One whose preallocation a crash cut short is shorter."""
        segment = self.opened.get(number)
        if segment is None and number in self._numbers:
            with self._lock:
                segment = self.opened.get(number)
                if segment is None:
                    file = self._disk.open(self.path(number))
                    segment = self.opened[number] = Segment(file, number * self.segment_bytes, name_synced=False)
        return segment

    def add(self, segment: Segment) -> None:
        number = segment.start // self.segment_bytes
        with self._lock:
            self.opened[number] = segment
        self._numbers.add(number)

    def close_old(self, below: int) -> None:
        """Close what is open too much, of the segments that end at or before log offset ``below``; those are synced."""
        with self._lock:
            surplus = max(0, len(self.opened) - OPEN_SEGMENTS_MAX)
            if surplus:
                closable = [number for number in self.opened if (number + 1) * self.segment_bytes <= below]
                for number in closable[:surplus]:
                    self.opened.pop(number).close()

    @property
    def too_many(self) -> bool:
        """More are open than should be, although ``close_old`` was called: sync some."""
        return len(self.opened) > OPEN_SEGMENTS_MAX

    def remove(self, number: int) -> None:
        """Unlink it; durable after a sync of the directory. Views that somebody holds stay readable."""
        self.forget(number)
        self.unlink(number)

    def forget(self, number: int) -> None:
        """There is no such segment any more, for whoever asks here; ``unlink`` its file next."""
        self._numbers.discard(number)
        with self._lock:
            segment = self.opened.pop(number, None)
            if segment is not None:
                segment.close()

    def unlink(self, number: int) -> None:
        """The file of a segment that was forgotten. Any thread: a large one takes its time."""
        self._disk.remove(self.path(number))

    def close(self) -> None:
        for segment in self.opened.values():
            segment.close()
        self.opened.clear()
