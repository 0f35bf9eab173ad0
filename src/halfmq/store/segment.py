"""One file of the log: preallocated, zero-filled, never shrunk, named by its first log offset.

Never shrunk, because a reader (Spark) may have it mapped, and touching a page after the end of a file kills the process (SIGBUS). The
broker maps nothing: for it a truncated file or an unreadable sector is an error with a place. Preallocated, because then a batch
that fits in the segment cannot hit a full disk, and a sync need not write the file's size. Zero-filled, because zeros after the
last batch prove that the log ends there.
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
#: Errors of a file system without space: full, over quota, or over its maximum file size.
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
#: Bytes per read when a segment is searched for non-zero bytes.
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
#: Advice for a segment with lost bytes.
RESTORE: Final = (
    "stop the broker, restore that file from a backup, and start it; `halfmq store verify` looks at all files"
)
#: Maximum number of open segments.
OPEN_SEGMENTS_MAX: Final = 128


def segment_name(start: int) -> str:
    """File name of the segment that starts at log offset ``start``."""
    return f"{start:0{_DIGITS}d}{SUFFIX}"


def segment_starts(names: list[str], directory: Path, segment_bytes: int) -> list[int]:
    """First offsets of the segments among ``names``, ascending; other files are ignored.

    Raises:
        StoreDamaged: the name of a segment is not a multiple of the segment size.
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
    """The file of a trimmed segment cannot be removed. It only takes space."""


class Segment:
    """An open segment."""

    __slots__ = ("file", "name_synced", "path", "size", "start")

    def __init__(self, file: File, start: int, *, name_synced: bool) -> None:
        self.file = file
        self.path = file.path
        self.start = start
        #: Whether its name and size survive a power loss. Until then no batch in it may be reported durable.
        self.name_synced = name_synced
        #: Size of the file when it was opened or allocated. Smaller if a crash interrupted its preallocation.
        self.size = file.size()

    def sync_name(self, disk: Disk) -> None:
        """Make first the file and then its name durable: a name that survives must lead to a complete segment."""
        self.file.sync()
        disk.sync_directory(self.path.parent)
        self.name_synced = True

    def allocate(self, segment_bytes: int) -> None:
        """Allocate the space of the whole segment; new bytes are zero.

        Raises:
            StoreFull: there is no space for it.
            OSError: any other failure.
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
            raise self._unreadable(at, error) from error

    def read_into(self, at: int, buffers: Sequence[memoryview]) -> int:
        """As ``read``, into ``buffers`` one after the other; returns the number of bytes."""
        try:
            return self.file.read_into(at, buffers)
        except OSError as error:
            raise self._unreadable(at, error) from error

    def _unreadable(self, at: int, error: OSError) -> StoreDamaged:
        return StoreDamaged(
            f"{self.path} cannot be read at log offset {self.start + at}: {error.strerror or error}", hint=RESTORE
        )

    def data_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        """Ranges at or after place ``start`` that may contain non-zero bytes, at most 1 MiB each, ascending."""
        for range_start, range_end in self.file.data_ranges(start):
            for at in range(range_start, range_end, _CHUNK):
                yield at, min(range_end, at + _CHUNK)

    def nonzero_chunks(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(place, bytes) of the ``data_ranges`` at or after ``start`` that contain non-zero bytes."""
        for at, end in self.data_ranges(start):
            chunk = self.read(at, end - at)
            if chunk != (_ZEROS if len(chunk) == _CHUNK else _ZEROS[: len(chunk)]):
                yield at, chunk

    def nonzero_from(self, start: int) -> int | None:
        """A place at or after ``start`` near the first non-zero byte; None if all are zero. Accurate to the range, not the byte."""
        return next((at for at, _ in self.nonzero_chunks(start)), None)

    def close(self) -> None:
        self.file.close()


