"""A disk in memory that keeps POSIX's guarantees and no more, and breaks what POSIX permits to break.

It implements ``halfmq.runtime.disk.Disk``. It has two states: what a running process sees (the page cache), and what would
remain after a power loss. ``sync`` copies a file from the first to the second, ``sync_directory`` the names in a directory.

    crash()             power fails and returns: of what was not synced, each 512-byte sector of a file keeps any one of the
                        contents it had since the last sync (so writes are kept, lost, torn and reordered), and each change
                        of a name is kept or lost independently; so is each file's length. Open files and locks are gone
    kill()              the process ends, the page cache stays
    power_fails_after   an operation is cut in the middle: raises ``PowerLost``; call ``crash`` or ``kill`` next
    before, after       called with each operation; may raise ``PowerLost``
    fail                the next matching reads, writes, syncs or allocations raise an OSError; a write may be short
    fill                limits the remaining space of the disk
    flip_bit            a bit flips, on the disk and in the cache
    sync_is_a_lie       syncs return and do nothing: with it, a test of durability must fail
    fork                another disk in the same state, to see what a crash here would leave

A failed sync wrote some sectors of what it should have written, or none, or all. Afterwards nothing is dirty, and a second sync
succeeds without writing the rest, as on Linux. Until the process ends the cache still shows the data; then
any of its pages may be dropped, alone or with others.

``faults`` counts what happened, by the names in ``disk_faults``. Every rng is seeded from one seed, so a run repeats exactly.
"""

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from halfmq.runtime.disk import Lock, Protected
from tests.support.disk_faults import Fails, FaultOrders
from tests.support.page_cache import BLOCK_BYTES, SECTOR_BYTES, CachedFile, Mark

__all__ = ["BLOCK_BYTES", "SECTOR_BYTES", "FaultyDisk", "FaultyFile", "Operation", "PowerLost"]

#: Fractions of unsynced data that survive a crash; one is chosen for each crash.
_KEPT: Final = (0.0, 0.1, 0.5, 0.5, 0.9, 1.0)
#: The same for a failed sync.
_KEPT_BY_FAILED_SYNC: Final = (0.0, 0.0, 0.5, 1.0)
#: Fractions of the pages that a failed sync left clean which are dropped from the cache when the process ends.
_DROPPED: Final = (0.0, 0.5, 1.0)
_PLENTY: Final = 1 << 50


class PowerLost(BaseException):
    """The power failed during an operation. Only ``FaultyDisk.crash`` or ``kill`` may follow.

    Not an ``Exception``, since the process no longer exists and could not handle it.
    """


class Operation(NamedTuple):
    """An operation that changes the disk. ``at``, ``length``: of a write; the new length of an allocation or truncation."""

    #: write, sync, allocate, truncate, create, rename (``path`` is the new name), remove, mkdir, rmdir,
    #: sync_directory
    kind: str
    path: Path
    at: int
    length: int
    #: Counts from 1 for each disk.
    number: int


