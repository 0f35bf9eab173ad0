"""Reads queue entries of a store on this machine without a lock, while a broker may be running.

This is safe: the broker advances the high watermark only after it has written all entries below it, and never changes such an
entry. Entries are read with ``pread`` instead of a mapping, so that a concurrent removal or rebuild of a file gives a missing file
or a zero entry, never a SIGBUS.
"""

import os
from pathlib import Path
from typing import Final

import numpy as np

from halfmq.spark.rows.queue_entries import ENTRY, Entries
from halfmq.store.consume_queue import file_end
from halfmq.store.layout import QUEUE_ENTRY_BYTES

_VISIBLE_AT: Final = 16
#: Entries that are read at once: 3 MB.
_CHUNK: Final = 1 << 16


class QueueFiles:
    """The files of a queue. Keeps no file open between calls."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def bounds(self, log_start: int, position: int) -> tuple[int, int]:
        """(first offset, end offset) of the messages visible below ``position``; (0, 0) for an empty queue.

        Raises:
            FileNotFoundError: a file was removed between listing and opening it; try again.
        """
        bases = self._bases()
        if not bases:
            return 0, 0
        end = self._first_at(bases, position)
        return min(self._first_at(bases, log_start), end), end

    def read(self, start: int, end: int) -> Entries:
        """Entries [start, end), which must lie within ``bounds``; they may span files.

        Raises:
            FileNotFoundError: a file does not exist (the log was trimmed, or the indexes are being rebuilt).
        """
        bases = self._bases()
        parts = []
        while start < end:
            base = max((base for base in bases if base <= start), default=None)
            if base is None or start >= file_end(base):
                raise FileNotFoundError(f"no file in {self._directory} contains queue offset {start}")
            stop = min(end, file_end(base))
            data = self._pread(base, (start - base) * QUEUE_ENTRY_BYTES, (stop - start) * QUEUE_ENTRY_BYTES)
            parts.append(data)
            start = stop
        entries = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=ENTRY)
        if not (entries["size"] > 0).all():
            raise FileNotFoundError(f"entries in {self._directory} are being rebuilt")
        return entries

    def first_at_time(self, start: int, end: int, time_ms: int) -> int:
        """The first of the entries [start, end) with this store time (ms since 1970) or a later one; ``end`` if all are older.

        As the broker's ``search_by_time``: store times never decrease along a queue, since broker time does not, also after jumps
        of the clock (``core/clock_jumps.py``).

        Raises:
            FileNotFoundError: as ``read``.
        """
        low, high = start, end
        while low < high:
            middle = (low + high) // 2
            if int(self.read(middle, middle + 1)["store_time_ms"][0]) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def fitting(self, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        """(number, bytes) of the entries from ``start`` on, before ``end``, whose message sizes add up to at most ``bytes_max``.

        Raises:
            FileNotFoundError: as ``read``.
        """
        count = size = 0
        while start + count < end:
            sums = np.cumsum(self.read(start + count, min(end, start + count + _CHUNK))["size"].astype(np.int64))
            fit = int(np.searchsorted(sums, bytes_max - size, side="right"))
            count += fit
            size += int(sums[fit - 1]) if fit else 0
            if fit < len(sums):
                break
        return count, size

    def _bases(self) -> list[int]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return sorted(int(name[:20]) for name in names if name.endswith(".q") and name[:20].isdecimal())

    def _pread(self, base: int, at: int, length: int) -> bytes:
        descriptor = self._open(base)
        try:
            return _read(descriptor, at, length)
        finally:
            os.close(descriptor)

    def _open(self, base: int) -> int:
        return os.open(self._directory / f"{base:020d}.q", os.O_RDONLY | os.O_CLOEXEC)

    def _first_at(self, bases: list[int], position: int) -> int:
        """The first queue offset that is not visible below ``position``."""
        low, high = 0, len(bases)
        while low < high:  # the files whose first entry is visible below
            middle = (low + high) // 2
            if self._first_in(bases[middle], 1, position):
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return bases[0]
        base = bases[low - 1]
        return base + self._first_in(base, file_end(base) - base, position)

    def _first_in(self, base: int, entries: int, position: int) -> int:
        """Index of the first of ``entries`` entries of a file that is not visible below ``position``."""
        descriptor = self._open(base)
        try:
            low, high = 0, entries
            while low < high:
                middle = (low + high) // 2
                visible_at = int.from_bytes(_read(descriptor, middle * QUEUE_ENTRY_BYTES + _VISIBLE_AT, 8), "big")
                if 0 < visible_at < position:
                    low = middle + 1
                else:
                    high = middle
            return low
        finally:
            os.close(descriptor)


def _read(descriptor: int, at: int, length: int) -> bytes:
    """Read, padded with zeros (no entry): a file that is being rebuilt may be short."""
    return os.pread(descriptor, length, at).ljust(length, b"\0")
