"""The disk as the store sees it: few calls, each with a stated effect, so that a faulty one can stand in.

What is promised about durability is POSIX and no more: bytes written are in the page cache; they survive power
loss only after ``sync`` of that file returned; a new, renamed or removed name survives only after ``sync_directory``
of its directory returned. A write that was not synced may be kept, lost or torn at any 512-byte boundary, in any order.
"""

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class File(Protocol):
    """One open file. Offsets and lengths in bytes. All calls raise OSError as the system gives it."""

    path: Path

    def write(self, at: int, parts: list[bytes]) -> int:
        """Write ``parts`` one after another from ``at``; all of them or OSError. Returns bytes written."""
        ...

    def read(self, at: int, length: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file."""
        ...

    def view(self) -> memoryview:
        """The whole file, mapped for reading as long as it now is; sees later writes. Valid until ``close``."""
        ...

    def sync(self) -> None:
        """fdatasync: when it returns, everything written before is on the disk. If it raises, nothing is known."""
        ...

    def allocate(self, length: int) -> None:
        """Claim space so that writes below ``length`` cannot meet a full disk; new bytes read as zero."""
        ...

    def truncate(self, length: int) -> None: ...

    def data_ranges(self, at: int) -> list[tuple[int, int]]:
        """(start, end) of every stretch at or after ``at`` that may hold other bytes than zero, ascending.

        Lets a reader skip what was allocated and never written. One stretch up to the file's size is always right.
        All at once, because reading brings neighbouring pages into the cache, and those count as data from then on.
        """
        ...

    def size(self) -> int: ...

    def is_at(self, path: Path) -> bool:
        """Whether ``path`` leads to this file; not so when it was removed, moved or replaced."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    """Held until ``close``, until it is dropped, or until the process ends."""

    def is_at(self, path: Path) -> bool:
        """Whether ``path`` still leads to what is locked; not so when it was removed, moved or replaced."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File: ...

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int | None:
        """Bytes of the file that the name leads to now; None when there is none."""
        ...

    def list(self, directory: Path) -> list[str]:
        """Names in ``directory``, sorted; empty when it does not exist."""
        ...

    def make_directories(self, directory: Path) -> None: ...

    def rename(self, old: Path, new: Path) -> None:
        """Replace ``new`` by ``old``, atomically for readers; durable after ``sync_directory``."""
        ...

    def remove(self, path: Path) -> None: ...

    def remove_directory(self, directory: Path) -> bool:
        """False, and nothing happens, when there is something in it, or it is not there."""
        ...

    def sync_directory(self, directory: Path) -> None: ...

    def free_bytes(self, directory: Path) -> int: ...

    def lock(self, path: Path) -> Lock | None:
        """Lock a file, made when missing, for this process; None when another one has it.

        Raises:
            OSError: with a code of ``CANNOT_LOCK``, the file system has no locks for that.
        """
        ...

    def lock_directory(self, directory: Path) -> Lock | None:
        """The same for a directory, which somebody may move and nobody removes while there is something in it."""
        ...

    def lock_holder(self, path: Path) -> int | None:
        """Id of the process that has what is at ``path`` locked, as far as the machine tells."""
        ...


#: What ``lock`` and ``lock_directory`` raise on a file system that cannot. NFS, for one, locks no directory: EBADF.
CANNOT_LOCK: Final = frozenset({
    errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP,
})  # fmt: skip


def _named(
    call: Callable[Concatenate["RealFile", _Given], _Result],
) -> Callable[Concatenate["RealFile", _Given], _Result]:
    """An error of a descriptor does not say of which file."""

    def named(self: "RealFile", /, *given: _Given.args, **by_name: _Given.kwargs) -> _Result:
        try:
            return call(self, *given, **by_name)
        except OSError as error:
            error.filename = str(self.path)
            raise

    return named


class RealFile:
    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    @_named
    def write(self, at: int, parts: list[bytes]) -> int:
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        total = len(data)
        done = os.pwrite(self._descriptor, data, at)
        while done < total:  # a signal or a nearly full disk: the rest, or the error behind it
            done += os.pwrite(self._descriptor, data[done:], at + done)
        return total

    @_named
    def read(self, at: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, at)

    @_named
    def view(self) -> memoryview:
        size = self.size()
        if self._view is None or len(self._view) != size:
            if size == 0:
                return memoryview(b"")
            # An older view stays valid until its holders drop it; the map below it is freed with them.
            self._map = mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ)
            self._view = memoryview(self._map)
        return self._view

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
                if error.errno == errno.ENXIO:  # no data behind ``at``
                    break
                return [*ranges, (at, size)]  # a file system that cannot tell
            ranges.append((start, at))
        return ranges

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def is_at(self, path: Path) -> bool:
        return _is_at(self._descriptor, path)

    def close(self) -> None:
        self._view = None
        self._map = None
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
        """As Linux has it in /proc/locks: ``1: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF``, device in hex."""
        try:
            there = os.stat(path)
            known = Path("/proc/locks").read_text()
        except OSError:
            return None
        wanted = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
        for line in known.splitlines():
            fields = line.split()
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == wanted and fields[4].isdigit():
                return int(fields[4]) or None  # 0: of another container
        return None


def _locked(path: Path, flags: int) -> _HeldLock | None:
    """Not inherited, and not by name: it stays with the file or directory that ``path`` leads to now."""
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
