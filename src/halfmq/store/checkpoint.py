"""Checkpoints: durable state at a log position, as chunks that only ``core`` interprets, and two slots that name such snapshots.

A snapshot is written to a temporary file, synced, renamed, and the directory synced, in that order: a name must never lead to missing
bytes. A slot states that the snapshot at this log offset, with this CRC, is complete, and that the indexes are complete up to it. It is
written last, after snapshot and indexes were synced, so a crash at any point leaves a valid slot.

Reading returns every valid slot, newest first: if the newest one's snapshot is damaged, the one before may still be usable. A
checkpoint only makes a start faster; the log alone is sufficient.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.errors import InvariantViolated
from halfmq.model.checksum import crc32
from halfmq.runtime.disk import Disk
from halfmq.store.layout import CHECKPOINT, CHECKPOINT_MAGIC, FORMAT_VERSION, SNAPSHOT, SNAPSHOT_CHUNK, SNAPSHOT_MAGIC
from halfmq.store.two_slots import PAGE_BYTES, Missing, Unreadable, read_slots, write_slot
from halfmq.store.whole_file import read_whole, replacing

_SUFFIX: Final = ".snap"
#: Bytes to collect per write.
_WRITE_BYTES: Final = 1 << 20


class Slot(NamedTuple):
    """One slot. ``position``: log offset of the snapshot, where redo starts."""

    sequence: int
    epoch: int
    position: int
    snapshot_crc: int


class Present(NamedTuple):
    #: One or two, newest first.
    slots: tuple[Slot, ...]


def read_checkpoint(disk: Disk, path: Path, store: bytes) -> Missing | Present | Unreadable:
    """Read the checkpoint file.

    Missing: no checkpoint was ever written. Unreadable: it has no valid slot, or belongs to another store. In both cases the caller
    redoes the log from its start and rebuilds the indexes.
    """
    if not disk.exists(path):
        return Missing()
    slots: list[Slot] = []
    wrong = ""
    with closing(disk.open(path, writable=False)) as file:
        for found in read_slots(file, CHECKPOINT, CHECKPOINT_MAGIC, FORMAT_VERSION):
            match found:
                case Unreadable(why):
                    wrong = why
                case (sequence, uuid, epoch, _, position, snapshot_crc):
                    if uuid == store:
                        slots.append(Slot(sequence, epoch, position, snapshot_crc))
                    else:
                        wrong = f"the slot is of the store {uuid.hex()}"
    if slots:
        return Present(tuple(sorted(slots, reverse=True)))
    return Unreadable(f"{path}: {wrong}") if wrong else Missing()


def write_checkpoint(disk: Disk, path: Path, store: bytes, slot: Slot) -> None:
    """Write and sync ``slot``, at the place given by its sequence number. The other slot does not change.

    Sync the snapshot, its name and the indexes before. ``slot.sequence`` is one more than the newest that was read.

    Raises:
        OSError: it is unknown whether the slot is on the disk; the other one is still valid.
    """
    new = not disk.exists(path)
    with closing(disk.open(path, create=True)) as file:
        if file.size() < PAGE_BYTES:
            file.truncate(PAGE_BYTES)
        fields = slot.sequence, store, slot.epoch, 0, slot.position, slot.snapshot_crc
        write_slot(file, CHECKPOINT, CHECKPOINT_MAGIC, FORMAT_VERSION, *fields)
        file.sync()
    if new:
        disk.sync_directory(path.parent)


# --- snapshots


class WholeSnapshot(NamedTuple):
    """A snapshot whose bytes were all checked."""

    path: Path
    epoch: int
    position: int
    #: CRC of the whole file, as stated by the checkpoint.
    crc: int
    chunks: tuple[bytes, ...]


def snapshot_path(directory: Path, position: int) -> Path:
    """The file of the snapshot at log offset ``position``."""
    return directory / f"{position:020d}{_SUFFIX}"


def write_snapshot(
    disk: Disk, directory: Path, store: bytes, epoch: int, position: int, chunks: Iterable[bytes]
) -> int:
    """Write the snapshot of ``position``; durable with its name on return. Returns its CRC for the checkpoint.

    Raises:
        OSError: there is no snapshot; a temporary file may remain and is overwritten the next time.
    """
    disk.make_directories(directory)
    path = snapshot_path(directory, position)
    with replacing(disk, path, path.with_suffix(".new")) as file:
        crc = 0
        at = 0
        waiting: list[bytes] = []
        size = 0
        for part in _parts(store, epoch, position, chunks):
            crc = crc32(part, crc)
            waiting.append(part)
            size += len(part)
            if size >= _WRITE_BYTES:
                at += file.write(at, waiting)
                waiting, size = [], 0
        end = SNAPSHOT_CHUNK.pack(0, crc)
        file.write(at, [*waiting, end])
    disk.sync_directory(directory)
    return crc32(end, crc)


def read_snapshot(disk: Disk, directory: Path, store: bytes, position: int) -> WholeSnapshot | Missing | Unreadable:
    """The snapshot of ``position``, checked completely before any of it is returned."""
    path = snapshot_path(directory, position)
    data = read_whole(disk, path)
    if data is None:
        return Missing()
    if len(data) < SNAPSHOT.size + SNAPSHOT_CHUNK.size:
        return Unreadable(f"{path} is cut short")
    magic, version, uuid, epoch, _, own_position = SNAPSHOT.unpack_from(data)
    if magic != SNAPSHOT_MAGIC or version != FORMAT_VERSION:
        return Unreadable(f"{path} does not begin as a snapshot of version {FORMAT_VERSION}")
    if uuid != store or own_position != position:
        return Unreadable(f"{path} says store {uuid.hex()} and log offset {own_position}")
    chunks: list[bytes] = []
    at = SNAPSHOT.size
    while at + SNAPSHOT_CHUNK.size <= len(data):
        length, crc = SNAPSHOT_CHUNK.unpack_from(data, at)
        if length == 0:
            if at + SNAPSHOT_CHUNK.size != len(data) or crc != crc32(memoryview(data)[:at]):
                return Unreadable(f"{path}: the checksum of the file is wrong")
            return WholeSnapshot(path, epoch, position, crc32(data), tuple(chunks))
        at += SNAPSHOT_CHUNK.size
        chunk = data[at : at + length]
        if len(chunk) != length or crc32(chunk) != crc:
            return Unreadable(f"{path}: the chunk at byte {at} is damaged")
        chunks.append(chunk)
        at += length
    return Unreadable(f"{path} has no end")


def remove_snapshots(disk: Disk, directory: Path, keep: Iterable[int]) -> None:
    """Remove all snapshots except those at ``keep``, the positions of the checkpoint's slots, and all temporary files."""
    kept = {snapshot_path(directory, position).name for position in keep}
    for name in disk.list(directory):
        if name not in kept:
            disk.remove(directory / name)


def _parts(store: bytes, epoch: int, position: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    yield SNAPSHOT.pack(SNAPSHOT_MAGIC, FORMAT_VERSION, store, epoch, 0, position)
    for chunk in chunks:
        if not chunk:
            raise InvariantViolated("a snapshot chunk is empty; a length of 0 is the end of the file")
        yield SNAPSHOT_CHUNK.pack(len(chunk), crc32(chunk))
        yield chunk
