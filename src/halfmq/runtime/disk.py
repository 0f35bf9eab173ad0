"""The file operations of the store. Tests replace ``RealDisk`` by a disk that injects faults.

Durability is that of POSIX: written bytes are in the page cache and survive a power loss only after ``sync`` of the file
returned. A new, renamed or removed name survives only after ``sync_directory`` of its directory returned. A write that was
not synced may be kept, lost or torn at any 512-byte boundary, in any order.
"""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class File(Protocol):
    """An open file. Offsets and lengths are bytes. All methods raise the operating system's OSError, with the file name."""

    path: Path

    def write(self, at: int, parts: list[bytes]) -> int:
        """Write the concatenation of ``parts`` at offset ``at``, completely or with OSError. Returns the bytes written."""

    def read(self, at: int, length: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file."""

    def read_into(self, at: int, buffers: Sequence[memoryview]) -> int:
        """Fill ``buffers``, at most ``BUFFERS_MAX``, one after the other, with the bytes from ``at`` on. Returns their number; fewer than
        fit only at the end of the file.
        """

    def sync(self) -> None:
        """fdatasync: once it returns, all earlier writes are durable. If it raises, which writes are durable is unknown."""

    def allocate(self, length: int) -> None:
        """Preallocate, so that writes below ``length`` cannot fail for lack of space. New bytes read as zero."""

    def truncate(self, length: int) -> None:
        """Set the size of the file."""

    def data_ranges(self, at: int) -> list[tuple[int, int]]:
        """(start, end) of each range at or after ``at`` that may contain non-zero bytes, ascending.

        Lets a reader skip preallocated space. A single range up to the file's size is always correct. Returns all ranges at
        once, because a read brings neighbouring pages into the page cache, and the system then reports them as data.
        """

    def size(self) -> int:
        """Size in bytes."""

    def is_at(self, path: Path) -> bool:
        """Whether ``path`` names this file; False if the file was removed, moved or replaced."""

    def close(self) -> None:
        """Close the file; harmless if repeated."""


class Lock(Protocol):
    """A lock, held until ``close``, until the object is garbage-collected, or until the process ends."""

    def is_at(self, path: Path) -> bool:
        """Whether ``path`` still names the locked file; False if the file was removed, moved or replaced."""

    def close(self) -> None:
        """Release the lock; harmless if repeated."""


class Disk(Protocol):
    """File system operations. All methods raise the operating system's OSError."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        """Open a file; ``create``: create it if it is missing."""

    def exists(self, path: Path) -> bool:
        """Whether the file or directory exists."""

    def size(self, path: Path) -> int | None:
        """Size of the file in bytes; None if it does not exist."""

    def list(self, directory: Path) -> list[str]:
        """Sorted names in ``directory``; empty if it does not exist."""

    def make_directories(self, directory: Path) -> None:
        """Create ``directory`` and its parents, if missing."""

    def rename(self, old: Path, new: Path) -> None:
        """Replace ``new`` by ``old``, atomically for readers; durable after ``sync_directory``."""

    def remove(self, path: Path) -> None:
        """Remove a file; durable after ``sync_directory``."""

    def remove_directory(self, directory: Path) -> bool:
        """Remove an empty directory. False, and no effect, if it is not empty or does not exist."""

    def sync_directory(self, directory: Path) -> None:
        """fsync of the directory: names created, renamed or removed before are durable."""

    def free_bytes(self, directory: Path) -> int:
        """Free bytes of the file system that are available to this user."""

    def lock(self, path: Path) -> Lock | None:
        """Lock a file, created if missing, for this process; None if another process holds the lock.

        Raises:
            OSError: with an ``errno`` in ``CANNOT_LOCK``, if the file system does not support such locks.
        """

    def lock_directory(self, directory: Path) -> Lock | None:
        """As ``lock``, for an existing directory. Unlike a lock file, a directory that is not empty cannot be removed."""

    def lock_holder(self, path: Path) -> int | None:
        """Id of the process that holds the lock of ``path``; None if unknown."""


#: Maximum number of buffers of one ``read_into``. Linux: IOV_MAX.
BUFFERS_MAX: Final = 1_024
#: Error codes of ``lock`` and ``lock_directory`` on file systems without such locks. NFS: EBADF for a directory.
CANNOT_LOCK: Final = frozenset({
    errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP,
})  # fmt: skip


def _named(
    call: Callable[Concatenate["RealFile", _Given], _Result],
) -> Callable[Concatenate["RealFile", _Given], _Result]:
    """Add the file name to an OSError: calls on a descriptor do not."""

    def named(self: "RealFile", /, *given: _Given.args, **by_name: _Given.kwargs) -> _Result:
        try:
            return call(self, *given, **by_name)
        except OSError as error:
            error.filename = str(self.path)
            raise

    return named


class RealFile:
    """``File`` on the operating system."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @_named
    def write(self, at: int, parts: list[bytes]) -> int:
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        total = len(data)
        done = os.pwrite(self._descriptor, data, at)
        while done < total:  # short write after a signal or on a nearly full disk: write the rest, or get the error
            done += os.pwrite(self._descriptor, data[done:], at + done)
        return total

    @_named
    def read(self, at: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, at)

    @_named
    def read_into(self, at: int, buffers: Sequence[memoryview]) -> int:
        return os.preadv(self._descriptor, buffers, at)

    @_named
    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    @_named
    def allocate(self, length: int) -> None:
        try:
            os.posix_fallocate(self._descriptor, 0, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            if self.size() < length:
                os.ftruncate(self._descriptor, length)

    @_named
    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def data_ranges(self, at: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        size = self.size()
        while at < size:
            try:
                start = os.lseek(self._descriptor, at, os.SEEK_DATA)
                at = os.lseek(self._descriptor, start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # no data after ``at``
                    break
                return [*ranges, (at, size)]  # the file system does not report holes
            ranges.append((start, at))
        return ranges

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def is_at(self, path: Path) -> bool:
        return _is_at(self._descriptor, path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


class _HeldLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def is_at(self, path: Path) -> bool:
        return _is_at(self._descriptor, path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class RealDisk:
    """``Disk`` on the operating system."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        return RealFile(path, os.open(path, flags, 0o644))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int | None:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_directories(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_directory(self, directory: Path) -> bool:
        try:
            os.rmdir(directory)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, directory: Path) -> int:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize

    def lock(self, path: Path) -> Lock | None:
        return _locked(path, os.O_RDWR | os.O_CREAT)

    def lock_directory(self, directory: Path) -> Lock | None:
        return _locked(directory, os.O_RDONLY | os.O_DIRECTORY)

    def lock_holder(self, path: Path) -> int | None:
        # A line of /proc/locks: ``1: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF``, device in hex.
        try:
            there = os.stat(path)
            known = Path("/proc/locks").read_text()
        except OSError:
            return None
        wanted = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
        for line in known.splitlines():
            fields = line.split()
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == wanted and fields[4].isdigit():
                return int(fields[4]) or None  # 0: a process of another container
        return None


def _locked(path: Path, flags: int) -> _HeldLock | None:
    """flock ``path``, not inherited by child processes. The lock stays with the file if the name changes."""
    import fcntl

    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        error.filename = str(path)
        raise
    return _HeldLock(descriptor)