class FaultyFile:
    """One open file of a ``FaultyDisk``. After a crash every call raises EIO."""

    def __init__(self, disk: "FaultyDisk", path: Path, inode: CachedFile, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode: CachedFile | None = inode
        self._writable = writable
        self._life = disk.crashes

    def write(self, at: int, parts: list[bytes]) -> int:
        inode = self._alive()
        if not self._writable:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        disk = self._disk
        fails = disk._begin("write", self.path, at, len(data))
        if fails is not None:
            data = disk._spoil(fails, data)
        if disk._cutting is not None:
            data = data[: disk._cutting]
        fitting = disk._claim_write(inode, at, len(data))
        if fitting:
            inode.write(at, data if fitting == len(data) else data[:fitting])
        if disk._cutting is not None:
            disk._lose("torn write")
        if fitting < len(data):
            disk._full("write", self.path)
        if fails is not None:
            disk._raise("write", fails.code, self.path)
        disk._end()
        return len(data)

    def read(self, at: int, length: int) -> bytes:
        inode = self._alive()
        if self._disk.orders.any and (fails := self._disk.orders.take("read", self.path)) is not None:
            self._disk._raise("read", fails.code, self.path)  # changes nothing, so it does not count as a step
        return bytes(inode.seen[at : at + length])

    def read_into(self, at: int, buffers: Sequence[memoryview]) -> int:
        data = self.read(at, sum(map(len, buffers)))
        place = 0
        for buffer in buffers:
            part = data[place : place + len(buffer)]
            buffer[: len(part)] = part
            place += len(part)
        return place

    def sync(self) -> None:
        inode = self._alive()
        disk = self._disk
        fails = disk._begin("sync", self.path)
        if disk._cutting is not None:
            disk._lose("cut operation")
        if fails is not None:
            lost = inode.fail_to_sync(disk.orders.rng, disk.failed_sync_keeps())
            disk.faults["failed sync lost" if lost else "failed sync kept"] += 1
            disk._raise("sync", fails.code, self.path)
        if not disk.sync_is_a_lie:
            began = disk._began.pop(inode, None)
            inode.make_durable() if began is None else inode.make_durable_up_to(began)
        disk._end()

    def allocate(self, length: int) -> None:
        inode = self._alive()
        if self._disk._begin_whole("allocate", self.path, length):
            if not self._disk._claim(inode, range(-(-length // BLOCK_BYTES))):
                self._disk._full("allocate", self.path)
            if length > len(inode.seen):
                inode.resize(length)
        self._disk._end_whole()

    def truncate(self, length: int) -> None:
        inode = self._alive()
        if self._disk._begin_whole("truncate", self.path, length):
            before = len(inode.claimed)
            inode.resize(length)
            self._disk._used += (len(inode.claimed) - before) * BLOCK_BYTES
        self._disk._end_whole()

    def data_ranges(self, at: int) -> list[tuple[int, int]]:
        return self._alive().data_ranges(at)

    def size(self) -> int:
        return len(self._alive().seen)

    def is_at(self, path: Path) -> bool:
        return self._disk._seen.get(str(path)) is self._alive()

    def close(self) -> None:
        self._inode = None

    def _alive(self) -> CachedFile:
        if self._inode is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        if self._life != self._disk.crashes:
            raise OSError(errno.EIO, "the machine that opened this file is gone", str(self.path))
        return self._inode


class _Lock:
    """The lock of a file, whatever its name; of a directory by its name, since tests move no directory."""

    def __init__(self, disk: "FaultyDisk", what: CachedFile | str) -> None:
        self._disk = disk
        self._what = what
        self._life = disk.crashes
        self._held = True
        disk._locked.add(what)

    def is_at(self, path: Path) -> bool:
        seen = self._disk._seen
        return str(path) in seen and (str(path) if seen[str(path)] is None else seen[str(path)]) == self._what

    def close(self) -> None:
        if self._held and self._life == self._disk.crashes:
            self._disk._locked.discard(self._what)
        self._held = False

    def __del__(self) -> None:
        self.close()


#: The name of a directory maps to None.
_Names = dict[str, CachedFile | None]


class _Change(NamedTuple):
    """A change of names, for either state. ``old`` is removed if it leads to ``inode``; ``new`` then leads to it."""

    directories: tuple[str, ...]
    old: str
    new: str
    inode: CachedFile | None

    def do(self, names: _Names) -> None:
        if self.old and names.get(self.old) is self.inode:
            names.pop(self.old, None)
        if self.new:
            names[self.new] = self.inode


def _parent(name: str) -> str:
    return name.rpartition("/")[0] or "/"


class FaultyDisk:
    """A ``Disk``. The same seed and the same calls give the same disk. Not thread-safe."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.orders = FaultOrders(seed)
        #: Number of faults so far, by name.
        self.faults: Counter[str] = self.orders.counts
        #: Syncs of files and directories return without doing anything.
        self.sync_is_a_lie = False
        #: Fraction of the dirty sectors that a failed sync wrote nevertheless; None: chosen at random for each sync.
        self.failed_sync_keeps_share: float | None = None
        #: Number of power losses and kills; files that were opened before are unusable.
        self.crashes = 0
        #: Number of operations so far that change something, as ``power_fails_after`` counts them.
        self.steps = 0
        #: Called before and after each of them; ``after`` only if it succeeded. A caller that raises ``PowerLost`` there must call
        #: ``crash`` or ``kill`` next.
        self.before: Callable[[Operation], object] | None = None
        self.after: Callable[[Operation], object] | None = None
        self._seen: _Names = {"/": None}
        self._durable: _Names = {"/": None}
        #: Changes of names that no ``sync_directory`` has covered yet, in order.
        self._changes: list[_Change] = []
        self._locked: set[CachedFile | str] = set()
        #: The files and their contents when the current syncs began.
        self._began: dict[CachedFile, Mark] = {}
        self._capacity = _PLENTY
        self._used = 0
        self._was_full = False
        self._power_fails_at: int | None = None
        #: Not None: the current operation is cut; for a write, the number of bytes written.
        self._cutting: int | None = None
        self._gone = False
        self._operation: Operation | None = None

    # --- controls for tests -----------------------------------------------------------------------------------

    def crash(self, *, power: bool = True, keep: float | None = None, only_newest_name: bool = False) -> None:
        """Power fails and returns. The module docstring says what survives.

        ``power=False`` is ``kill``. ``keep``: the fraction of unsynced data that survives, 0.0 nothing and 1.0 everything;
        None: chosen at random. ``only_newest_name``: of changes to names that were not synced the last one survives, and no other: what
        it refers to must have been synced before.
        """
        if not power:
            self.kill()
            return
        rng = self.rng
        kept = rng.choice(_KEPT) if keep is None else keep
        self.faults["power loss"] += 1
        newest = self._changes[-1] if self._changes else None
        for change in self._changes:
            if (change is newest) if only_newest_name else rng.random() < kept:
                change.do(self._durable)
            else:
                self.faults["lost names"] += 1
        self._changes.clear()
        self._seen = {name: inode for name, inode in self._durable.items() if self._reachable(name)}
        self._durable = dict(self._seen)
        for name in sorted(self._seen):
            inode = self._seen[name]
            if inode is not None:
                self.faults["lost sectors"] += inode.lose_power(rng, kept)
        self._used = sum(len(inode.claimed) for inode in self._inodes()) * BLOCK_BYTES
        self._new_life()

    def kill(self, *, drop_cache: bool | None = None) -> None:
        """The process dies, the machine does not: open files and locks are gone, written data stays unsynced.

        ``drop_cache``: whether the loss of a failed sync becomes visible now; None: chosen at random for each page.
        """
        self.faults["kill"] += 1
        for inode in self._inodes():
            if inode.lost:
                share = self.rng.choice(_DROPPED) if drop_cache is None else float(drop_cache)
                if inode.drop_cache(self.rng, share):
                    self.faults["cache dropped"] += 1
        self._new_life()

    def power_fails_after(self, steps: int) -> None:
        """The operation after this number of steps is done partly, and raises ``PowerLost``."""
        self._power_fails_at = self.steps + steps

    def syncs_begin(self) -> dict[CachedFile, Mark]:
        """For syncs that take time: what each file contains at this moment."""
        return {inode: inode.mark() for inode in self._inodes()}

    @contextmanager
    def syncing_since(self, began: dict[CachedFile, Mark]) -> Iterator[None]:
        """The first sync in this block of each changed file covers what ``syncs_begin`` saw, and nothing later."""
        self._began = {inode: mark for inode, mark in began.items() if inode.mark() != mark}
        try:
            yield
        finally:
            self._began = {}

    def fail(
        self, operation: str, code: int = errno.EIO, *, path_ends: str = "", times: int = 1, short: bool = False
    ) -> None:
        """The next ``times`` operations ("write", "read", "sync", "allocate", "create", "rename", ...) on matching paths raise.

        ``short``: some bytes of the write are written first.
        """
        self.orders.order(operation, path_ends, Fails(code, short), times)

    def heal(self) -> None:
        """Cancel everything that was ordered: failures, losses of power, limits of space."""
        self.orders.clear()
        self._power_fails_at = None
        self._set_capacity(_PLENTY)

    def fill(self, space: int) -> None:
        """Limit the remaining space to ``space`` bytes, in blocks of 4,096. Removed files free theirs."""
        self._set_capacity(self._used + space)

    def flip_bit(self, path: Path, at: int, bit: int = 0) -> None:
        """Flip a bit of a file, on the disk and in the cache."""
        self._inode(path).flip_bit(at, bit)
        self.faults["bit flip"] += 1

    def put(self, path: Path, content: bytes) -> None:
        """Replace the content of a file, durably, as with an editor."""
        inode = self._inode(path)
        self._used -= len(inode.claimed) * BLOCK_BYTES
        inode.resize(0)
        inode.resize(len(content))
        for at in range(0, len(content), BLOCK_BYTES):
            block = content[at : at + BLOCK_BYTES]
            if block.strip(b"\0"):
                inode.write(at, block)
        inode.make_durable()
        self._used += len(inode.claimed) * BLOCK_BYTES

    def content(self, path: Path) -> bytes:
        """What a reader sees."""
        return bytes(self._inode(path).seen[:])

    def paths(self) -> tuple[Path, ...]:
        """Every file, sorted."""
        return tuple(Path(name) for name in sorted(self._seen) if self._seen[name] is not None)

    def image(self) -> dict[Path, bytes]:
        """Every file as a reader sees it: to show that an operation changed nothing."""
        return {Path(name): bytes(inode.seen[:]) for name, inode in self._seen.items() if inode is not None}

    def fingerprint(self) -> bytes:
        """Equal for two disks on which readers see the same."""
        summed = blake2b(digest_size=16)
        for name in sorted(self._seen):
            inode = self._seen[name]
            summed.update(f"{name}\n{None if inode is None else len(inode.seen)}\n".encode())
            for start, end in inode.data_ranges(0) if inode is not None else ():
                content = inode.seen[start:end] if inode is not None else b""
                if content.strip(b"\0"):
                    summed.update(start.to_bytes(8, "big"))
                    summed.update(content)
        return summed.digest()

    def fork(self, seed: int = 0) -> "FaultyDisk":
        """Another disk in the state of this one, including unsynced data, with its own rng and without open files.

        Call ``crash`` or ``kill`` on it. It inherits ``sync_is_a_lie``, but no orders and observers.
        """
        other = FaultyDisk(seed)
        copies: dict[int, CachedFile] = {}

        def copied(inode: CachedFile | None) -> CachedFile | None:
            if inode is None:
                return None
            if id(inode) not in copies:
                copies[id(inode)] = inode.copy()
            return copies[id(inode)]

        other._seen = {name: copied(inode) for name, inode in self._seen.items()}
        other._durable = {name: copied(inode) for name, inode in self._durable.items()}
        other._changes = [change._replace(inode=copied(change.inode)) for change in self._changes]
        other._capacity, other._used, other._was_full = self._capacity, self._used, self._was_full
        other.sync_is_a_lie = self.sync_is_a_lie
        other.crashes, other.steps = self.crashes, self.steps
        return other

    # --- Disk ------------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> FaultyFile:
        name = str(path)
        if name in self._seen:
            inode = self._seen[name]
            if inode is None:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
            return FaultyFile(self, path, inode, writable)
        if not create:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self._need_directory(path.parent)
        made = CachedFile()
        if self._begin_whole("create", path):
            self._change(_Change((_parent(name),), "", name, made))
        self._end_whole()
        return FaultyFile(self, path, made, writable)

    def exists(self, path: Path) -> bool:
        return str(path) in self._seen

    def size(self, path: Path) -> int | None:
        inode = self._seen.get(str(path))
        return None if inode is None else len(inode.seen)

    def list(self, directory: Path) -> list[str]:
        start = str(directory).rstrip("/") + "/"
        skipped = len(start)
        return sorted(
            name[skipped:]
            for name in self._seen
            if name.startswith(start) and len(name) > skipped and "/" not in name[skipped:]
        )

    def make_directories(self, directory: Path) -> None:
        missing = []
        name = str(directory)
        while name not in self._seen:
            missing.append(name)
            name = _parent(name)
        for name in reversed(missing):
            if self._begin_whole("mkdir", Path(name)):
                self._change(_Change((_parent(name),), "", name, None))
            self._end_whole()

    def protect(self, path: Path, *, below: bool = False) -> Protected:
        return Protected()  # it has no accounts

    def rename(self, old: Path, new: Path) -> None:
        inode = self._inode(old)
        self._need_directory(new.parent)
        if self._begin_whole("rename", new):
            from_name, to_name = str(old), str(new)
            replaced = self._seen.get(to_name)
            if replaced is not None and replaced is not inode:
                self._used -= len(replaced.claimed) * BLOCK_BYTES
            directories = (_parent(from_name), _parent(to_name))
            self._change(_Change(directories, from_name, to_name, inode))
        self._end_whole()

    def remove(self, path: Path) -> None:
        inode = self._inode(path)
        if self._begin_whole("remove", path):
            self._used -= len(inode.claimed) * BLOCK_BYTES
            name = str(path)
            self._change(_Change((_parent(name),), name, "", inode))
        self._end_whole()

    def remove_directory(self, directory: Path) -> bool:
        name = str(directory)
        if name not in self._seen or self.list(directory):
            return False
        if self._begin_whole("rmdir", directory):
            self._change(_Change((_parent(name),), name, "", None))
        self._end_whole()
        return True

    def sync_directory(self, directory: Path) -> None:
        self._need_directory(directory)
        if self._begin_whole("sync_directory", directory) and not self.sync_is_a_lie:
            name = str(directory)
            waiting = []
            for change in self._changes:
                if name in change.directories:
                    change.do(self._durable)
                else:
                    waiting.append(change)
            self._changes = waiting
        self._end_whole()

    def free_bytes(self, directory: Path) -> int:
        return max(0, self._capacity - self._used)

    def total_bytes(self, directory: Path) -> int:
        return self._capacity

    def lock(self, path: Path) -> Lock | None:
        self.open(path, create=True)
        return self._lock("lock", path, self._inode(path))

    def lock_directory(self, directory: Path) -> Lock | None:
        self._need_directory(directory)
        return self._lock("lock_directory", directory, str(directory))

    def lock_holder(self, path: Path) -> int | None:
        return None

    def _lock(self, kind: str, path: Path, what: CachedFile | str) -> Lock | None:
        if self.orders.any and (fails := self.orders.take(kind, path)) is not None:
            self._raise(kind, fails.code, path)
        return None if what in self._locked else _Lock(self, what)

    # --- operations ------------------------------------------------------------------------------------------

    def _begin(self, kind: str, path: Path, at: int = 0, length: int = 0) -> Fails | None:
        """Count an operation, call the observer, and return how it fails. Sets ``_cutting`` if it is cut."""
        if self._gone:
            raise PowerLost
        self.steps += 1
        if self.before is not None or self.after is not None:
            self._operation = Operation(kind, path, at, length, self.steps)
            if self.before is not None:
                self._call(self.before)
        if self._power_fails_at is not None and self.steps > self._power_fails_at:
            self._cutting = self.rng.randint(0, length if kind == "write" else 1)
        return self.orders.take(kind, path) if self.orders.any else None

    def _end(self) -> None:
        if self.after is not None:
            self._call(self.after)

    def _call(self, observer: Callable[[Operation], object]) -> None:
        assert self._operation is not None
        try:
            observer(self._operation)
        except PowerLost:
            self._gone = True
            raise

    def _begin_whole(self, kind: str, path: Path, length: int = 0) -> bool:
        """Like ``_begin``, for an operation that is done completely or not at all. True: do it. Raises its error."""
        fails = self._begin(kind, path, 0, length)
        if fails is not None:
            self._raise(kind, fails.code, path)
        return self._cutting != 0

    def _end_whole(self) -> None:
        if self._cutting is not None:
            self._lose("cut operation")
        self._end()

    def _lose(self, what: str) -> NoReturn:
        self._cutting = None
        self._gone = True
        self.faults[what] += 1
        raise PowerLost

    def _raise(self, kind: str, code: int, path: Path) -> NoReturn:
        self.orders.count_error(kind, code)
        raise OSError(code, os.strerror(code), str(path))

    def _spoil(self, fails: Fails, data: bytes) -> bytes:
        """What is written by a write that fails."""
        if not fails.short:
            return b""
        self.faults["short write"] += 1
        return data[: self.orders.rng.randint(0, max(0, len(data) - 1))]

    def failed_sync_keeps(self) -> float:
        """Fraction of the dirty sectors that the failing sync wrote nevertheless."""
        share = self.failed_sync_keeps_share
        return self.orders.rng.choice(_KEPT_BY_FAILED_SYNC) if share is None else share

    # --- space ------------------------------------------------------------------------------------------------

    def _claim(self, inode: CachedFile, blocks: range) -> bool:
        """Allocate space for all of them, or for none."""
        new = [block for block in blocks if block not in inode.claimed]
        if self._used + len(new) * BLOCK_BYTES > self._capacity:
            return False
        inode.claimed.update(new)
        self._used += len(new) * BLOCK_BYTES
        return True

    def _claim_write(self, inode: CachedFile, at: int, length: int) -> int:
        """Allocate space for a write; returns how many of its bytes have space."""
        if not length:
            return 0
        for block in range(at // BLOCK_BYTES, -(-(at + length) // BLOCK_BYTES)):
            if block not in inode.claimed:
                if self._used + BLOCK_BYTES > self._capacity:
                    fitting = max(0, block * BLOCK_BYTES - at)
                    self.faults["short write"] += fitting > 0
                    return fitting
                inode.claimed.add(block)
                self._used += BLOCK_BYTES
        return length

    def _full(self, kind: str, path: Path) -> NoReturn:
        if not self._was_full:
            self.faults["disk full"] += 1
            self._was_full = True
        self._raise(kind, errno.ENOSPC, path)

    def _set_capacity(self, capacity: int) -> None:
        if self._was_full and capacity > self._capacity:
            self.faults["space again"] += 1
            self._was_full = False
        self._capacity = capacity

    # --- names -----------------------------------------------------------------------------------------------

    def _new_life(self) -> None:
        self._locked.clear()
        self.orders.clear_next()
        self._power_fails_at = None
        self._cutting = None
        self._gone = False
        self.crashes += 1

    def _change(self, change: _Change) -> None:
        change.do(self._seen)
        self._changes.append(change)

    def _inodes(self) -> Iterator[CachedFile]:
        return (inode for inode in self._seen.values() if inode is not None)

    def _inode(self, path: Path) -> CachedFile:
        inode = self._seen.get(str(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def _need_directory(self, directory: Path) -> None:
        if self._seen.get(str(directory), directory) is not None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))

    def _reachable(self, name: str) -> bool:
        """Whether every directory on the path to it survived."""
        while name != "/":
            name = _parent(name)
            if name not in self._durable:
                return False
        return True
