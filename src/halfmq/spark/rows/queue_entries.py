"""Queue entries as rows of an array, and what a half batch states of them. Layout: ``store.layout.QUEUE_ENTRY``, ``model.half_batch``."""

from typing import Final

import numpy as np
import numpy.typing as npt

from halfmq.model.half_batch import ENTRY_BYTES
from halfmq.store.layout import QUEUE_ENTRY_BYTES

ENTRY: Final = np.dtype(
    [
        ("offset", ">i8"),
        ("size", ">i4"),
        ("tag_hash", ">i4"),
        ("visible_at", ">i8"),
        ("store_time_ms", ">i8"),
        ("half_index", ">i8"),
        ("key_hash", ">i8"),
    ]
)
#: An entry in the payload of a half batch.
PAYLOAD_ENTRY: Final = np.dtype([("place", ">u4"), ("size", ">u4"), ("tag_hash", ">i4"), ("key_hash", ">i8")])
Entries = npt.NDArray[np.void]

assert ENTRY.itemsize == QUEUE_ENTRY_BYTES
assert PAYLOAD_ENTRY.itemsize == ENTRY_BYTES
