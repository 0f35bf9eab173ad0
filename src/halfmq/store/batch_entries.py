"""What the indexes take from the payload of a half batch: its queue entries, all at once, and the keys of its messages.

A verdict may show a million messages, and the event loop serves nobody while their queue entries are made. So nothing is done for each of
them. With NumPy that takes about 0.02 us for each message. Without it columns are moved by slices with a step, and one addition of long
integers adds the place of the record to all offsets: 0.12 us. A test compares the two.

NumPy is imported with the first verdict; the broker usually has it by then, see ``broker.services.payload_arrays``.
"""

from collections.abc import Iterator
from functools import cache
from struct import calcsize
from typing import Any, Final, cast

from halfmq.model.half_batch import ENTRY_BYTES, ITEM_HEAD_BYTES
from halfmq.model.layout import ITEM, PAYLOAD_ENTRY, Layout
from halfmq.model.properties import KEYS, find
from halfmq.model.records import HALF_BATCH_PAYLOAD_AT
from halfmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES

#: Bytes of an entry in a payload -> bytes of a queue entry, of the fields with one name in both. The place is added.
_COPIED: Final = [name for name in PAYLOAD_ENTRY.fields if name in QUEUE_ENTRY.fields]
_COLUMNS: Final = [
    (PAYLOAD_ENTRY.at[name] + byte, QUEUE_ENTRY.at[name] + byte)
    for name in _COPIED
    for byte in range(calcsize(">" + PAYLOAD_ENTRY.fields[name]))
]
_body_bytes: Final = ITEM.only("body_bytes").unpack_from
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
        part = entries[start : start + _PART * ENTRY_BYTES]
        encode = _encode if _numpy() is None else _encode_arrays
        yield start // ENTRY_BYTES, encode(part, record_offset, constant)


def _encode(entries: memoryview, record_offset: int, constant: bytes) -> bytes:
    part = bytes(entries)
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
    return bytes(found)


def _encode_arrays(entries: memoryview, record_offset: int, constant: bytes) -> bytes:
    """As ``_encode``, with NumPy."""
    np, entry_type, queue_entry_type = _numpy()
    given = np.frombuffer(entries, entry_type)
    found = np.empty(len(given), queue_entry_type)
    found["offset"] = given["from_start"].astype(np.int64) + record_offset
    same = np.frombuffer(constant, queue_entry_type)
    for name in ("visible_at", "store_time_ms", "half_index"):
        found[name] = same[name]
    for name in _COPIED:
        found[name] = given[name]
    return cast(bytes, found.tobytes())


@cache
def _numpy() -> Any:
    """(NumPy, type of an entry, type of a queue entry); None if it is not installed."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy, numpy.dtype(_as_copied(PAYLOAD_ENTRY)), numpy.dtype(_as_copied(QUEUE_ENTRY))


def _as_copied(layout: Layout) -> Any:
    """Only the first field is a number, to which something is added; the rest is bytes that are copied."""
    first, *others = layout.dtype["formats"]
    return {**layout.dtype, "formats": [first, *[f"u{calcsize(form)}" for form in others]]}


def keys_in(payload: bytes, messages: int) -> tuple[str, list[tuple[int, bytes]]]:
    """(topic, its messages with keys: bytes from the start of the record to the item, value of KEYS).

    ``payload``: a correct one, as ``model.half_batch`` defines it, so all messages have one topic.
    """
    topic_at = ITEM.size + _body_bytes(payload)[0] + 1
    topic = payload[topic_at : topic_at + payload[topic_at - 1]]
    #: From the start of an item without its body to its properties.
    properties_at = ITEM.size + 1 + len(topic) + 2
    found = []
    for from_start, message_bytes, _, _ in PAYLOAD_ENTRY.iter_unpack(payload[len(payload) - messages * ENTRY_BYTES :]):
        at = from_start - HALF_BATCH_PAYLOAD_AT
        keys = find(
            payload[at + properties_at + _body_bytes(payload, at)[0] : at + ITEM_HEAD_BYTES + message_bytes], KEYS
        )
        if keys:
            found.append((from_start, keys))
    return topic.decode(), found
