"""Message bodies as a column, unpacked where their producer packed them.

Stock clients compress bodies above 4 KiB and say so in sysFlag (bit 0; bits 8-10 the method). The broker stores them as
they came, so a reader unpacks. Each message is unpacked alone, in Python: packed bodies are large ones.
Source: RocketMQ ``MessageSysFlag``, ``CompressionType``: 0 and 3 zlib, 1 LZ4 frames, 2 Zstandard.
"""

import zlib
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from halfmq.model.stored_message import SYS_COMPRESSED, SYS_COMPRESSION_TYPE_MASK
from halfmq.spark.byte_slices import Ints, binary_column

_METHODS: Final = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}


def body_column(
    buffer: pa.Buffer, starts: Ints, lengths: Ints, sys_flags: npt.NDArray[np.int32], bad: Callable[[int, str], None]
) -> pa.BinaryArray:
    """The bodies. ``bad(row, why)`` is called for one that cannot be unpacked; where it returns, the value is null."""
    packed = np.flatnonzero(sys_flags & SYS_COMPRESSED)
    if not len(packed):
        return binary_column(buffer, starts, lengths)
    starts, lengths = starts.copy(), lengths.copy()
    valid = np.ones(len(starts), bool)
    in_more = np.zeros(len(starts), bool)
    unpacked = []
    place = 0
    view = memoryview(buffer)
    for row in packed.tolist():
        method = _METHODS.get((int(sys_flags[row]) & SYS_COMPRESSION_TYPE_MASK) >> 8, "")
        try:
            body = unpack(bytes(view[starts[row] : starts[row] + lengths[row]]), method)
        except (zlib.error, pa.ArrowException, OSError, ValueError) as error:
            bad(
                row,
                f"its body is marked as packed with {method or 'an unknown method'} and cannot be unpacked: {error}",
            )
            valid[row] = False
            continue
        starts[row], lengths[row], in_more[row] = place, len(body), True
        place += len(body)
        unpacked.append(body)
    return binary_column(buffer, starts, lengths, valid=valid, more=pa.py_buffer(b"".join(unpacked)), in_more=in_more)


def unpack(body: bytes, method: str) -> bytes:
    """The body as its producer had it.

    Raises:
        zlib.error, OSError, pyarrow.ArrowException: these bytes were not packed so.
        ValueError: ``method`` is none of zlib, lz4, zstd.
    """
    if method == "zlib":
        return zlib.decompress(body)
    if method not in ("lz4", "zstd"):
        raise ValueError("only zlib, LZ4 and Zstandard are known")
    with pa.CompressedInputStream(pa.BufferReader(body), method) as stream:
        unpacked: bytes = stream.read()
    return unpacked
