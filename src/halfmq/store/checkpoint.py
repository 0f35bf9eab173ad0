"""The checkpoint: from which position of the log a start must redo, in two slots.

A slot says: the snapshot at this log offset, with this CRC, is whole, and so are the indexes below it. It is
written last, after snapshot and indexes were synced; so a crash at any point leaves a slot that is true.

Reading gives every slot that can be believed, the newest first: when the newest one's snapshot turns out damaged, the
one before may still serve. A checkpoint only accelerates; the log alone is enough.
"""

from pathlib import Path
from typing import Final, NamedTuple

from halfmq.runtime.disk import Disk
from halfmq.store.layout import CHECKPOINT, CHECKPOINT_MAGIC, CHECKPOINT_SLOT_BYTES, FORMAT_VERSION
from halfmq.store.two_slots import Missing, Unreadable, decode_slot, encode_slot

_SLOTS: Final = 2


class Slot(NamedTuple):
    """What one slot says. ``position``: log offset of the snapshot; the redo starts there."""

    sequence: int
    epoch: int
    position: int
    snapshot_crc: int


class Present(NamedTuple):
    #: The newest first; one or two.
    slots: tuple[Slot, ...]


def read_checkpoint(disk: Disk, path: Path, store: bytes) -> Missing | Present | Unreadable:
    """What the checkpoint file says.

    Missing: no checkpoint was ever written. Unreadable: one was, and no slot can be believed, or it is another store's.
    In both cases the caller redoes the log from its start, with indexes made again.
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
    """Write ``slot`` into the place that its sequence gives, and sync. The other slot is not touched.

    The caller has synced the snapshot with its name, and the indexes. ``slot.sequence`` is one more than the
    newest that was read.

    Raises:
        OSError: whether the slot reached the disk is not known; the other one still stands.
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
