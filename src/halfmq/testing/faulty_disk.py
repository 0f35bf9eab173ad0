"""A disk in memory that keeps POSIX's promises and no more, and breaks what POSIX lets it break.

It implements ``halfmq.runtime.disk.Disk``. Two states are kept: what a running process sees (the page cache), and what would
be there after a power loss. ``sync`` moves a file from one to the other, ``sync_directory`` the names in a directory.

    crash()             power goes and comes back: of what was not synced, each 512-byte sector of a file keeps any one of
                        the contents it had since the last sync (so writes are kept, lost, torn and reordered), and each
                        change of a name is kept or lost on its own; so is each file's length. Open files and locks die
    kill()              the process ends, the page cache stays
    power_fails_after   an operation is cut in the middle: raises ``PowerLost``; call ``crash`` or ``kill`` next
    fail                the next matching writes, syncs or allocations raise an OSError
    fill                the disk has only so many bytes more
    flip_bit            a bit rots, on the disk and in the cache
    sync_is_a_lie       syncs return and do nothing: with it, a test of durability must go red

A sync that fails drops what it should have written, as Linux does: the pages count as clean afterwards, and a second sync
succeeds without writing them. All dice come from one seed, so a run repeats exactly.
"""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

SECTOR_BYTES: Final = 512
#: Of what was not synced, this share survives a crash; one of them is chosen for each crash.
_KEPT: Final = (0.0, 0.1, 0.5, 0.5, 0.9, 1.0)
_PLENTY: Final = 1 << 50


class PowerLost(BaseException):
    """The power failed in the middle of an operation. Nothing but ``FaultyDisk.crash`` may follow.

    No ``Exception``, since there is nobody left who could handle it.
    """


