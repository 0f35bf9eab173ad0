"""How many index files are open at once, and which of them have bytes that are not on the disk yet.

A store of 100,000,000 messages has thousands of queue files; a process has about a thousand descriptors. So files are
opened when needed and the one opened first is closed again. What was written is remembered until ``sync``, which a
checkpoint calls **from its own thread** while the sequencer goes on writing; a file that is closed or removed meanwhile is
taken out of the way under a lock that only these cold calls take.
"""

import threading
from pathlib import Path
from typing import Final

from halfmq.runtime.disk import Disk, File

#: Files kept open; the usual limit of a process is 1,024 descriptors.
OPEN_FILES_MAX: Final = 256

#: Bytes looked at in one piece when something is made zero.
_CHUNK: Final = 1 << 16

#: Which file: (topic id, queue id, first queue offset), (-1, -1, first half index), (-2, -2, segment start).
FileKey = tuple[int, int, int]


class OpenFiles:
    """Files by key. ``get`` is for the hot path: one dictionary look-up on a hit."""

    __slots__ = ("_closed_dirty", "_dirty_directories", "_disk", "_lock", "_open_max", "_writable", "dirty", "files")

    def __init__(self, disk: Disk, open_max: int = OPEN_FILES_MAX, *, writable: bool = True) -> None:
        self._disk = disk
        self._writable = writable
        self._open_max = open_max
        #: In the order of opening; the first is closed when there are too many.
        self.files: dict[FileKey, File] = {}
        #: A key for each file with writes that no ``sync`` has covered; set after the write, as in ``write``.
        self.dirty: dict[File, None] = {}
        #: Files that were closed, to keep the number low, before a ``sync`` covered them.
        self._closed_dirty: dict[Path, None] = {}
        self._dirty_directories: dict[Path, None] = {}
        self._lock = threading.Lock()

    def get(self, key: FileKey, path: Path) -> File:
        """The open file; opened when it is not. Raises FileNotFoundError when there is none."""
        file = self.files.get(key)
        return file if file is not None else self._remember(key, self._disk.open(path, writable=self._writable))

    def create(self, key: FileKey, path: Path, length: int) -> File:
        """The file, ``length`` bytes long at least and made with its directories when missing. New bytes are zero.

        Files are sparse: their length is set once, so that a mapped reader never sees one grow or shrink.
        """
        file = self.files.get(key)
        if file is not None:
            return file
        is_new = not self._disk.exists(path)
        if is_new:
            self._make_directories(path.parent)
        file = self._remember(key, self._disk.open(path, create=True))
        if is_new:
            self._dirty_directories[path.parent] = None  # after the open: a sync in between does not count
        try:
            self.lengthen(file, length)
        except OSError:
            self._close(key)  # the next one to ask must not take it for whole
            raise
        return file

    def lengthen(self, file: File, length: int) -> None:
        """See to it that the file is ``length`` bytes long at least: a crash may have kept its name and lost that."""
        if file.size() < length:
            file.truncate(length)
            self.dirty[file] = None

    def write(self, file: File, at: int, parts: list[bytes]) -> None:
        """Write, and remember that ``sync`` must cover it. Marked after the write: a sync in between does not count."""
        file.write(at, parts)
        self.dirty[file] = None

    def zero(self, file: File, start: int, end: int) -> None:
        """Make zero what is not, from ``start`` to ``end``. Holes stay holes."""
        for range_start, range_end in file.data_ranges(start):
            for at in range(range_start, min(range_end, end), _CHUNK):
                chunk = file.read(at, min(_CHUNK, range_end - at, end - at))
                zeros = bytes(len(chunk))
                if chunk != zeros:
                    self.write(file, at, [zeros])

    def directory_changed(self, directory: Path) -> None:
        self._dirty_directories[directory] = None

    def sync(self) -> None:
        """Make durable everything that was written before the call. From any thread.

        Raises:
            OSError: nothing is known about what was written; the caller must not write a checkpoint, and poisons.
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
                pass  # the writer removed it: its own name is what the sync of its parent makes durable

    def remove(self, key: FileKey, path: Path) -> None:
        """Close and unlink. Whoever has it mapped keeps what it mapped."""
        self._close(key)
        with self._lock:
            self._closed_dirty.pop(path, None)
        if self._disk.exists(path):
            self._disk.remove(path)
            self._dirty_directories[path.parent] = None

    def remove_directory(self, directory: Path) -> None:
        """Remove a directory with nothing in it; one that has something, or is not there, is left alone."""
        if self._disk.remove_directory(directory):
            self._dirty_directories[directory.parent] = None

    def close(self) -> None:
        """Close all. What was not synced stays in the page cache."""
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
        """A sync is of the file, not of the descriptor that wrote: another one serves."""
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
