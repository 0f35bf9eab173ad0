"""Queue entries as rows of an array. Layout: ``store.layout.QUEUE_ENTRY``."""

from typing import Final

import numpy as np
import numpy.typing as npt

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
Entries = npt.NDArray[np.void]

assert ENTRY.itemsize == QUEUE_ENTRY_BYTES
