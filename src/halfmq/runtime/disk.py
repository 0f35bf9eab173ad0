"""The file operations of the store. Tests replace ``RealDisk`` by a disk that injects faults.

Durability is that of POSIX: written bytes are in the page cache and survive a power loss only after ``sync`` of the file
returned. A new, renamed or removed name survives only after ``sync_directory`` of its directory returned. A write that was
not synced may be kept, lost or torn at any 512-byte boundary, in any order.

Files contain what applications sent, so ``Permissions`` decides who may read every file and directory that is created here. The umask does
not.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

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


class Permissions(NamedTuple):
    """Who may use what a disk creates: its owner, and if there is a group, its members for reading."""

    #: Numeric id; None: no group.
    group: int | None = None

    @property
    def file_mode(self) -> int:
        """Mode of every file."""
        return 0o600 if self.group is None else 0o640

    @property
    def directory_mode(self) -> int:
        """Mode of every directory."""
        return 0o700 if self.group is None else 0o750


class Protected(NamedTuple):
    """Result of ``Disk.protect``."""

    #: Files and directories whose mode or group was changed.
    changed: int = 0
    #: The first one that keeps other permissions, with the reason; None if there is none.
    kept: str | None = None


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

    def protect(self, path: Path, *, below: bool = False) -> Protected:
        """Give ``path``, if it exists, the permissions that this disk gives to what it creates. Call it with the lock of the store.

        ``below``: if it is a directory with others, first everything below it, except symbolic links. The directory is last, so that an
        interrupted call is repeated by the next one, and a call after a complete one examines the directory only.
        """

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

    def total_bytes(self, directory: Path) -> int:
        """Size of the file system, bytes, used or not."""

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

#: Error codes of a change of permissions: the owner is another account, or the file system has no permissions.
_NOT_CHANGEABLE: Final = frozenset({errno.EPERM, errno.EACCES, errno.EROFS, errno.EOPNOTSUPP, errno.ENOSYS})


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


class _Descriptor:
    """An open descriptor; also a ``Lock``, if it is locked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def is_at(self, path: Path) -> bool:
        try:
            there = os.stat(path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._descriptor))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class RealFile(_Descriptor):
    """``File`` on the operating system."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(descriptor)
        self.path = path

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


class RealDisk:
    """``Disk`` on the operating system."""

    def __init__(self, permissions: Permissions = Permissions()) -> None:  # noqa: B008 - immutable
        self._permissions = permissions

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        flags = os.O_RDWR if writable else os.O_RDONLY
        return RealFile(path, self._created(path, flags) if create else os.open(path, flags | os.O_CLOEXEC))

    def _created(self, path: Path, flags: int) -> int:
        """The descriptor of a file, which is created if it is missing."""
        descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, self._permissions.file_mode)
        try:
            self._permit(descriptor, os.fstat(descriptor), path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _permit(self, target: int | Path, found: os.stat_result, path: Path) -> bool:
        """Set mode and group of a descriptor or a path; False if they need no change, or the mode cannot be changed (``protect`` reports
        it).

        Raises:
            OSError: the group cannot be set.
        """
        group, mode = self._wanted(found)
        if (found.st_gid, stat.S_IMODE(found.st_mode)) == (group, mode):
            return False
        if found.st_gid != group:
            try:
                os.chown(target, -1, group)
            except OSError as error:
                error.filename = str(path)
                raise
        try:
            os.chmod(target, mode)
        except OSError as error:
            if error.errno not in _NOT_CHANGEABLE:
                raise
            return False
        return True

    def _wanted(self, found: os.stat_result) -> tuple[int, int]:
        """Group and mode for what has this status."""
        group, file_mode = self._permissions.group, self._permissions.file_mode
        mode = self._permissions.directory_mode if stat.S_ISDIR(found.st_mode) else file_mode
        return found.st_gid if group is None else group, mode

    def exists(self, path: Path) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

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
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for made in reversed(missing):
            try:
                os.mkdir(made, self._permissions.directory_mode)
            except FileExistsError:
                if not made.is_dir():
                    raise
                continue  # somebody else was faster
            self._permit(made, os.stat(made), made)

    def protect(self, path: Path, *, below: bool = False) -> Protected:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return Protected()
        results = []
        if below and self._wanted(found) != (found.st_gid, stat.S_IMODE(found.st_mode)):
            for directory, directories, files in os.walk(path, topdown=False):
                inside = [Path(directory, name) for name in (*directories, *files)]
                results += [self._protect_one(one) for one in inside if not one.is_symlink()]
        results.append(self._protect_one(path))
        kept = next((result.kept for result in results if result.kept is not None), None)
        return Protected(sum(result.changed for result in results), kept)

    def _protect_one(self, path: Path) -> Protected:
        changed = False
        try:
            changed = self._permit(path, os.stat(path), path)
        except OSError as error:
            if error.errno not in _NOT_CHANGEABLE:
                raise
        found = os.stat(path)
        group, mode = found.st_gid, stat.S_IMODE(found.st_mode)
        return Protected(
            changed, None if (group, mode) == self._wanted(found) else f"{path} keeps mode {mode:o} and group {group}"
        )

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

    def total_bytes(self, directory: Path) -> int:
        status = os.statvfs(directory)
        return status.f_blocks * status.f_frsize

    def lock(self, path: Path) -> Lock | None:
        return _locked(path, self._created(path, os.O_RDWR))

    def lock_directory(self, directory: Path) -> Lock | None:
        return _locked(directory, os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

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


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """An empty directory for files that nobody else needs, for ``RealDisk``; removed at the end. The environment (TMPDIR) says where."""
    import tempfile  # here: a broker needs neither its time nor its memory

    with tempfile.TemporaryDirectory(prefix="halfmq-") as directory:
        yield Path(directory)


def _locked(path: Path, descriptor: int) -> _Descriptor | None:
    """flock the open ``path``; closes ``descriptor`` unless it is locked. The lock stays with the file if the name changes."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        error.filename = str(path)
        raise
    return _Descriptor(descriptor)