class _Inode:
    """The content of a file, seen and durable."""

    __slots__ = ("durable", "durable_size", "older", "pending", "seen", "sizes")

    def __init__(self) -> None:
        self.seen = bytearray()
        self.durable = bytearray()
        #: Length that survives; ``durable`` may be shorter or longer, zeros are implied.
        self.durable_size = 0
        #: Writes since the last sync, in order.
        self.pending: list[tuple[int, bytes]] = []
        #: Lengths since the last sync, in order.
        self.sizes: list[int] = []
        #: Shorter contents that are mapped by somebody; later writes show in them too.
        self.older: list[bytearray] = []

    def write(self, at: int, data: bytes) -> None:
        end = at + len(data)
        if end > len(self.seen):
            self.resize(end)
        self.seen[at:end] = data
        for old in self.older:
            if at < len(old):
                old[at:end] = data[: len(old) - at]
        self.pending.append((at, data))

    def resize(self, length: int) -> None:
        if length == len(self.seen):
            return
        if not self.seen:
            self.seen = bytearray(length)  # pages of a long file that is mostly zeros are never touched
            self.sizes.append(length)
            return
        try:
            if length > len(self.seen):
                self.seen.extend(bytes(length - len(self.seen)))
            else:
                del self.seen[length:]
        except BufferError:  # mapped: the map keeps the old length
            self.older.append(self.seen)
            self.seen = self.seen[:length] + bytes(max(0, length - len(self.seen)))
        self.sizes.append(length)

    def make_durable(self) -> None:
        self.durable_size = len(self.seen)
        for at, data in self.pending:
            _put(self.durable, at, data)
        del self.durable[self.durable_size :]
        self.pending.clear()
        self.sizes.clear()

    def forget_pending(self) -> None:
        """What a failed sync does: the cache says one thing, the disk another, and nothing is dirty any more."""
        self.pending.clear()
        self.sizes.clear()

    def lose_power(self, dice: random.Random, kept: float) -> None:
        sizes = [self.durable_size, *self.sizes]
        size = sizes[-1] if dice.random() < kept else dice.choice(sizes)
        self._keep_sectors(dice, kept)
        del self.durable[size:]
        self.durable_size = size
        self.seen = bytearray(size)
        self.seen[: len(self.durable)] = self.durable
        self.pending = []
        self.sizes = []
        self.older = []

    def _keep_sectors(self, dice: random.Random, kept: float) -> None:
        """Each sector gets the content it had after any number of the writes that touched it."""
        if not self.pending or kept == 0.0:
            return
        if kept == 1.0:
            for at, data in self.pending:
                _put(self.durable, at, data)
            return
        touched: dict[int, list[tuple[int, bytes]]] = {}
        for at, data in self.pending:
            for sector in range(at // SECTOR_BYTES, (at + len(data) - 1) // SECTOR_BYTES + 1):
                touched.setdefault(sector, []).append((at, data))
        for sector, writes in touched.items():
            count = len(writes) if dice.random() < kept else dice.randrange(len(writes))
            start = sector * SECTOR_BYTES
            for at, data in writes[:count]:
                low = max(at, start)
                high = min(at + len(data), start + SECTOR_BYTES)
                _put(self.durable, low, data[low - at : high - at])


def _put(content: bytearray, at: int, data: bytes) -> None:
    if at > len(content):
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


class FaultyFile:
    """One open file of a ``FaultyDisk``. After a crash every call raises EIO."""

    def __init__(self, disk: "FaultyDisk", path: Path, inode: _Inode, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode: _Inode | None = inode
        self._writable = writable
        self._life = disk.crashes
        self._view: memoryview | None = None
        self._viewed: bytearray | None = None

    def write(self, at: int, parts: list[bytes]) -> int:
        inode = self._alive()
        if not self._writable:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        grown = at + len(data) - len(inode.seen)
        lost = self._disk._step("write", self.path)
        if grown > 0:
            self._disk._claim(grown, self.path)
        if data:
            inode.write(at, data)
        if lost:
            raise PowerLost
        return len(data)

    def read(self, at: int, length: int) -> bytes:
        return bytes(self._alive().seen[at : at + length])

    def view(self) -> memoryview:
        seen = self._alive().seen
        if self._view is None or self._viewed is not seen or len(self._view) != len(seen):
            self._viewed = seen
            # Mapped through a view that nobody can write to.
            self._view = memoryview(seen).toreadonly()
        return self._view

    def sync(self) -> None:
        inode = self._alive()
        try:
            lost = self._disk._step("sync", self.path)
        except OSError:
            inode.forget_pending()
            raise
        if lost:  # some of it arrived
            raise PowerLost
        if not self._disk.sync_is_a_lie:
            inode.make_durable()

    def allocate(self, length: int) -> None:
        inode = self._alive()
        lost = self._disk._step("allocate", self.path)
        grown = length - len(inode.seen)
        if grown > 0:
            self._disk._claim(grown, self.path)
            inode.resize(length)
        if lost:
            raise PowerLost

    def truncate(self, length: int) -> None:
        inode = self._alive()
        lost = self._disk._step("truncate", self.path)
        inode.resize(length)
        if lost:
            raise PowerLost

    def data_ranges(self, at: int) -> list[tuple[int, int]]:
        size = len(self._alive().seen)
        return [(at, size)] if at < size else []

    def size(self) -> int:
        return len(self._alive().seen)

    def close(self) -> None:
        self._view = None
        self._viewed = None
        self._inode = None

    def _alive(self) -> _Inode:
        if self._inode is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        if self._life != self._disk.crashes:
            raise OSError(errno.EIO, "the machine that opened this file is gone", str(self.path))
        return self._inode


class _Lock:
    def __init__(self, disk: "FaultyDisk", path: Path) -> None:
        self._disk = disk
        self._path = path
        self._life = disk.crashes
        self._held = True
        disk._locked.add(path)

    def close(self) -> None:
        if self._held and self._life == self._disk.crashes:
            self._disk._locked.discard(self._path)
        self._held = False

    def __del__(self) -> None:
        self.close()


#: A directory is a name that leads to None.
_Names = dict[Path, _Inode | None]
#: A change of names, to be done to either state.
_Change = Callable[[_Names], None]


class FaultyDisk:
    """A ``Disk``. Same seed and same calls: same disk."""

    def __init__(self, seed: int = 0) -> None:
        self.dice = random.Random(seed)
        #: Syncs return without doing anything, of files and of directories.
        self.sync_is_a_lie = False
        #: How often power was lost or the process killed; files that were opened before are dead.
        self.crashes = 0
        #: Operations that change something, so far: what ``power_fails_after`` counts.
        self.steps = 0
        #: Called with (operation, path) before each step; for tests that look at the order of things.
        self.on_step: Callable[[str, Path], None] | None = None
        root: _Names = {Path("/"): None}
        self._seen: _Names = dict(root)
        self._durable: _Names = dict(root)
        #: Changes of names that no ``sync_directory`` has covered, in order, with the directories they are in.
        self._changes: list[tuple[frozenset[Path], _Change]] = []
        self._locked: set[Path] = set()
        self._room = _PLENTY
        self._fail: list[tuple[str, str, int]] = []
        self._power_fails_at: int | None = None

    # --- what a test does to it ------------------------------------------------------------------------------

    def crash(self) -> None:
        """Power is lost and comes back. See the module's text for what survives."""
        dice = self.dice
        kept = dice.choice(_KEPT)
        used = self._used()
        for _, change in self._changes:
            if dice.random() < kept:
                change(self._durable)
        self._changes.clear()
        self._seen = {path: inode for path, inode in self._durable.items() if self._reachable(path)}
        self._durable = dict(self._seen)
        for path in sorted(self._seen):
            inode = self._seen[path]
            if inode is not None:
                inode.lose_power(dice, kept)
        self._give_back(used - self._used())
        self.kill()

    def kill(self) -> None:
        """The process dies, the machine does not: open files and locks are gone, what was written stays unsynced."""
        self._locked.clear()
        self._fail.clear()
        self._power_fails_at = None
        self.crashes += 1

    def power_fails_after(self, steps: int) -> None:
        """The operation after so many more steps is done in part, and raises ``PowerLost``."""
        self._power_fails_at = self.steps + steps

    def fail(self, operation: str, code: int = errno.EIO, *, path_ends: str = "", times: int = 1) -> None:
        """The next ``times`` operations ("write", "sync", "allocate", "create", "rename", ...) on such paths raise."""
        self._fail += [(operation, path_ends, code)] * times

    def heal(self) -> None:
        """Nothing that was ordered happens any more, no failure and no loss of power; the disk has room again."""
        self._fail.clear()
        self._power_fails_at = None
        self._room = _PLENTY

    def fill(self, room: int) -> None:
        """From now on the disk has ``room`` bytes; removed files give theirs back."""
        self._room = room

    def flip_bit(self, path: Path, at: int, bit: int = 0) -> None:
        """A bit of a file rots, where it lies and where it is seen."""
        inode = self._inode(path)
        value = inode.seen[at] ^ (1 << bit)
        inode.seen[at] = value
        for old in inode.older:
            if at < len(old):
                old[at] = value
        if at < len(inode.durable):
            inode.durable[at] = value

    def put(self, path: Path, content: bytes) -> None:
        """Replace the content of a file, durably, as somebody with an editor would."""
        inode = self._inode(path)
        inode.resize(len(content))
        inode.write(0, content)
        inode.make_durable()

    def content(self, path: Path) -> bytes:
        """What a reader sees."""
        return bytes(self._inode(path).seen)

    def image(self) -> dict[Path, bytes]:
        """Every file as a reader sees it: to show that something changed nothing."""
        return {path: bytes(inode.seen) for path, inode in self._seen.items() if inode is not None}

    # --- Disk ------------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> FaultyFile:
        if path in self._seen:
            inode = self._seen[path]
            if inode is None:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            return FaultyFile(self, path, inode, writable)
        if not create:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._need_directory(path.parent)
        lost = self._step("create", path)
        made = _Inode()
        self._change({path.parent}, lambda names: names.__setitem__(path, made))
        if lost:
            raise PowerLost
        return FaultyFile(self, path, made, writable)

    def exists(self, path: Path) -> bool:
        return path in self._seen

    def list(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self._seen if path.parent == directory and path != directory)

    def make_directories(self, directory: Path) -> None:
        missing = [path for path in (directory, *directory.parents) if path not in self._seen]
        for path in reversed(missing):
            self._step("mkdir", path)
            self._change({path.parent}, lambda names, path=path: names.__setitem__(path, None))  # type: ignore[misc]

    def rename(self, old: Path, new: Path) -> None:
        inode = self._inode(old)
        self._need_directory(new.parent)
        lost = self._step("rename", new)
        replaced = self._seen.get(new)
        if replaced is not None and replaced is not inode:
            self._give_back(len(replaced.seen))

        def change(names: _Names) -> None:
            if names.get(old) is inode:
                del names[old]
            names[new] = inode

        self._change({old.parent, new.parent}, change)
        if lost:
            raise PowerLost

    def remove(self, path: Path) -> None:
        inode = self._inode(path)
        lost = self._step("remove", path)
        self._give_back(len(inode.seen))

        def change(names: _Names) -> None:
            if names.get(path) is inode:
                del names[path]

        self._change({path.parent}, change)
        if lost:
            raise PowerLost

    def sync_directory(self, directory: Path) -> None:
        self._need_directory(directory)
        if self._step("sync_directory", directory):
            raise PowerLost
        if self.sync_is_a_lie:
            return
        waiting = []
        for directories, change in self._changes:
            if directory in directories:
                change(self._durable)
            else:
                waiting.append((directories, change))
        self._changes = waiting

    def free_bytes(self, directory: Path) -> int:
        return self._room

    def lock(self, path: Path) -> object | None:
        if path in self._locked:
            return None
        self.open(path, create=True)
        return _Lock(self, path)

    # --- inside ----------------------------------------------------------------------------------------------

    def _step(self, operation: str, path: Path) -> bool:
        """Count an operation; raise what was ordered for it. True: power fails in the middle of it."""
        self.steps += 1
        if self.on_step is not None:
            self.on_step(operation, path)
        for place, (wanted, path_ends, code) in enumerate(self._fail):
            if wanted == operation and str(path).endswith(path_ends):
                del self._fail[place]
                raise OSError(code, os.strerror(code), str(path))
        return self._power_fails_at is not None and self.steps > self._power_fails_at

    def _claim(self, grown: int, path: Path) -> None:
        if grown > self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self._room -= grown

    def _used(self) -> int:
        return sum(len(inode.seen) for inode in self._seen.values() if inode is not None)

    def _give_back(self, length: int) -> None:
        self._room += length

    def _change(self, directories: set[Path], change: _Change) -> None:
        change(self._seen)
        self._changes.append((frozenset(directories), change))

    def _inode(self, path: Path) -> _Inode:
        inode = self._seen.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def _need_directory(self, directory: Path) -> None:
        if self._seen.get(directory, directory) is not None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))

    def _reachable(self, path: Path) -> bool:
        """Whether every directory on the way to it survived."""
        return all(parent in self._durable for parent in path.parents)
