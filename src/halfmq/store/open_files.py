"""Limits the number of open index files, and tracks which files have unsynced writes.

A store of 100,000,000 messages has thousands of queue files; a process has about a thousand descriptors. Files are opened on demand,
and the one opened first is closed. Writes are tracked until ``sync``, which a checkpoint calls **on its own thread** while the
sequencer continues to write. A file that is closed or removed meanwhile is handled under a lock that only these rare calls take.
"""

import threading
from pathlib import Path
from typing import Final

from halfmq.runtime.disk import Disk, File

#: Maximum number of open files; the usual limit of a process is 1,024 descriptors.
OPEN_FILES_MAX: Final = 256

#: Bytes per read while a range is zeroed.
_CHUNK: Final = 1 << 16

#: Identifies a file: (topic id, queue id, first queue offset), (-1, -1, first half index), (-2, -2, segment start).
FileKey = tuple[int, int, int]


class OpenFiles:
    """Open files by key. ``get`` is for the hot path: one dictionary look-up on a hit."""

    __slots__ = ("_closed_dirty", "_dirty_directories", "_disk", "_lock", "_open_max", "_writable", "dirty", "files")

    def __init__(self, disk: Disk, open_max: int = OPEN_FILES_MAX, *, writable: bool = True) -> None:
        self._disk = disk
        self._writable = writable
        self._open_max = open_max
        #: In the order of opening; the first is closed if there are too many.
        self.files: dict[FileKey, File] = {}
        #: Files with writes that no ``sync`` has covered; set after the write, as in ``write``.
        self.dirty: dict[File, None] = {}
        #: Files that were closed before a ``sync`` covered them, to limit their number.
        self._closed_dirty: dict[Path, None] = {}
        self._dirty_directories: dict[Path, None] = {}
        self._lock = threading.Lock()

    def get(self, key: FileKey, path: Path) -> File:
        """The open file; opened if necessary. Raises FileNotFoundError if it does not exist."""
        file = self.files.get(key)
        return file if file is not None else self._remember(key, self._disk.open(path, writable=self._writable))

    def create(self, key: FileKey, path: Path, length: int) -> File:
        """The file, at least ``length`` bytes long; it and its directories are created if missing. New bytes are zero.

        Files are sparse. Their length is set once, so that a mapped reader never sees a file grow or shrink.
        """
        file = self.files.get(key)
        if file is not None:
            return file
        is_new = not self._disk.exists(path)
        if is_new:
            self._make_directories(path.parent)
        file = self._remember(key, self._disk.open(path, create=True))
        if is_new:
            self._dirty_directories[path.parent] = None  # after the open: a sync in between does not cover it
        try:
            self.lengthen(file, length)
        except OSError:
            self._close(key)  # the next caller must not treat it as complete
            raise
        return file

    def lengthen(self, file: File, length: int) -> None:
        """Make the file at least ``length`` bytes long: a crash may have kept its name and lost its length."""
        if file.size() < length:
            file.truncate(length)
            self.dirty[file] = None

    def write(self, file: File, at: int, parts: list[bytes]) -> None:
        """Write, and mark the file for ``sync``. Marked after the write: a sync in between does not cover it."""
        file.write(at, parts)
        self.dirty[file] = None

    def zero(self, file: File, start: int, end: int) -> None:
        """Zero the bytes from ``start`` to ``end`` that are not zero. Holes stay holes."""
        for range_start, range_end in file.data_ranges(start):
            for at in range(range_start, min(range_end, end), _CHUNK):
                chunk = file.read(at, min(_CHUNK, range_end - at, end - at))
                zeros = bytes(len(chunk))
                if chunk != zeros:
                    self.write(file, at, [zeros])

    def directory_changed(self, directory: Path) -> None:
        self._dirty_directories[directory] = None

    def sync(self) -> None:
        """Make durable everything that was written before the call. On any thread.

        Raises:
            OSError: the state of the written bytes is unknown; the caller must not write a checkpoint, and poisons the store.
        """
        for file in list(self.dirty):
            with self._lock:
                if file in self.dirty:
                    del self.dirty[file]
                    file.sync()
        for path in list(self._closed_dirty):
            with self._lock:
                if path in self._closed_dirty:
                    del self._closed_dirty[path]
                    self._sync_closed(path)
        for directory in list(self._dirty_directories):
            self._dirty_directories.pop(directory, None)
            try:
                self._disk.sync_directory(directory)
            except FileNotFoundError:
                pass  # the writer removed it: the sync of its parent makes the removal durable

    def remove(self, key: FileKey, path: Path) -> None:
        """Close and unlink. Mappings of the file stay valid."""
        self._close(key)
        with self._lock:
            self._closed_dirty.pop(path, None)
        if self._disk.exists(path):
            self._disk.remove(path)
            self._dirty_directories[path.parent] = None

    def remove_directory(self, directory: Path) -> None:
        """Remove an empty directory; one that is not empty or does not exist is left alone."""
        if self._disk.remove_directory(directory):
            self._dirty_directories[directory.parent] = None

    def close(self) -> None:
        """Close all. Unsynced writes stay in the page cache."""
        for key in list(self.files):
            self._close(key)

    def _remember(self, key: FileKey, file: File) -> File:
        if len(self.files) >= self._open_max:
            first = next(iter(self.files))
            with self._lock:
                oldest = self.files.pop(first)
                if oldest in self.dirty:
                    del self.dirty[oldest]
                    self._closed_dirty[oldest.path] = None
                oldest.close()
        self.files[key] = file
        return file

    def _sync_closed(self, path: Path) -> None:
        """Sync a closed file: a sync applies to the file, not to the descriptor that wrote it."""
        file = self._disk.open(path)
        try:
            file.sync()
        finally:
            file.close()

    def _close(self, key: FileKey) -> None:
        file = self.files.pop(key, None)
        if file is None:
            return
        with self._lock:
            self.dirty.pop(file, None)
            file.close()

    def _make_directories(self, directory: Path) -> None:
        missing = directory
        changed = []
        while not self._disk.exists(missing):
            missing = missing.parent
            changed.append(missing)
        self._disk.make_directories(directory)
        self._dirty_directories.update(dict.fromkeys(changed))
