"""One file of the log: preallocated, zero-filled, never shrunk, named by its first log offset.

Never shrunk, because a reader (Spark) may have it mapped, and touching a page after a file's end kills the process
(SIGBUS). The broker maps nothing: it reads, so that a file that somebody cut short, or a sector that cannot be read, is
an error with a place, and not the end of the process without a word. Preallocated, because then a batch that has a place cannot meet a full disk, and a sync need not write the
file's size. Zero-filled, because zeros after the last batch are the proof that the log ends there.
"""

import errno
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from halfmq.errors import StoreDamaged, StoreFull
from halfmq.runtime.disk import Disk, File

_DIGITS: Final = 20
SUFFIX: Final = ".seg"
#: What a file system says when it has no space: full, over quota, or over its largest file.
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
#: Bytes looked at in one piece when a segment is searched for something other than zeros.
_CHUNK: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK)
_BRING_BACK: Final = (
    "what this process has open it still reads, and the next start refuses: bring the file back from a backup, or copy it "
    "from /proc/PID/fd before the broker ends"
)
_KEEP_THE_OLD: Final = (
    "what this process has open it still reads, and the next start takes the new file: unless that is a whole copy, copy the "
    "one before from /proc/PID/fd before the broker ends"
)
#: What to do about a segment whose bytes are lost.
RESTORE: Final = (
    "stop the broker, restore that file from a backup, and start it; `halfmq store verify` looks at all files"
)
#: Segments kept open.
OPEN_SEGMENTS_MAX: Final = 128


def segment_name(start: int) -> str:
    """File name of the segment that starts at log offset ``start``."""
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


class SegmentStays(OSError):
    """The file of a trimmed segment cannot be removed. It takes space; nobody needs it."""


