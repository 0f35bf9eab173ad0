"""The checkpoint: the log position from which a start must redo, in two slots.

A slot states that the snapshot at this log offset, with this CRC, is complete, and that the indexes are complete up to it. It is
written last, after snapshot and indexes were synced, so a crash at any point leaves a valid slot.

Reading returns every valid slot, newest first: if the newest one's snapshot is damaged, the one before may still be usable. A
checkpoint only makes a start faster; the log alone is sufficient.
"""

from pathlib import Path
from typing import Final, NamedTuple

from halfmq.runtime.disk import Disk
from halfmq.store.layout import CHECKPOINT, CHECKPOINT_MAGIC, CHECKPOINT_SLOT_BYTES, FORMAT_VERSION
from halfmq.store.two_slots import Missing, Unreadable, decode_slot, encode_slot

_SLOTS: Final = 2


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
    file = disk.open(path, writable=False)
    try:
        raw = [file.read(number * CHECKPOINT_SLOT_BYTES, CHECKPOINT.size) for number in range(_SLOTS)]
    finally:
        file.close()
    slots: list[Slot] = []
    wrong = ""
    for data in raw:
        match decode_slot(CHECKPOINT, CHECKPOINT_MAGIC, data):
            case Missing():
                pass
            case Unreadable(why):
                wrong = why
            case (_, version, sequence, uuid, epoch, _, position, snapshot_crc):
                if version != FORMAT_VERSION:
                    wrong = f"the slot has version {version}, this program reads {FORMAT_VERSION}"
                elif uuid != store:
                    wrong = f"the slot is of the store {uuid.hex()}"
                else:
                    slots.append(Slot(sequence, epoch, position, snapshot_crc))
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
    file = disk.open(path, create=True)
    try:
        if file.size() < _SLOTS * CHECKPOINT_SLOT_BYTES:
            file.truncate(_SLOTS * CHECKPOINT_SLOT_BYTES)
        fields = (
            CHECKPOINT_MAGIC,
            FORMAT_VERSION,
            slot.sequence,
            store,
            slot.epoch,
            0,
            slot.position,
            slot.snapshot_crc,
        )
        file.write(slot.sequence % _SLOTS * CHECKPOINT_SLOT_BYTES, [encode_slot(CHECKPOINT, fields)])
        file.sync()
    finally:
        file.close()
    if new:
        disk.sync_directory(path.parent)
