"""Encodes rows as payloads of half batches (``model.half_batch``) without a Python object for each row, except for the CRC of its body.

The pieces of all items (head, body, what is between, properties) are four Arrow columns, which Arrow joins in C++.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from halfmq.model.checksum import crc32
from halfmq.model.half_batch import DELAY_BYTES, ENTRY_BYTES, ITEM_HEAD_BYTES
from halfmq.model.layout import ITEM
from halfmq.model.records import BATCHED, HALF_BATCH_PAYLOAD_AT
from halfmq.model.stored_message import MAGIC_V1
from halfmq.spark.rows.byte_slices import PAYLOAD_ENTRY, Bytes, Ints
from halfmq.spark.sink.hashes import ID_PROPERTY_BYTES, message_ids, put_id_properties

_HEAD: Final = np.dtype(ITEM.dtype)


class Payload(NamedTuple):
    """A half batch, ready to send."""

    content: bytes
    messages: int
    #: CRC-32 of the content.
    checksum: int
    #: All messages have delays.
    delayed: bool


def encoded_sizes(rows: pa.RecordBatch, topic: str) -> Ints:
    """Bytes that each row takes in a payload, including its entry. ``rows``: of schema ``columns.ROWS``, all with delays or none."""
    bodies = pc.binary_length(rows.column(0)).to_numpy()
    properties = pc.binary_length(rows.column(1)).to_numpy()
    fixed = _HEAD.itemsize + 1 + len(topic) + 2 + ID_PROPERTY_BYTES + ENTRY_BYTES + DELAY_BYTES * _are_delayed(rows)
    sizes: Ints = bodies.astype(np.int64) + properties + fixed
    return sizes


def _are_delayed(rows: pa.RecordBatch) -> bool:
    return rows.num_rows > 0 and bool(rows.column(3)[0].as_py())


class Encoder:
    """Encodes the rows of one attempt. Hosts: 4 bytes of IP and an int32 port; ``store_host`` as the broker said."""

    def __init__(self, prefix: bytes, born_host: bytes, store_host: bytes) -> None:
        self._prefix = prefix
        self._born_host = born_host
        self._store_host = store_host
        #: Number of messages encoded, from which the next ids are made.
        self.messages = 0

    def encode(self, rows: pa.RecordBatch, topic: str, queue: int, born_time_ms: int) -> Payload:
        """The rows (of schema ``columns.ROWS``, at least one, all with delays or none) as a payload for one queue.

        Raises:
            OverflowError: the attempt has more than 2**32 messages.
        """
        count = rows.num_rows
        bodies, properties, tag_hashes, delays = rows.columns
        ids, key_hashes = message_ids(self._prefix, self.messages, count)
        self.messages += count
        body_bytes = pc.binary_length(bodies).to_numpy().astype(np.int64)
        property_bytes = pc.binary_length(properties).to_numpy().astype(np.int64) + ID_PROPERTY_BYTES
        name = bytes((len(topic),)) + topic.encode()
        item_bytes = _HEAD.itemsize + body_bytes + (len(name) + 2) + property_bytes
        ends = np.cumsum(item_bytes)
        heads = np.zeros(count, _HEAD)
        heads["kind"] = BATCHED
        heads["item_bytes"] = item_bytes
        heads["from_start"] = ends - item_bytes + HALF_BATCH_PAYLOAD_AT
        heads["number"] = np.arange(count)
        heads["total"] = item_bytes - ITEM_HEAD_BYTES
        heads["magic"] = MAGIC_V1
        heads["body_crc"] = body_crcs(bodies) & 0x7FFFFFFF
        heads["queue_id"] = queue
        heads["born_time_ms"] = born_time_ms
        heads["born_host"] = np.void(self._born_host)
        heads["store_host"] = np.void(self._store_host)
        heads["body_bytes"] = body_bytes
        entries = np.empty(count, PAYLOAD_ENTRY)
        entries["from_start"] = heads["from_start"]
        entries["message_bytes"] = heads["total"]
        entries["tag_hash"] = tag_hashes.to_numpy()
        entries["key_hash"] = key_hashes
        between = _between(name, property_bytes, ids)
        items = pc.binary_join_element_wise(fixed_column(heads), bodies, fixed_column(between), properties, b"")
        delayed = _are_delayed(rows)
        stated = delays.to_numpy().astype(">i8").tobytes() if delayed else b""
        content = b"".join((memoryview(items.buffers()[2])[: int(ends[-1])], stated, entries.tobytes()))
        return Payload(content, count, crc32(content), delayed)


def _between(name: bytes, property_bytes: Ints, ids: Bytes) -> Bytes:
    """Topic, length of the properties, and UNIQ_KEY: what is between the body and the other properties."""
    rows = np.empty((len(ids), len(name) + 2 + ID_PROPERTY_BYTES), np.uint8)
    at = len(name)
    rows[:, :at] = np.frombuffer(name, np.uint8)
    rows[:, at : at + 2] = property_bytes.astype(">u2").view(np.uint8).reshape(-1, 2)
    put_id_properties(rows[:, at + 2 :], ids)
    return rows


def fixed_column(rows: npt.NDArray[np.generic]) -> pa.BinaryArray:
    """Rows of one size as a binary column, without a copy."""
    width = rows.nbytes // len(rows)
    offsets = np.arange(0, rows.nbytes + 1, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def body_crcs(bodies: pa.BinaryArray) -> npt.NDArray[np.uint32]:
    """CRC-32 of each body: the only work for each row in Python, since zlib has no call for many texts."""
    return np.fromiter(map(crc32, bodies.to_pylist()), np.uint32, len(bodies))
