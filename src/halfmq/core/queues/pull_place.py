"""Where a pull reads: in the queue, at its end, or where its client should have asked.

A queue that holds messages no longer, or not yet, from the offset on is no error: the client corrects its own. As RocketMQ,
an empty queue that never had a message begins at 0, and so do its consumers.
"""

from typing import NamedTuple


class AtEnd(NamedTuple):
    """Nothing there now; pull again at ``offset``, or wait."""

    offset: int


class Outside(NamedTuple):
    """The offset is outside of the queue; the client corrects its own to ``nearest``."""

    nearest: int


def place(offset: int, queue_min: int, queue_max: int) -> AtEnd | Outside | None:
    """Why a pull at ``offset`` cannot read in a queue that holds ``queue_min`` up to, not including, ``queue_max``.

    None: it can. That is what most pulls are told, so it costs nothing.
    """
    if queue_min <= offset < queue_max:
        return None
    if queue_max == 0:
        return AtEnd(0) if offset == 0 else Outside(0)
    if offset < queue_min:
        return Outside(queue_min)
    return AtEnd(offset) if offset == queue_max else Outside(queue_max)
