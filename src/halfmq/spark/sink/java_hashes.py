"""Java's ``String.hashCode`` of many texts at once: RocketMQ's hash of tags and of sharding keys.

The hash is a polynomial of the characters modulo 2**32, and unsigned NumPy arithmetic wraps at the same place. That holds for ASCII,
where a byte is a character; other texts are hashed one by one, each distinct one once.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from halfmq.model.ids import java_string_hash
from halfmq.spark.rows.byte_slices import as_bytes

Hashes = npt.NDArray[np.int32]

#: Characters; longer texts are hashed one by one, so that the table of powers stays small.
_VECTOR_CHARS_MAX: Final = 1_024
_POWERS: Final = np.array([pow(31, n, 1 << 32) for n in range(_VECTOR_CHARS_MAX)], dtype=np.uint32)


def java_hashes(texts: pa.BinaryArray) -> Hashes:
    """The signed hash of each text, UTF-8; 0 for null, as for an empty text."""
    rows = len(texts)
    if texts.null_count:
        texts = texts.fill_null(b"")
    _, offsets_buffer, data_buffer = texts.buffers()
    if not rows or data_buffer is None:
        return np.zeros(rows, np.int32)
    ends = np.frombuffer(offsets_buffer, np.int32, rows + 1, texts.offset * 4)
    data = as_bytes(data_buffer)[ends[0] : ends[-1]]
    offsets = (ends - ends[0]).astype(np.int64)
    lengths = np.diff(offsets)
    if len(data) == 0:
        return np.zeros(rows, np.int32)
    if data.max() >= 0x80 or lengths.max() > _VECTOR_CHARS_MAX:
        return _one_by_one(texts)
    after = np.repeat(offsets[1:], lengths) - np.arange(len(data)) - 1  # characters after each one
    sums = np.zeros(len(data) + 1, np.uint32)
    np.cumsum(data * _POWERS[after], dtype=np.uint32, out=sums[1:])
    found: Hashes = (sums[offsets[1:]] - sums[offsets[:-1]]).view(np.int32)
    return found


def _one_by_one(texts: pa.BinaryArray) -> Hashes:
    distinct = texts.dictionary_encode()
    hashes = [java_string_hash(text.decode("utf-8", "replace")) for text in distinct.dictionary.to_pylist()]
    found: Hashes = np.array(hashes, np.int32)[distinct.indices.to_numpy()]
    return found
