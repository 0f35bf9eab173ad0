"""The published position: up to where the log may be read, for processes beside the broker, in a page that they map.

Everything below it is durable and in the derived files. The broker writes the page after the derived files, once per
turn; a reader takes one position and bounds every queue by it, so it sees each transaction whole or not at all.

The page is not synced. After power loss it may say less than the log holds, or be damaged; the next start writes it.
State REBUILDING says that derived files are being made again: nothing may be read until it is another one.

What state DURABLE publishes was on the disk before: a log that ends below it is damaged. State OPEN does not say so; it is
written at durability level ``memory``, and may be above what survives a power loss.
"""

from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from halfmq.runtime.disk import Disk, File
from halfmq.store.layout import (
    FORMAT_VERSION,
    PUBLISHED,
    PUBLISHED_DURABLE,
    PUBLISHED_MAGIC,
    PUBLISHED_OPEN,
    PUBLISHED_REBUILDING,
    PUBLISHED_SLOT_BYTES,
)
from halfmq.store.two_slots import Missing, Unreadable, decode_slot

_SLOTS: Final = 2
#: A slot is read while it is written only by chance; this often in a row it is damage.
_READ_ATTEMPTS: Final = 8
_pack: Final = PUBLISHED.pack


class Published(NamedTuple):
    """One publication. Position and log start are log offsets, the time is broker time, ms."""

    sequence: int
    #: 16 bytes, as in ``store.json``.
    store: bytes
    epoch: int
    rebuilding: bool
    position: int
    log_start: int
    broker_time_ms: int
    #: The log was durable up to here, as either slot says: what was durable once stays so.
    durable: int


class PublishedPage:
    """The broker's side. One small write per publication, into the slot that was not written last."""

    def __init__(self, file: File, store: bytes, epoch: int, sequence: int, *, durable: bool) -> None:
        self._file = file
        self._store = store
        self._epoch = epoch
        self._sequence = sequence
        self._state = PUBLISHED_DURABLE if durable else PUBLISHED_OPEN

    @classmethod
    def open(cls, disk: Disk, path: Path, store: bytes, epoch: int, *, durable: bool = False) -> "PublishedPage":
        """The page, made when missing; what it said before stands until the first ``publish``.

        ``durable``: what will be published is on the disk by then.
        """
        file = disk.open(path, create=True)
        if file.size() < _SLOTS * PUBLISHED_SLOT_BYTES:
            file.truncate(_SLOTS * PUBLISHED_SLOT_BYTES)
        before = read_published_file(file)
        return cls(file, store, epoch, before.sequence if isinstance(before, Published) else 0, durable=durable)

    def publish(self, position: int, log_start: int, broker_time_ms: int) -> None:
        """Readers may read below ``position``. The derived files have followed up to it.

        Raises:
            OSError: readers keep the position before.
        """
        self._write(self._state, position, log_start, broker_time_ms)

    def rebuilding(self, log_start: int, broker_time_ms: int, known_durable: int = 0) -> None:
        """Before derived files are removed to be made again: readers wait until ``publish``."""
        self._write(PUBLISHED_REBUILDING, known_durable, log_start, broker_time_ms)

    def close(self) -> None:
        self._file.close()

    def _write(self, state: int, position: int, log_start: int, broker_time_ms: int) -> None:
        sequence = self._sequence = self._sequence + 1
        data = _pack(
            PUBLISHED_MAGIC,
            FORMAT_VERSION,
            sequence,
            self._store,
            self._epoch,
            state,
            position,
            log_start,
            broker_time_ms,
            0,
        )[:-4]
        self._file.write((sequence & 1) * PUBLISHED_SLOT_BYTES, [data + crc32(data).to_bytes(4, "big")])


def read_published(disk: Disk, path: Path) -> Published | Missing | Unreadable:
    """What is published now, from outside of the broker. Missing: no broker has published in this store yet."""
    if not disk.exists(path):
        return Missing()
    file = disk.open(path, writable=False)
    try:
        return read_published_file(file)
    finally:
        file.close()


def read_published_file(file: File) -> Published | Missing | Unreadable:
    """As ``read_published``, from an open file."""
    found: Published | Missing | Unreadable = Missing()
    for _ in range(_READ_ATTEMPTS):
        found = _newest(file)
        if not isinstance(found, Unreadable):
            return found
    return found


def _newest(file: File) -> Published | Missing | Unreadable:
    slots: list[Published] = []
    wrong = ""
    for number in range(_SLOTS):
        match decode_slot(PUBLISHED, PUBLISHED_MAGIC, file.read(number * PUBLISHED_SLOT_BYTES, PUBLISHED.size)):
            case Missing():
                pass
            case Unreadable(why):
                wrong = why
            case (_, version, sequence, uuid, epoch, state, position, log_start, time_ms):
                if version != FORMAT_VERSION:
                    wrong = f"the page has version {version}, this program reads {FORMAT_VERSION}"
                    continue
                durable = position if state != PUBLISHED_OPEN else 0
                rebuilding = state == PUBLISHED_REBUILDING
                slots.append(Published(sequence, uuid, epoch, rebuilding, position, log_start, time_ms, durable))
    if slots:
        newest = max(slots)
        return newest._replace(durable=max(slot.durable for slot in slots if slot.store == newest.store))
    return Unreadable(f"{file.path}: {wrong}") if wrong else Missing()
