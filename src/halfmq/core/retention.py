"""Where the log may start: which of its oldest segments retention removes, and what keeps it from removing more.

A segment goes once all of it is older than the retention time, or lies further back than the retention size; the oldest first,
and never the one that is written. It stays while it has something younger than the deduplication window: with a verdict its
memory would go, and a half that comes again would be a transaction of its own. By size alone it also stays while much of it
was copied there a short time ago (``core.copies``).
"""

from collections.abc import Iterable
from typing import NamedTuple

from halfmq.core.clock_jumps import age_ms
from halfmq.core.copies import may_copy_again
from halfmq.core.view import View


class ClosedSegment(NamedTuple):
    """A segment that is full. ``start``, ``end``: log offsets; ``end`` is where the next one begins."""

    start: int
    end: int
    #: Broker time of the first batch after it, ms: nothing in it is younger.
    newest_ms: int


class RetentionLimits(NamedTuple):
    #: 0: age does not count.
    retention_ms: int
    #: 0: size does not count.
    retention_bytes: int
    dedup_window_ms: int
    #: What was copied less than this long ago, ms, is copied again by size only as a small part of what goes.
    copy_again_ms: int


class TrimTarget(NamedTuple):
    #: Start of the first segment to keep; the log's present start where none may go.
    log_start: int
    #: Something would be old enough if the time were believed by which the clock was ahead at a start.
    clock_in_doubt: bool
    #: Bytes that were copied a short time ago and keep by size what might go otherwise; 0: nothing is kept for that.
    copied_bytes: int


def trim_target(view: View, limits: RetentionLimits, segments: Iterable[ClosedSegment], now_ms: int) -> TrimTarget:
    """What retention wants. ``segments``: the closed ones, the oldest first; looked at as far as needed. ``now_ms``: broker time."""
    young_from_ms = now_ms - limits.dedup_window_ms
    copied_from_ms = now_ms - limits.copy_again_ms
    keep_from = view.session.published - limits.retention_bytes if limits.retention_bytes else 0
    wanted = reached = view.log_start
    copied_bytes = 0
    clock_in_doubt = False
    for start, end, newest_ms in segments:
        too_old = 0 < limits.retention_ms < age_ms(view, newest_ms, now_ms)
        too_far = end <= keep_from
        clock_in_doubt = clock_in_doubt or (not too_old and 0 < limits.retention_ms < now_ms - newest_ms)
        if not (too_old or too_far) or newest_ms >= young_from_ms or start != reached:
            break
        reached = end
        copied_bytes += view.derived.copied.get(start, 0) if newest_ms > copied_from_ms else 0
        if too_old or may_copy_again(copied_bytes, reached - view.log_start):
            wanted = reached
    return TrimTarget(wanted, clock_in_doubt, copied_bytes if reached > wanted else 0)
