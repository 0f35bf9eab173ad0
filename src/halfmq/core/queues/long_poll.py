"""What a pull gets: messages, a place to go to, or a wait.

Three pure decisions around the reading, which the broker does: where to read (``place``), whether to wait (``park``),
and what to say after a scan (``after_scan``). Names stand for RocketMQ's codes:

    Found 0    NotFound 19    RetryImmediately 20    OffsetMoved 21

Only NotFound is ever parked, once, for less than the 30 s that the Java client itself waits. A parked pull is looked at
again when its queue grows, and dies with its connection.
"""

from typing import NamedTuple

from halfmq import limits
from halfmq.core.queues.filter import TagFilter


class ReadFrom(NamedTuple):
    """Scan the queue from here."""

    offset: int


class NotFound(NamedTuple):
    """19: nothing there now; pull again at ``next_begin``."""

    next_begin: int


class OffsetMoved(NamedTuple):
    """21: the offset is outside of the queue; the client corrects its own to ``next_begin``."""

    next_begin: int


class Found(NamedTuple):
    """0: the body has messages."""

    next_begin: int


class RetryImmediately(NamedTuple):
    """20: what was scanned was filtered out; pull again at ``next_begin``."""

    next_begin: int


class Park(NamedTuple):
    """Answer when the queue grows beyond ``offset`` or at ``until_ms``, whichever is first."""

    offset: int
    until_ms: int


def place(offset: int, queue_min: int, queue_max: int) -> ReadFrom | NotFound | OffsetMoved:
    """Where a pull at ``offset`` reads in a queue that holds ``queue_min`` up to, not including, ``queue_max``."""
    if queue_max == 0:
        return NotFound(0) if offset == 0 else OffsetMoved(0)
    if offset < queue_min:
        return OffsetMoved(queue_min)
    if offset == queue_max:
        return NotFound(offset)
    if offset > queue_max:
        return OffsetMoved(queue_max)
    return ReadFrom(offset)


def after_scan(found: int, scanned_to: int) -> Found | RetryImmediately:
    """The answer when a scan that ended before ``scanned_to`` found this many messages."""
    return Found(scanned_to) if found else RetryImmediately(scanned_to)


def park(answer: NotFound, *, suspend_allowed: bool, first_pass: bool, suspend_ms: int, now_ms: int) -> Park | NotFound:
    """Whether a pull that found nothing waits. ``suspend_ms``: what the client offers to wait; bounded by us."""
    if not suspend_allowed or not first_pass or suspend_ms <= 0:
        return answer
    return Park(answer.next_begin, now_ms + min(suspend_ms, limits.PULL_SUSPEND_MAX_MS))


def wakes(parked: Park, wanted: TagFilter, queue_max: int, tag_hash: int | None) -> bool:
    """Whether a queue that now ends at ``queue_max`` may have something for the parked pull.

    ``tag_hash`` of the only new message; None when there are several or it is not known.
    """
    return queue_max > parked.offset and (tag_hash is None or wanted.wants(tag_hash))
