"""Message bodies as a column, decompressed.

RocketMQ clients compress bodies above 4 KiB and set sysFlag (bit 0; bits 8-10: the method). The broker stores them unchanged,
so the reader decompresses, one message at a time in Python: compressed bodies are large.
Source: RocketMQ ``MessageSysFlag``, ``CompressionType``: 0 and 3 zlib, 1 LZ4 frames, 2 Zstandard.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.stored_message import SYS_COMPRESSED, SYS_COMPRESSION_TYPE_MASK
from halfmq.spark.rows.byte_slices import Ints, binary_column
from halfmq.wire.remoting.compression import LZ4, ZSTD, decompress

#: Methods that Arrow decompresses; for zlib the standard library is used.
_ARROW_CODECS: Final = {LZ4: "lz4", ZSTD: "zstd"}


def body_columns(
    buffer: pa.Buffer,
    starts: Ints,
    lengths: Ints,
    sys_flags: npt.NDArray[np.int32],
    bad: Callable[[int, str], None],
    whole: npt.NDArray[np.bool_] | None,
    unpacked_max: int,
) -> Iterator[tuple[int, int, pa.BinaryArray]]:
    """(first row, end row, bodies of these rows), as many rows at a time as have at most ``unpacked_max`` bytes of decompressed
    bodies; a larger body is alone.

    ``bad(row, why)`` is called for a body that cannot be decompressed; if it returns, the value is null. ``whole``: False for rows that
    are null in any case; None: there are none.
    """
    packed = np.flatnonzero(sys_flags & SYS_COMPRESSED if whole is None else (sys_flags & SYS_COMPRESSED != 0) & whole)
    if not len(packed):
        yield 0, len(starts), binary_column(buffer, starts, lengths, valid=whole)
        return
    starts, lengths = starts.copy(), lengths.copy()
    valid = np.ones(len(starts), bool) if whole is None else whole.copy()
    in_more = np.zeros(len(starts), bool)
    unpacked: list[bytes] = []
    place = begin = 0

    def column(end: int) -> pa.BinaryArray:
        rows = slice(begin, end)
        more = pa.py_buffer(b"".join(unpacked))
        return binary_column(buffer, starts[rows], lengths[rows], valid=valid[rows], more=more, in_more=in_more[rows])

    view = memoryview(buffer)
    for row in packed.tolist():
        try:
            body = unpack(bytes(view[starts[row] : starts[row] + lengths[row]]), int(sys_flags[row]))
        except ProtocolError as error:
            bad(row, f"its body cannot be decompressed: {error}")
            valid[row] = False
            continue
        if unpacked and place + len(body) > unpacked_max:
            yield begin, row, column(row)
            unpacked, place, begin = [], 0, row
        starts[row], lengths[row], in_more[row] = place, len(body), True
        place += len(body)
        unpacked.append(body)
    yield begin, len(starts), column(len(starts))


def unpack(body: bytes, sys_flag: int) -> bytes:
    """Decompress a body.

    Raises:
        ProtocolError: the data does not match the method in ``sys_flag``, or exceeds ``limits.DECOMPRESSED_BYTES_MAX``.
    """
    codec = _ARROW_CODECS.get(sys_flag & SYS_COMPRESSION_TYPE_MASK)
    if codec is None:
        return decompress(body, sys_flag)
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            unpacked: bytes = stream.read(limits.DECOMPRESSED_BYTES_MAX + 1)
    except (pa.ArrowException, OSError) as error:
        raise ProtocolError(f"a body is not valid {codec} data, although its flags say so: {error}") from error
    if len(unpacked) > limits.DECOMPRESSED_BYTES_MAX:
        raise ProtocolError(f"a body of {len(body)} bytes decompresses to more than {limits.DECOMPRESSED_BYTES_MAX}")
    return unpacked
