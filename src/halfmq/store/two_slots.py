"""A page with two slots, written alternately so that one of them is always complete: for checkpoint and high watermark.

Each slot begins with magic, version and sequence number, and ends with a CRC-32 of the preceding bytes. The valid slot with the higher
sequence number counts. A write goes to the other one; if it is torn, or read during the write, the older slot is still valid.
"""

from struct import Struct
from typing import Any, Final, NamedTuple

from halfmq.model.checksum import crc32
from halfmq.runtime.disk import File
from halfmq.store.layout import SLOT_BYTES

_CRC_BYTES: Final = 4
#: Bytes of a file with two slots.
PAGE_BYTES: Final = 2 * SLOT_BYTES


class Missing(NamedTuple):
    """Nothing was ever written."""


class Unreadable(NamedTuple):
    """There is no valid slot."""

    why: str


#: As returned by ``struct``: integers and bytes.
Fields = tuple[Any, ...]


def write_slot(file: File, layout: Struct, magic: bytes, version: int, sequence: int, *fields: Any) -> None:
    """Write a slot, in place of the older one if ``sequence`` is one more than the newest."""
    data = layout.pack(magic, version, sequence, *fields, 0)[:-_CRC_BYTES]
    file.write((sequence & 1) * SLOT_BYTES, [data + crc32(data).to_bytes(_CRC_BYTES, "big")])


def read_slots(file: File, layout: Struct, magic: bytes, version: int) -> list[Fields | Missing | Unreadable]:
    """Both slots: the fields from the sequence number on, without the CRC."""
    return [decode_slot(layout, magic, version, file.read(at, layout.size)) for at in range(0, PAGE_BYTES, SLOT_BYTES)]


def decode_slot(layout: Struct, magic: bytes, version: int, data: bytes) -> Fields | Missing | Unreadable:
    """One of them."""
    data = data[: layout.size]
    if not data.strip(b"\0"):
        return Missing()
    if len(data) < layout.size:
        return Unreadable("the slot is cut short")
    fields = layout.unpack(data)
    if fields[0] != magic:
        return Unreadable(f"the slot begins with {bytes(fields[0])!r} instead of {magic!r}")
    if fields[-1] != crc32(data[:-_CRC_BYTES]):
        return Unreadable("the checksum of the slot is wrong")
    if fields[1] != version:
        return Unreadable(f"the slot has version {fields[1]}, this program reads {version}")
    return fields[2:-1]
