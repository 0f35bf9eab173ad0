"""Queue entries of a half batch, all at once: from the entries in its payload to the bytes of a consume queue.

A verdict may show a million messages. So nothing here is done for each of them: columns are moved by slices with a step, and one
addition of long integers adds the place of the record to all offsets. About 0.1 us for each message.
"""

from collections.abc import Iterator
from typing import Final

from halfmq.model.half_batch import ENTRY_BYTES
from halfmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES

#: Bytes of an entry in a payload -> bytes of a queue entry: message bytes and tag hash, key hash. The first four, the place, are added.
_COLUMNS: Final = tuple(zip(range(4, ENTRY_BYTES), (*range(8, 16), *range(40, 48)), strict=True))
#: Messages converted at once: a few megabytes of memory.
_PART: Final = 65_536


def queue_entries(
    entries: memoryview, record_offset: int, *, visible_at: int, store_time_ms: int, half_index: int
) -> Iterator[tuple[int, bytes]]:
    """(number, encoded queue entries) of the messages of a half batch whose record is at ``record_offset``, in parts.

    ``entries``: as ``CommitLog.half_batch_entries`` returns them. The other fields are those of ``consume_queue.QueueEntry``.
    """
    constant = QUEUE_ENTRY.pack(0, 0, 0, visible_at, store_time_ms, half_index, 0)
    for start in range(0, len(entries), _PART * ENTRY_BYTES):
        part = bytes(entries[start : start + _PART * ENTRY_BYTES])
        count = len(part) // ENTRY_BYTES
        found = bytearray(constant * count)
        for source, target in _COLUMNS:
            found[target::QUEUE_ENTRY_BYTES] = part[source::ENTRY_BYTES]
        places = bytearray(8 * count)
        for byte in range(4):
            places[4 + byte :: 8] = part[byte::ENTRY_BYTES]
        added = int.from_bytes(places, "big") + int.from_bytes(record_offset.to_bytes(8, "big") * count, "big")
        offsets = added.to_bytes(8 * count, "big")
        for byte in range(8):
            found[byte::QUEUE_ENTRY_BYTES] = offsets[byte::8]
        yield start // ENTRY_BYTES, bytes(found)
