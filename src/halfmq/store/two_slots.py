"""A page with two slots, written alternately so that one of them is always complete: for checkpoint and high watermark.

Each slot ends with a CRC-32 of the preceding bytes. The valid slot with the higher sequence number counts. A write goes to the other one;
if it is torn, or read during the write, the older slot is still valid.
"""

from struct import Struct
from typing import Any, Final, NamedTuple

from halfmq.model.checksum import crc32

_CRC_BYTES: Final = 4


class Missing(NamedTuple):
    """Nothing was ever written."""


class Unreadable(NamedTuple):
    """There is no valid slot."""

    why: str


#: As returned by ``struct``: integers and bytes.
Fields = tuple[Any, ...]


def encode_slot(layout: Struct, fields: Fields) -> bytes:
    """Encode ``fields``, and append the CRC, the last field of ``layout``."""
    data = layout.pack(*fields, 0)[:-_CRC_BYTES]
    return data + crc32(data).to_bytes(_CRC_BYTES, "big")


def decode_slot(layout: Struct, magic: bytes, data: bytes) -> Fields | Missing | Unreadable:
    """Fields of one slot, magic first, without the CRC."""
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
    return fields[:-1]
