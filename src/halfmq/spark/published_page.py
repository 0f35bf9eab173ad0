"""The published position as a reader beside the broker sees it: two slots, the newer whole one counts.

The broker writes one slot at a time, so at least one is whole at any moment. Fields are ``store.layout.PUBLISHED``.
"""

from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from halfmq.store.layout import PUBLISHED, PUBLISHED_MAGIC, PUBLISHED_SLOT_BYTES

_VERSION = 1
_CHECKSUM_BYTES = 4


class Published(NamedTuple):
    """Everything below ``position`` is durable and indexed; nothing below ``log_start`` is kept. ``store``: 32 hex digits."""

    sequence: int
    store: str
    epoch: int
    position: int
    log_start: int
    broker_time_ms: int


def read_published(path: Path) -> Published | None:
    """What was published last; None when nothing was, or the page is being made."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    slots = [_slot(data[at : at + PUBLISHED.size]) for at in (0, PUBLISHED_SLOT_BYTES)]
    return max((slot for slot in slots if slot is not None), default=None)


def _slot(data: bytes) -> Published | None:
    if len(data) != PUBLISHED.size:
        return None
    magic, version, sequence, store, epoch, _, position, log_start, time_ms, checksum = PUBLISHED.unpack(data)
    if magic != PUBLISHED_MAGIC or version != _VERSION or checksum != crc32(data[:-_CHECKSUM_BYTES]):
        return None
    return Published(sequence, store.hex(), epoch, position, log_start, time_ms)
