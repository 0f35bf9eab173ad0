"""Where a pull reads: in the queue, at its end, or at a corrected offset.

An offset before or after the messages of the queue is not an error: the client corrects its own. As in RocketMQ, an empty queue
that never had a message begins at 0, and so do its consumers.
"""

from typing import NamedTuple


class AtEnd(NamedTuple):
    """There is no message yet. Pull again at ``offset``, or wait."""

    offset: int


class Outside(NamedTuple):
    """The offset is outside of the queue. The client continues at ``nearest``."""

    nearest: int


def place(offset: int, queue_min: int, queue_max: int) -> AtEnd | Outside | None:
    """Why a pull at ``offset`` cannot read in a queue with offsets from ``queue_min`` up to, not including, ``queue_max``.

    None: it can, the common case, which allocates nothing.
    """
    if queue_min <= offset < queue_max:
        return None
    if queue_max == 0:
        return AtEnd(0) if offset == 0 else Outside(0)
    if offset < queue_min:
        return Outside(queue_min)
    return AtEnd(offset) if offset == queue_max else Outside(queue_max)
