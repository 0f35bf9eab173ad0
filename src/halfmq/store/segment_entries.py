"""Files of 16-byte entries (8 bytes to search for, log offset) in log order, one file per segment: the key index, and the settled ids.

Entries are staged, and written by ``flush``. A file is removed with its segment. Bytes after its end are meaningless; a redo cuts them.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from halfmq.errors import StoreDamaged
from halfmq.runtime.disk import Disk, File
from halfmq.store.consume_queue import list_bases
from halfmq.store.layout import SEGMENT_ENTRY_BYTES
from halfmq.store.open_files import OpenFiles

#: Whether the record at a log offset gives an entry with these first 8 bytes. LookupError, ValueError, struct.error or StoreDamaged: it
#: does not.
Gives = Callable[[bytes, int], bool]

_BYTES: Final = SEGMENT_ENTRY_BYTES
#: A multiple of it. A search of it takes less than a millisecond if it finds nothing, 10 ms if every entry is found.
_PART_BYTES: Final = 1 << 19


class SegmentEntries:
    """One thread writes and reads. ``number``: distinguishes its files from others in ``files``."""

    def __init__(
        self, disk: Disk, directory: Path, suffix: str, number: int, files: OpenFiles, segment_bytes: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._suffix = suffix
        self._number = number
        self._files = files
        self._segment_bytes = segment_bytes
        #: Segment start -> number of valid bytes.
        self.ends: dict[int, int] = {}
        #: Segment start -> entries that are not in the file yet.
        self._staged: dict[int, list[bytes]] = {}

    def staged(self, offset: int) -> list[bytes]:
        """The list to which the entries of a record at ``offset`` are appended."""
        start = offset - offset % self._segment_bytes
        try:
            return self._staged[start]
        except KeyError:
            staged = self._staged[start] = []
            return staged

    def flush(self) -> None:
        """Write the staged entries.

        Raises:
            OSError: a write failed; the unwritten entries are still staged.
        """
        while self._staged:
            start, staged = next(iter(self._staged.items()))
            end = self.ends.get(start, 0)
            key = (self._number, self._number, start)
            file = self._files.files.get(key) or self._files.create(key, self.path(start), 0)
            self._files.write(file, end, staged)
            self.ends[start] = end + len(staged) * _BYTES
            del self._staged[start]

    def parts(self, start: int) -> Iterator[bytes]:
        """The written entries of the segment at ``start``, part by part, the last one first; none once the file is removed."""
        at = self.ends.get(start, 0)
        while at and start in self.ends:
            at, end = max(0, at - _PART_BYTES), at
            yield self._file(start).read(at, end - at)

    def load(self, position: int, gives: Gives) -> None:
        """Find the end of the entries before ``position`` in each file; the redo writes those from there on again.

        The last entry may be torn: an offset without its last bytes looks like a smaller one.
        """
        self._staged.clear()
        self.ends.clear()
        for start in list_bases(self._disk, self._directory, self._suffix):
            file = self._file(start)
            count = _entries_below(file, position)
            if start + self._segment_bytes > position:
                while count and not _is_whole(file, count - 1, position, gives):
                    count -= 1
            self.ends[start] = count * _BYTES

    def cut(self) -> None:
        """Truncate each file after its end. These files are not mapped, so they may shrink."""
        self.flush()
        for start, end in self.ends.items():
            file = self._file(start)
            if file.size() > end:
                file.truncate(end)
                self._files.write(file, end, [b""])

    def trim(self, log_start: int) -> None:
        """Remove the files of segments that end at or before log offset ``log_start``."""
        for start in [start for start in self.ends if start + self._segment_bytes <= log_start]:
            del self.ends[start]
            self._files.remove((self._number, self._number, start), self.path(start))

    def reset(self) -> None:
        """Remove all files."""
        self._staged.clear()
        self.ends = dict.fromkeys(list_bases(self._disk, self._directory, self._suffix), 0)
        self.trim(1 << 62)

    def path(self, start: int) -> Path:
        """The file of the segment at ``start``."""
        return self._directory / f"{start:020d}{self._suffix}"

    def _file(self, start: int) -> File:
        return self._files.get((self._number, self._number, start), self.path(start))


def _entries_below(file: File, position: int) -> int:
    """Number of entries of records before ``position``. Offsets increase along the file; zeros after a crash are no entries."""
    low, high = 0, file.size() // _BYTES
    while low < high:
        middle = (low + high) // 2
        if 0 < int.from_bytes(file.read(middle * _BYTES + 8, 8), "big") < position:
            low = middle + 1
        else:
            high = middle
    return low


def _is_whole(file: File, number: int, position: int, gives: Gives) -> bool:
    """Whether the entry belongs to a record before ``position`` that gives it."""
    raw = file.read(number * _BYTES, _BYTES)
    offset = int.from_bytes(raw[8:], "big")
    if not 0 < offset < position:
        return False
    try:
        return gives(raw[:8], offset)
    except (LookupError, ValueError, struct.error, StoreDamaged):
        return False
