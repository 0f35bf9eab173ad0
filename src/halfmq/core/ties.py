"""Segments that retention removes together: a ``Decided`` in one shows half batches in earlier ones, without copying them."""

from collections.abc import Iterable


def tied_start(ties: Iterable[tuple[int, int]], log_start: int, segment_bytes: int) -> int:
    """The last start of a segment at or before ``log_start`` where the log may begin.

    ``ties``: (position of a verdict, lowest log offset of what it shows); not between the two.
    """
    moved = True
    while moved:
        moved = False
        for position, lowest in ties:
            if lowest < log_start <= position:
                log_start = lowest - lowest % segment_bytes
                moved = True
    return log_start