class Segment:
    """An open segment."""

    __slots__ = ("file", "name_synced", "path", "size", "start")

    def __init__(self, file: File, start: int, *, name_synced: bool) -> None:
        self.file = file
        self.path = file.path
        self.start = start
        #: Its name and size survive power loss. Until then no batch in it may be called durable.
        self.name_synced = name_synced
        #: Bytes of the file, when it was opened or allocated. One whose preallocation a crash cut short is shorter.
        self.size = file.size()

    def sync_name(self, disk: Disk) -> None:
        """Make file and name durable, in this order: a name that survives must lead to a whole segment."""
        self.file.sync()
        disk.sync_directory(self.path.parent)
        self.name_synced = True

    def allocate(self, segment_bytes: int) -> None:
        """Claim the whole segment's space; what is new is zero.

        Raises:
            StoreFull: no space for it.
            OSError: anything else.
        """
        try:
            self.file.allocate(segment_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise _no_space(self.path, segment_bytes) from error
        self.size = self.file.size()

    def write(self, at: int, data: bytes) -> None:
        self.file.write(at, [data])

    def read(self, at: int, length: int) -> bytes:
        """``length`` bytes from place ``at`` on; fewer only at the end of the file.

        Raises:
            StoreDamaged: the disk cannot read them; names file and log offset.
        """
        try:
            return self.file.read(at, length)
        except OSError as error:
            raise StoreDamaged(
                f"{self.path} cannot be read at log offset {self.start + at}: {error.strerror or error}", hint=RESTORE
            ) from error

    def data_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        """Ranges at or after place ``start`` that may hold other bytes than zero, at most 1 MiB each, ascending."""
        for range_start, range_end in self.file.data_ranges(start):
            for at in range(range_start, range_end, _CHUNK):
                yield at, min(range_end, at + _CHUNK)

    def nonzero_chunks(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(place, bytes) of the ``data_ranges`` at or after ``start`` that are not all zeros."""
        for at, end in self.data_ranges(start):
            chunk = self.read(at, end - at)
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
        StoreFull: no space for it, not even for its name; nothing of it is left.
        OSError: anything else.
    """
    path = log_directory / segment_name(start)
    try:
        segment = Segment(disk.open(path, create=True), start, name_synced=False)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise _no_space(path, segment_bytes) from error
    try:
        segment.allocate(segment_bytes)
    except StoreFull:
        segment.close()
        disk.remove(path)
        raise
    segment.sync_name(disk)
    return segment


def _no_space(path: Path, segment_bytes: int) -> StoreFull:
    return StoreFull(
        f"no space for a log segment of {segment_bytes} bytes: {path}",
        hint="free some space there; nothing is lost",
    )


class SegmentFiles:
    """The segments of a log by number (start // segment size), opened when needed.

    A process has about a thousand descriptors; so segments are closed again when too many are open. One that was written is synced before: who opens the file anew may not be told of a write that failed. ``opened``
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
        """The log has this segment as well from now on, open."""
        number = segment.start // self.segment_bytes
        with self._lock:
            self.opened[number] = segment
        self._numbers.add(number)

    def missing(self, numbers: Sequence[int]) -> list[tuple[int, str]]:
        """(number, what is wrong and what to do) of those that the disk has no more, not whole, or replaced. Any thread.

        ``numbers``: of ``numbers()``, a moment ago on the writer's thread. Who is told asks again there whether the segment is
        still one of the log: a trim may have removed it meanwhile.
        """
        found = []
        for number in numbers:
            what = self.what_is_wrong(number)
            if what is not None:
                found.append((number, f"{what[0]} ({what[1]})"))
        return found

    def what_is_wrong(self, number: int) -> tuple[str, str] | None:
        """(what is wrong, what to do) where the disk has that segment no more, or not whole. Any thread."""
        gone = self.what_became_of(number)
        if gone is not None:
            return gone
        path = self.path(number)
        size = self._disk.size(path)
        if size is not None and size < self.segment_bytes:
            what = f"{path} was cut short under a running broker: it has {size} bytes instead of {self.segment_bytes}"
            return what, RESTORE
        return None

    def what_became_of(self, number: int) -> tuple[str, str] | None:
        """(what, what to do) where the segment's name leads nowhere, or to another file than the one that is open. Any thread."""
        path = self.path(number)
        if self._disk.size(path) is None:
            return f"{path} was removed under a running broker", _BRING_BACK
        with self._lock:  # a descriptor that is closed meanwhile may be another file's
            segment = self.opened.get(number)
            if segment is None or segment.file.is_at(path):
                return None
        return (
            f"{path} was replaced under a running broker: the name leads to another file than it has open",
            _KEEP_THE_OLD,
        )

    def close_old(self, below: int) -> None:
        """Close what is open too much, of the segments that end at or before log offset ``below``; those are synced."""
        with self._lock:
            surplus = max(0, len(self.opened) - OPEN_SEGMENTS_MAX)
            if surplus:
                closable = [number for number in self.opened if (number + 1) * self.segment_bytes <= below]
                for number in closable[:surplus]:
                    del self.opened[number]  # not closed: the loop may be reading it, and its last holder closes it

    @property
    def too_many(self) -> bool:
        """More are open than should be, although ``close_old`` was called: sync some."""
        return len(self.opened) > OPEN_SEGMENTS_MAX

    def remove(self, number: int) -> None:
        """Unlink it; durable after a sync of the directory."""
        self.forget(number)
        self.unlink(number)

    def forget(self, number: int) -> None:
        """There is no such segment any more, for whoever asks here; ``unlink`` its file next."""
        self._numbers.discard(number)
        with self._lock:
            self.opened.pop(number, None)  # as in ``close_old``

    def unlink(self, number: int) -> None:
        """The file of a segment that was forgotten; one that is gone already is no error. Any thread: a large one takes its time.

        Raises:
            SegmentStays: it cannot be removed.
        """
        path = self.path(number)
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise SegmentStays(f"{path} cannot be removed: {error.strerror or error}") from error

    def close(self) -> None:
        """Close all open files; the log keeps its segments."""
        with self._lock:
            for segment in self.opened.values():
                segment.close()
            self.opened.clear()
