"""What the allocator of the C library does with freed memory.

By default glibc returns large blocks and the end of the heap to the system. A process that receives, encodes or sends a MiB at a time then
gets fresh pages again and again, which cost more than what is done with their bytes (decision 0052).
"""

import ctypes
import os
from typing import Final

#: Parameters of ``mallopt``, from glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
#: glibc's maximum on 64-bit systems.
_MMAP_THRESHOLD_BYTES: Final = 32 << 20
#: Whoever sets one of these has chosen.
_CHOSEN_BY: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(bytes_kept: int) -> bool:
    """Let this process keep up to ``bytes_kept`` of freed memory at the end of its heap for its next allocations.

    Returns False, and changes nothing, where the C library is not glibc, or the environment chooses these values (``mallopt(3)``).
    """
    if any(name in os.environ for name in _CHOSEN_BY):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES) and mallopt(_M_TRIM_THRESHOLD, bytes_kept))
