"""Which segment a batch of records goes to: the rule that ``core`` and ``store`` must share.

A segment is ``segment_bytes`` of log; segment *n* contains positions from ``n * segment_bytes``. A batch lies completely in one
segment. If the records of the next decision do not fit after the existing ones, the rest of the segment stays zero and the batch goes to
the next one, after that segment's base record.
"""

from typing import Final

from halfmq.model.records import BATCH_ALIGNMENT, BATCH_HEADER_BYTES

SEGMENT_BYTES_DEFAULT: Final = 1 << 30
SEGMENT_BYTES_MIN: Final = 1 << 16


def aligned(offset: int) -> int:
    """The first batch boundary at or after ``offset``."""
    return (offset + BATCH_ALIGNMENT - 1) & -BATCH_ALIGNMENT


def segment_start(offset: int, segment_bytes: int) -> int:
    return offset - offset % segment_bytes


def next_segment_start(offset: int, segment_bytes: int) -> int:
    return offset - offset % segment_bytes + segment_bytes


def fits(end: int, batch_open: bool, record_bytes: int, segment_bytes: int) -> bool:
    """Whether ``record_bytes`` more of records fit in the segment of ``end``.

    ``end`` is the log's end (after the last record of the open batch, if one is open). A segment that is exactly full has no space: its
    last byte belongs to it, but ``end`` to the next one.
    """
    place = end % segment_bytes
    if place == 0 and end > 0:  # exactly full, also in an open batch, whose header is before
        return False
    needed = record_bytes if batch_open else BATCH_HEADER_BYTES + record_bytes
    return aligned(place + needed) <= segment_bytes
