"""A file that grows to a size and then gets another name, of which a number is kept. For one thread."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_MODE: Final = 0o600


class RotatedFiles:
    """``path`` is written; ``path.1`` is the newest of at most ``files_max`` older ones. Only their owner may read them."""

    def __init__(self, path: Path, bytes_max: int, files_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._descriptor = -1
        self._size = 0

    def open(self) -> None:
        """Open or create the file. A line that a crash cut is ended.

        Raises:
            OSError: it cannot be written, or is not a regular file.
        """
        # O_NONBLOCK: a pipe would wait for its reader.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, _MODE)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{self.path} is not a regular file, so it cannot be rotated")
            if stat.S_IMODE(found.st_mode) != _MODE:
                os.fchmod(descriptor, _MODE)
            if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
                os.write(descriptor, b"\n")
            self._size = os.fstat(descriptor).st_size
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def parts(self, lines: bytes) -> Iterator[bytes]:
        """``lines`` as they can be written without a file that becomes too large: all at once, or each by itself."""
        if self._size + len(lines) <= self._bytes_max:
            yield lines
        else:
            yield from lines.splitlines(keepends=True)

    def write(self, lines: bytes) -> None:
        """Write complete lines, into another file if they do not fit in this one.

        Raises:
            OSError: they are not in the file, nor is a part of them. The next call tries again, with a new file if need be.
        """
        self._follow()
        if self._size and self._size + len(lines) > self._bytes_max:
            self._rotate()
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            self._forget()  # what it has, and whether it ends with a line, is looked at anew
            raise
        self._size += len(lines)

    def close(self) -> None:
        """Sync and close the file; harmless if repeated. Raises OSError: the last lines may be lost with the machine."""
        if self._descriptor < 0:
            return
        try:
            os.fsync(self._descriptor)
        finally:
            self._forget()

    def _follow(self) -> None:
        """Open the file, unless it is open. One that somebody moved or removed is not written any more."""
        if self._descriptor >= 0:
            try:
                is_there = os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
            except FileNotFoundError:
                is_there = False
            if is_there:
                return
            self.close()
        self.open()

    def _rotate(self) -> None:
        self.close()
        names = [self.path, *(self.path.with_name(f"{self.path.name}.{at + 1}") for at in range(self._files_max))]
        if self._files_max == 0:
            os.unlink(self.path)
        for at in range(self._files_max, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(names[at - 1], names[at])
        self.open()

    def _forget(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
