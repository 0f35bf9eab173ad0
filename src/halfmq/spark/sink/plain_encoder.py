"""Encodes rows as ordinary messages: a request with one message (310), or a batch of them (320)."""

from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halfmq.model.query_batch import QueryBatch
from halfmq.model.stored_message import AT_BODY_V4
from halfmq.spark.rows.byte_slices import Ints
from halfmq.spark.sink.encoder import fixed_column
from halfmq.spark.sink.message_ids import ID_CHARS, repeatable_ids
from halfmq.wire.remoting.codes import RequestCode

#: Body and properties of a batch are between these: see ``message_codec.split_batch``.
_ENTRY: Final = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_bytes", ">i4")])
_DIGEST_BYTES: Final = 8
_ID_NAME: Final = b"UNIQ_KEY\x01"
#: RocketMQ adds properties to each message of a batch: those of the request, and the name of its cluster.
_ADDED_BYTES_MAX: Final = 192
#: Of a batch, as RocketMQ's producers have it. No UNIQ_KEY: brokers up to 5.0 append these properties to those of each message.
_BATCH_PROPERTIES: Final = "WAIT\x01true\x02"


class Content(NamedTuple):
    """Messages for one queue, ready to send. ``properties``: a property string, for the header of the request."""

    code: int
    properties: str
    body: bytes


def stored_sizes(rows: pa.RecordBatch, topic: str) -> Ints:
    """Bytes that a broker stores for each row, at most: RocketMQ limits the sum for a batch. ``rows``: of schema ``columns.ROWS``."""
    bodies = pc.binary_length(rows.column(0)).to_numpy()
    properties = pc.binary_length(rows.column(1)).to_numpy()
    sizes: Ints = bodies.astype(np.int64) + properties + (AT_BODY_V4 + 1 + len(topic) + 2 + _ADDED_BYTES_MAX)
    return sizes


def with_ids(rows: pa.RecordBatch, batch: QueryBatch, partition: int, first: int) -> pa.RecordBatch:
    """The rows, of schema ``columns.ROWS``, with UNIQ_KEY in their properties. ``first``: number of rows of the task before these.

    Raises:
        OverflowError: the task has more than 2**32 rows.
    """
    bodies, properties, tag_hashes, delays = rows.columns
    # Not their CRC: of millions of rows in another order, some would agree by chance.
    lengths = fixed_column(
        pc.binary_length(bodies).to_numpy().astype(">u8")
    )  # a body may contain what separates properties
    contents = pc.binary_join_element_wise(lengths, bodies, properties, b"").to_pylist()
    digests = b"".join([blake2b(one, digest_size=_DIGEST_BYTES).digest() for one in contents])
    ids = repeatable_ids(batch, partition, first, np.frombuffer(digests, np.uint8).reshape(-1, _DIGEST_BYTES))
    named = np.empty((len(ids), len(_ID_NAME) + ID_CHARS + 1), np.uint8)
    named[:, : len(_ID_NAME)] = np.frombuffer(_ID_NAME, np.uint8)
    named[:, len(_ID_NAME) : -1] = ids
    named[:, -1] = 2
    joined = pc.binary_join_element_wise(fixed_column(named), properties, b"")
    return pa.RecordBatch.from_arrays([bodies, joined, tag_hashes, delays], schema=rows.schema)


def encode(rows: pa.RecordBatch) -> Content:
    """The rows as one request. One row is an ordinary message: with the head of a batch it might be larger than what brokers accept."""
    bodies, properties = rows.column(0), rows.column(1)
    if rows.num_rows == 1:
        return Content(RequestCode.SEND_MESSAGE_V2, properties[0].as_py().decode(), bodies[0].as_py())
    body_bytes = pc.binary_length(bodies).to_numpy()
    property_bytes = pc.binary_length(properties).to_numpy()
    entries = np.zeros(rows.num_rows, _ENTRY)
    entries["size"] = body_bytes.astype(np.int64) + property_bytes + (_ENTRY.itemsize + 2)
    entries["body_bytes"] = body_bytes
    lengths = property_bytes.astype(">u2")
    joined = pc.binary_join_element_wise(fixed_column(entries), bodies, fixed_column(lengths), properties, b"")
    content = bytes(memoryview(joined.buffers()[2])[: int(entries["size"].sum(dtype=np.int64))])
    return Content(RequestCode.SEND_BATCH_MESSAGE, _BATCH_PROPERTIES, content)
