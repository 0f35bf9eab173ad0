"""The watermark page: how far processes beside the broker may read the log.

Everything before the high watermark is durable and in the indexes. The broker writes the page after the indexes, once for each turn, and
does not sync it. A reader takes one position and bounds every queue by it, so it sees a transaction completely or not at all.

The page also states how far the log was durable, and is written before a reply is released: a log that ends before that position is
damaged, whatever its own batches state. With durability ``fsync`` it is at least the high watermark, even if a full disk
delays the indexes; with ``memory`` only checkpoints advance it.
"""

from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.runtime.disk import Disk, File
from halfmq.store.layout import (
    WATERMARK,
    WATERMARK_MAGIC,
    WATERMARK_OPEN,
    WATERMARK_REBUILDING,
    WATERMARK_VERSION,
)
from halfmq.store.segment import NO_SPACE
from halfmq.store.two_slots import PAGE_BYTES, Fields, Missing, Unreadable, read_slots, write_slot

#: A slot is rarely read during its write; after this many failures in a row it is damaged.
_READ_ATTEMPTS: Final = 8


class Watermark(NamedTuple):
    """One state of the page. Position and log start are log offsets, the time is broker time, ms."""

    sequence: int
    #: 16 bytes, as in ``store.json``.
    store: bytes
    epoch: int
    rebuilding: bool
    position: int
    log_start: int
    broker_time_ms: int
    #: Durable end of the log. Never less than in the slot before.
    durable: int


class WatermarkPage:
    """The broker's side. One small write for each update, into the older slot."""

    def __init__(self, file: File, store: bytes, epoch: int, sequence: int) -> None:
        self._file = file
        self._store = store
        self._epoch = epoch
        self._sequence = self._found_sequence = sequence
        #: (position, log start, broker time ms)
        self._last = 0, 0, 0

    @classmethod
    def open(cls, disk: Disk, path: Path, store: bytes, epoch: int) -> "WatermarkPage":
        """Open the page, creating it if missing. Its content stays until the first ``publish``."""
        file = disk.open(path, create=True)
        try:
            file.allocate(PAGE_BYTES)  # so that it can be written even if the disk is full later
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
        before = read_watermark_page_file(file)
        return cls(file, store, epoch, before.sequence if isinstance(before, Watermark) else 0)

    def publish(self, position: int, log_start: int, broker_time_ms: int, durable: int) -> None:
        """Let readers read up to ``position``. The indexes are written up to it, and the log is durable up to ``durable``.

        Raises:
            OSError: readers keep the previous position.
        """
        self._last = position, log_start, broker_time_ms
        self._write(WATERMARK_OPEN, position, log_start, broker_time_ms, durable)

    def durable_to(self, durable: int) -> None:
        """Set only the durable position. Raises as ``publish``."""
        self._write(WATERMARK_OPEN, *self._last, durable)

    def rebuilding(self, position: int, log_start: int, durable: int) -> None:
        """Call it before indexes are removed for a rebuild: readers wait until ``publish``. On the disk on return, except for the page's
        name. ``position``: the log's end.
        """
        self._write(WATERMARK_REBUILDING, position, log_start, 0, durable)
        self._file.sync()

    def other_writer(self) -> int | None:
        """Epoch of another broker that wrote the page since this one opened it; None if there is no sign of one. Any thread."""
        for slot in _slots(self._file):
            if isinstance(slot, Watermark) and slot.sequence > self._found_sequence and slot.epoch != self._epoch:
                return slot.epoch
        return None

    def close(self) -> None:
        self._file.close()

    def _write(self, state: int, position: int, log_start: int, broker_time_ms: int, durable: int) -> None:
        self._sequence += 1
        fields = self._store, self._epoch, state, position, log_start, broker_time_ms, durable
        write_slot(self._file, WATERMARK, WATERMARK_MAGIC, WATERMARK_VERSION, self._sequence, *fields)


def read_watermark_page(disk: Disk, path: Path) -> Watermark | Missing | Unreadable:
    """Read the page from another process. Missing: no broker has written one in this store yet."""
    if not disk.exists(path):
        return Missing()
    with closing(disk.open(path, writable=False)) as file:
        return read_watermark_page_file(file)


def read_watermark_page_file(file: File) -> Watermark | Missing | Unreadable:
    """As ``read_watermark_page``, from an open file."""
    found: Watermark | Missing | Unreadable = Missing()
    for _ in range(_READ_ATTEMPTS):
        found = _newest(file)
        if not isinstance(found, Unreadable):
            return found
    return found


def _newest(file: File) -> Watermark | Missing | Unreadable:
    slots = _slots(file)
    readable = [slot for slot in slots if isinstance(slot, Watermark)]
    if readable:
        return max(readable)
    wrong = [slot.why for slot in slots if isinstance(slot, Unreadable)]
    return Unreadable(f"{file.path}: {wrong[-1]}") if wrong else Missing()


def _slots(file: File) -> list[Watermark | Missing | Unreadable]:
    return [_watermark(slot) for slot in read_slots(file, WATERMARK, WATERMARK_MAGIC, WATERMARK_VERSION)]


def _watermark(slot: Fields | Missing | Unreadable) -> Watermark | Missing | Unreadable:
    if isinstance(slot, Missing | Unreadable):
        return slot
    sequence, uuid, epoch, state, *rest = slot
    return Watermark(sequence, uuid, epoch, state == WATERMARK_REBUILDING, *rest)
