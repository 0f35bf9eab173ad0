"""The content of one file twice: as a running process sees it (the page cache), and as it would be after a power loss.

Only the first is stored as a whole. For each 512-byte sector that was written since the last sync, the content on the disk is
saved before the sector changes; so a sync costs nothing and a crash costs what was not synced, however long the file.

    base    sectors that differ and are dirty: a sync writes them, a crash may keep any content they had since
    lost    sectors that differ and count as clean after a failed sync: no later sync writes them until they are written
            again. Linux does the same; since 4.13 it reports the error once
"""

import mmap
import random
from typing import Final, NamedTuple

SECTOR_BYTES: Final = 512
#: Space is allocated, and holes are known, in blocks of this size.
BLOCK_BYTES: Final = 4096
_PAGE_SECTORS: Final = BLOCK_BYTES // SECTOR_BYTES
#: Longer contents are anonymous mappings, so that pages of a long file that is mostly zeros are never touched.
_MAP_FROM: Final = 1 << 17

Content = bytearray | mmap.mmap


def _zeros(length: int) -> Content:
    return bytearray(length) if length < _MAP_FROM else mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)


def _blocks(start: int, end: int) -> range:
    """The numbers of the blocks that contain bytes ``start`` to ``end``."""
    return range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))


def _sectors(writes: list[tuple[int, bytes]]) -> set[int]:
    """The sectors that these writes change."""
    return {sector for at, data in writes for sector in range(at // SECTOR_BYTES, -(-(at + len(data)) // SECTOR_BYTES))}


class Mark(NamedTuple):
    """The state of a file when a sync began: number of writes, of lengths, and of syncs before it."""

    writes: int
    sizes: int
    syncs: int


class CachedFile:
    """One file, whatever its names. Knows nothing of disks, errors and names."""

    __slots__ = ("base", "claimed", "lost", "pending", "seen", "sizes", "syncs", "written")

    def __init__(self) -> None:
        self.seen: Content = bytearray()
        #: Blocks with allocated space.
        self.claimed: set[int] = set()
        #: Blocks that may contain bytes other than zero, here or on the disk.
        self.written: set[int] = set()
        #: Sector -> its content on the disk; if shorter than a sector, zeros follow.
        self.base: dict[int, bytes] = {}
        self.lost: dict[int, bytes] = {}
        #: Writes since the last sync, in order.
        self.pending: list[tuple[int, bytes]] = []
        #: Lengths since the last sync, in order, starting with the durable one; empty while the length is durable.
        self.sizes: list[int] = []
        #: How often the whole content became durable.
        self.syncs = 0

    # --- for a process ---------------------------------------------------------------------------------------

    @property
    def is_clean(self) -> bool:
        """Whether the disk has what a reader sees."""
        return not (self.base or self.lost or self.sizes)

    def write(self, at: int, data: bytes) -> None:
        end = at + len(data)
        if end > len(self.seen):
            self.resize(end)
        base = self.base
        for sector in range(at // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            if sector not in base:
                self._put_aside(sector)
        self.seen[at:end] = data
        blocks = _blocks(at, end)
        self.claimed.update(blocks)
        self.written.update(blocks)
        self.pending.append((at, data))

    def resize(self, length: int) -> None:
        before = len(self.seen)
        if length == before:
            return
        if not self.sizes:
            self.sizes.append(before)
        self.sizes.append(length)
        if length < before:
            for block in sorted(self.written.intersection(_blocks(length, before))):
                low, high = max(length, block * BLOCK_BYTES), min(before, (block + 1) * BLOCK_BYTES)
                self.write(low, bytes(high - low))  # zero when the file grows again
            gone = range(-(-length // BLOCK_BYTES), -(-before // BLOCK_BYTES))
            self.claimed.difference_update(gone)
        self._set_length(length)

    def data_ranges(self, at: int) -> list[tuple[int, int]]:
        """(start, end) of ranges at or after ``at`` that were ever written; the rest is zero."""
        ranges: list[tuple[int, int]] = []
        size = len(self.seen)
        for block in sorted(self.written):
            low, high = max(at, block * BLOCK_BYTES), min(size, (block + 1) * BLOCK_BYTES)
            if low >= high:
                continue
            if ranges and ranges[-1][1] == low:
                ranges[-1] = ranges[-1][0], high
            else:
                ranges.append((low, high))
        return ranges

    # --- for the disk ----------------------------------------------------------------------------------------

    def make_durable(self) -> None:
        self.base.clear()
        self.pending.clear()
        self.sizes.clear()
        self.syncs += 1

    def mark(self) -> Mark:
        """What a sync that begins now covers."""
        return Mark(len(self.pending), len(self.sizes), self.syncs)

    def make_durable_up_to(self, began: Mark) -> None:
        """What was written before the mark is durable; what was written later is not."""
        if began.syncs != self.syncs:
            return  # another sync covered it
        before, later = self.pending[: began.writes], self.pending[began.writes :]
        touched = {sector: bytearray(self.base[sector].ljust(SECTOR_BYTES, b"\0")) for sector in _sectors(later)}
        for at, data in before:
            for sector in _sectors([(at, data)]) & touched.keys():
                start = sector * SECTOR_BYTES
                low, high = max(at, start), min(at + len(data), start + SECTOR_BYTES)
                touched[sector][low - start : high - start] = data[low - at : high - at]
        sizes = self.sizes[max(0, began.sizes - 1) :] if len(self.sizes) > began.sizes else []
        self.make_durable()
        self.base.update((sector, bytes(content)) for sector, content in touched.items())
        self.pending += later
        self.sizes += sizes

    def fail_to_sync(self, rng: random.Random, kept: float) -> int:
        """Each dirty sector reached the disk or did not, and none is dirty any more. Returns how many did not."""
        lost = 0
        for sector, content in self.base.items():
            if rng.random() >= kept:
                self.lost[sector] = content
                lost += 1
        if self.sizes and rng.random() >= kept:
            self.sizes = [self.sizes[0], len(self.seen)]  # the durable length stays uncertain
        else:
            self.sizes.clear()
        self.base.clear()
        self.pending.clear()
        self.syncs += 1
        return lost

    def drop_cache(self, rng: random.Random, share: float = 1.0) -> int:
        """Drop a fraction ``share`` of the clean pages from the cache, so that the disk's content shows. Returns how many changed."""
        pages = {sector // _PAGE_SECTORS for sector in self.lost}
        dropped = {page for page in sorted(pages) if share == 1.0 or rng.random() < share}
        gone = [sector for sector in self.lost if sector // _PAGE_SECTORS in dropped]
        for sector in gone:
            self._restore(sector, self.lost.pop(sector))
        return len(gone)

    def lose_power(self, rng: random.Random, kept: float) -> int:
        """Readers see from now on what survives. Returns how many sectors lost their content."""
        if self.is_clean:
            return 0
        size = self._surviving_size(rng, kept)
        if size > len(self.seen):
            self._set_length(size)
        changed = self.drop_cache(rng) + self._keep_sectors(rng, kept)
        if size < len(self.seen):
            self._set_length(size)
            gone = {block for block in self.claimed | self.written if block * BLOCK_BYTES >= size}
            self.claimed -= gone
            self.written -= gone
        self.claimed.update(block for block in self.written if block * BLOCK_BYTES < size)
        self.make_durable()
        return changed

    def _surviving_size(self, rng: random.Random, kept: float) -> int:
        if not self.sizes or kept == 1.0:
            return len(self.seen)
        if kept == 0.0:
            return self.sizes[0]
        return self.sizes[-1] if rng.random() < kept else rng.choice(self.sizes)

    def _keep_sectors(self, rng: random.Random, kept: float) -> int:
        """Each sector gets the content that it had after any number of the writes to it."""
        if not self.base or kept == 1.0:
            return 0
        if kept == 0.0:
            for sector, content in self.base.items():
                self._restore(sector, content)
            return len(self.base)
        touched: dict[int, list[tuple[int, bytes]]] = {sector: [] for sector in self.base}
        for at, data in self.pending:
            for sector in range(at // SECTOR_BYTES, -(-(at + len(data)) // SECTOR_BYTES)):
                touched[sector].append((at, data))
        changed = 0
        for sector, writes in touched.items():
            if rng.random() < kept:
                continue
            changed += 1
            self._restore(sector, self.base[sector])
            start = sector * SECTOR_BYTES
            for at, data in writes[: rng.randrange(len(writes))]:
                low, high = max(at, start), min(at + len(data), start + SECTOR_BYTES, len(self.seen))
                if low < high:
                    self.seen[low:high] = data[low - at : high - at]
        return changed

    def flip_bit(self, at: int, bit: int) -> None:
        """On the disk and in the cache."""
        flipped = bytes([self.seen[at] ^ (1 << bit)])
        self.seen[at : at + 1] = flipped
        sector, place = divmod(at, SECTOR_BYTES)
        for aside in (self.base, self.lost):
            if place < len(aside.get(sector, b"")):
                content = bytearray(aside[sector])
                content[place] ^= 1 << bit
                aside[sector] = bytes(content)
        self.written.add(at // BLOCK_BYTES)

    def copy(self) -> "CachedFile":
        """An equal file, including dirty sectors."""
        copy = CachedFile()
        length = len(self.seen)
        if isinstance(self.seen, bytearray):
            copy.seen = bytearray(self.seen)
        else:
            copy.seen = _zeros(length)
            for low, high in self.data_ranges(0):
                copy.seen[low:high] = self.seen[low:high]
        copy.claimed = set(self.claimed)
        copy.written = set(self.written)
        copy.base = dict(self.base)
        copy.lost = dict(self.lost)
        copy.pending = list(self.pending)
        copy.sizes = list(self.sizes)
        return copy

    # --- inside ----------------------------------------------------------------------------------------------

    def _put_aside(self, sector: int) -> None:
        start = sector * SECTOR_BYTES
        if sector in self.lost:
            self.base[sector] = self.lost.pop(sector)
        elif start // BLOCK_BYTES in self.written:
            self.base[sector] = bytes(self.seen[start : start + SECTOR_BYTES])
        else:
            self.base[sector] = b""

    def _restore(self, sector: int, content: bytes) -> None:
        start = sector * SECTOR_BYTES
        stop = min(start + SECTOR_BYTES, len(self.seen))
        if start < stop:
            self.seen[start:stop] = content.ljust(SECTOR_BYTES, b"\0")[: stop - start]

    def _set_length(self, length: int) -> None:
        seen = self.seen
        if isinstance(seen, bytearray) and length < _MAP_FROM:
            if length > len(seen):
                seen.extend(bytes(length - len(seen)))
            else:
                del seen[length:]
            return
        self.seen = _zeros(length)
        stop = min(length, len(seen))
        for block in sorted(self.written):
            low, high = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, stop)
            if low < high:
                self.seen[low:high] = seen[low:high]
