"""Slices of a buffer as an Arrow column, without a Python object per slice; structures and queue entries in a buffer as NumPy arrays.

Slices may be anywhere and in any order (commit order is not log order), so they first become Arrow *views* of 16 bytes: the
length, and either the bytes (at most 12) or buffer number and offset. Spark accepts only ``binary``, so the views are cast,
which copies each slice once, in C++ (measured: 17 ns for 100 bytes, 125 ns for 1 KiB).
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from halfmq.model import layout
from halfmq.model.layout import Layout
from halfmq.store.layout import QUEUE_ENTRY

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

#: Slices up to this length are stored inside the view. Arrow columnar format, "Variable-size Binary View Layout".
_INLINE_MAX: Final = 12


def as_bytes(buffer: pa.Buffer) -> Bytes:
    """The buffer as a NumPy array, without a copy."""
    return np.frombuffer(buffer, dtype=np.uint8)


def gather(data: Bytes, starts: Ints, dtype: Any) -> npt.NDArray[Any]:
    """Read a value of ``dtype`` at each of ``starts``; these need no alignment. The values must lie within ``data``."""
    kind = np.dtype(dtype)
    window: npt.NDArray[Any] = np.ndarray((len(data) - kind.itemsize + 1,), kind, data, strides=(1,))
    return window[starts]


def field(data: Bytes, starts: Ints, layout: Layout, name: str, shift: Ints | int = 0) -> npt.NDArray[Any]:
    """A field of the structure at each of ``starts``; ``shift``: bytes by which it is moved."""
    return gather(data, starts + layout.at[name] + shift, ">" + layout.fields[name])


def cuts(sizes: Ints, bytes_max: int, rows_max: int) -> Iterator[tuple[int, int]]:
    """Divide rows of these sizes into ranges [begin, end) of at most ``bytes_max`` and ``rows_max``, or one row."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        before = int(ends[begin - 1]) if begin else 0
        end = min(begin + rows_max, max(begin + 1, int(np.searchsorted(ends, before + bytes_max, "right"))))
        yield begin, end
        begin = end


def binary_column(
    buffer: pa.Buffer, starts: Ints, lengths: Ints, *, valid: npt.NDArray[np.bool_] | None = None, more: pa.Buffer | None = None,
    in_more: npt.NDArray[np.bool_] | None = None,
) -> pa.BinaryArray:  # fmt: skip
    """``buffer[start : start + length]`` for each row; of buffer ``more`` where ``in_more``; null where not ``valid``."""
    rows = len(starts)
    views = np.zeros((rows, 4), dtype="<i4")
    views[:, 0] = lengths
    views[:, 3] = starts
    if in_more is not None:
        views[:, 2] = in_more
    short = np.flatnonzero(lengths <= _INLINE_MAX)
    if len(short):
        views[short, 1:] = _inline(buffer, more, starts[short], None if in_more is None else in_more[short])
    nulls = 0
    validity = None
    if valid is not None and not valid.all():
        nulls = rows - int(valid.sum())
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [validity, pa.py_buffer(views), buffer]
    if more is not None:
        buffers.append(more)
    # The format also requires the first four bytes of a long slice in its view, and zeros after a short one. Only comparisons
    # use these, and the views exist only until the cast.
    return pa.Array.from_buffers(pa.binary_view(), rows, buffers, nulls).cast(pa.binary())


def _inline(
    buffer: pa.Buffer, more: pa.Buffer | None, starts: Ints, in_more: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.int32]:
    """The last three words of short views. The bytes after a slice in its view are arbitrary."""
    if more is None or in_more is None:
        return _inline_from(as_bytes(buffer), starts)
    inside = np.zeros((len(starts), 3), dtype="<i4")
    for data, wanted in ((as_bytes(buffer), ~in_more), (as_bytes(more), in_more)):
        rows = np.flatnonzero(wanted)
        inside[rows] = _inline_from(data, starts[rows])
    return inside


def _inline_from(data: Bytes, starts: Ints) -> npt.NDArray[np.int32]:
    if len(data) < 2 * _INLINE_MAX:  # too small to read 12 bytes at once: pad a copy
        data = np.concatenate([data, np.zeros(2 * _INLINE_MAX, np.uint8)])
    last = len(data) - _INLINE_MAX
    near_end = np.flatnonzero(starts > last)
    if len(near_end):
        tail = np.concatenate([data[last:], np.zeros(_INLINE_MAX, np.uint8)])
        inside = np.empty((len(starts), 3), dtype="<i4")
        inside[near_end] = _inline_from(tail, starts[near_end] - last)
        others = np.flatnonzero(starts <= last)
        inside[others] = _inline_from(data, starts[others])
        return inside
    return gather(data, starts, f"V{_INLINE_MAX}").view("<i4").reshape(-1, 3)


def string_column(column: pa.BinaryArray) -> pa.StringArray:
    """UTF-8 text; invalid bytes become U+FFFD, as in the client."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode("utf-8", "replace") for v in column.to_pylist()], pa.string())


ENTRY: Final[np.dtype[np.void]] = np.dtype(QUEUE_ENTRY.dtype)
#: An entry in the payload of a half batch.
PAYLOAD_ENTRY: Final[np.dtype[np.void]] = np.dtype(layout.PAYLOAD_ENTRY.dtype)
Entries = npt.NDArray[np.void]