def create_segment(disk: Disk, log_directory: Path, start: int, segment_bytes: int) -> Segment:
    """Create a segment, zero-filled and fully allocated; its name survives a power loss.

    The name is synced at every durability level: a segment that outlives the one before it would look like the oldest one of a trimmed
    log.

    Raises:
        StoreFull: there is no space for it, or not even for its name; nothing of it remains.
        OSError: any other failure.
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
    """The segments of a log by number (start // segment size), opened on demand.

    A process has about a thousand descriptors, so segments are closed if too many are open. A written segment is synced before, because
    a later descriptor may not report a failed write. ``opened`` is for the hot path: one dictionary look-up on a hit.
    """

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        """
        Raises:
            StoreDamaged: the name of a segment is not a multiple of the segment size.
        """
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.opened: dict[int, Segment] = {}
        #: The writer, the sync thread and the maintenance thread open and close files.
        self._lock = threading.Lock()
        self._disk = disk
        starts = segment_starts(disk.list(directory), directory, segment_bytes)
        self._numbers = {start // segment_bytes for start in starts}

    def numbers(self) -> list[int]:
        """All existing segments, oldest first."""
        return sorted(self._numbers)

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def path(self, number: int) -> Path:
        return self.directory / segment_name(number * self.segment_bytes)

    def get(self, number: int) -> Segment | None:
        """The segment, opened; None if it does not exist. It is shorter if a crash interrupted its preallocation."""
        segment = self.opened.get(number)
        if segment is None and number in self._numbers:
            with self._lock:
                segment = self.opened.get(number)
                if segment is None:
                    file = self._disk.open(self.path(number))
                    segment = self.opened[number] = Segment(file, number * self.segment_bytes, name_synced=False)
        return segment

    def add(self, segment: Segment) -> None:
        """Add an open segment to the log."""
        number = segment.start // self.segment_bytes
        with self._lock:
            self.opened[number] = segment
        self._numbers.add(number)

    def missing(self, numbers: Sequence[int]) -> list[tuple[int, str]]:
        """(number, problem with advice) of the segments that are missing on the disk, truncated, or replaced. Any thread.

        ``numbers``: a recent result of ``numbers()``, from the writer's thread. The caller checks there whether a reported segment still
        belongs
        to the log: a trim may have removed it.
        """
        found = []
        for number in numbers:
            what = self.what_is_wrong(number)
            if what is not None:
                found.append((number, f"{what[0]} ({what[1]})"))
        return found

    def what_is_wrong(self, number: int) -> tuple[str, str] | None:
        """(problem, advice) if the segment is missing on the disk or truncated. Any thread."""
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
        """(problem, advice) if the segment's name leads nowhere, or to another file than the open one. Any thread."""
        path = self.path(number)
        if self._disk.size(path) is None:
            return f"{path} was removed under a running broker", _BRING_BACK
        with self._lock:  # a descriptor that is closed meanwhile may be reused for another file
            segment = self.opened.get(number)
            if segment is None or segment.file.is_at(path):
                return None
        return (
            f"{path} was replaced under a running broker: the name leads to another file than it has open",
            _KEEP_THE_OLD,
        )

    def close_old(self, below: int) -> None:
        """Close surplus segments that end at or before log offset ``below``; these are synced."""
        with self._lock:
            surplus = max(0, len(self.opened) - OPEN_SEGMENTS_MAX)
            if surplus:
                closable = [number for number in self.opened if (number + 1) * self.segment_bytes <= below]
                for number in closable[:surplus]:
                    del self.opened[number]  # not closed: the loop may be reading it; its last reference closes it

    @property
    def too_many(self) -> bool:
        """Whether too many are open although ``close_old`` was called: sync some."""
        return len(self.opened) > OPEN_SEGMENTS_MAX

    def remove(self, number: int) -> None:
        """Unlink it; durable after a sync of the directory."""
        self.forget(number)
        self.unlink(number)

    def forget(self, number: int) -> None:
        """Remove the segment from the log; ``unlink`` its file next."""
        self._numbers.discard(number)
        with self._lock:
            self.opened.pop(number, None)  # as in ``close_old``

    def unlink(self, number: int) -> None:
        """Unlink the file of a removed segment; a missing file is no error. Any thread, since a large file takes a while.

        Raises:
            SegmentStays: it cannot be removed.
        """
        path = self.path(number)
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            pass  # an earlier run removed it, and was stopped before it could say so
        except OSError as error:
            raise SegmentStays(f"{path} cannot be removed: {error.strerror or error}") from error

    def close(self) -> None:
        """Close all open files; the log keeps its segments."""
        with self._lock:
            for segment in self.opened.values():
                segment.close()
            self.opened.clear()
