"""What the indexes take from the payload of a half batch: its queue entries, all at once, and the keys of its messages.

A verdict may show a million messages. So for their queue entries nothing is done for each of them: columns are moved by slices with a step,
and one addition of long integers adds the place of the record to all offsets. About 0.1 us for each message.
"""

from collections.abc import Iterator
from typing import Final

from halfmq.model.half_batch import ENTRY, ENTRY_BYTES, ITEM_HEAD_BYTES
from halfmq.model.properties import KEYS, find
from halfmq.model.records import HALF_BATCH_PAYLOAD_AT
from halfmq.model.stored_message import AT_BODY_LENGTH_V4, AT_BODY_V4
from halfmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES

#: Bytes of an entry in a payload -> bytes of a queue entry: message bytes and tag hash, key hash. The first four, the place, are added.
_COLUMNS: Final = tuple(zip(range(4, ENTRY_BYTES), (*range(8, 16), *range(40, 48)), strict=True))
#: Head of an item, then the fixed fields of its message; the last is the length of the body.
_FIXED_BYTES: Final = ITEM_HEAD_BYTES + AT_BODY_V4
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


def keys_in(payload: bytes, messages: int) -> tuple[str, list[tuple[int, bytes]]]:
    """(topic, its messages with keys: bytes from the start of the record to the item, value of KEYS).

    ``payload``: a correct one, as ``model.half_batch`` defines it, so all messages have one topic.
    """
    body_bytes_at = ITEM_HEAD_BYTES + AT_BODY_LENGTH_V4
    topic_at = _FIXED_BYTES + int.from_bytes(payload[body_bytes_at:_FIXED_BYTES], "big") + 1
    topic = payload[topic_at : topic_at + payload[topic_at - 1]]
    #: From the start of an item without its body to its properties.
    properties_at = _FIXED_BYTES + 1 + len(topic) + 2
    found = []
    for from_start, message_bytes, _, _ in ENTRY.iter_unpack(payload[len(payload) - messages * ENTRY_BYTES :]):
        at = from_start - HALF_BATCH_PAYLOAD_AT
        body_bytes = int.from_bytes(payload[at + body_bytes_at : at + _FIXED_BYTES], "big")
        keys = find(payload[at + properties_at + body_bytes : at + ITEM_HEAD_BYTES + message_bytes], KEYS)
        if keys:
            found.append((from_start, keys))
    return topic.decode(), found
