"""Retention: which of the oldest segments may be removed, and what prevents the removal of more.

A segment is removed when all of it is older than the retention time, or beyond the retention size; oldest first, and never the
segment that is being written. It is kept while it contains anything within the deduplication window: without the verdict, a
repeated half message would begin a new transaction. Segments that a verdict ties together (``core.ties``) go at once. Retention by size also keeps a segment while much of it was recently
copied there (``core.copies``).
"""

from collections.abc import Iterable
from typing import NamedTuple

from halfmq.core.clock_jumps import age_ms
from halfmq.core.copies import may_copy_again
from halfmq.core.ties import tied_start
from halfmq.core.view import View


class ClosedSegment(NamedTuple):
    """A full segment. ``start``, ``end``: log offsets; ``end`` is the start of the next segment."""

    start: int
    end: int
    #: Broker time of the first batch after it, ms; nothing in it is younger.
    newest_ms: int


class RetentionLimits(NamedTuple):
    """What the operator configured; times in ms, sizes in bytes."""

    #: 0: no limit by age.
    retention_ms: int
    #: 0: no limit by size.
    retention_bytes: int
    dedup_window_ms: int
    #: Retention by size copies messages that were copied less than this time ago, ms, only as a small part of what is freed.
    copy_again_ms: int


class TrimTarget(NamedTuple):
    """The result of ``trim_target``. If ``log_start`` is after the current one, the caller copies forward up to it and then trims; the
    other fields explain in log lines why it is not later.
    """

    #: Start of the first segment to keep; the current start of the log if none may be removed.
    log_start: int
    #: A segment would be old enough if the clock had been trusted at a start.
    clock_in_doubt: bool
    #: Recently copied bytes that prevent removal by size; 0: none do.
    copied_bytes: int


def trim_target(view: View, limits: RetentionLimits, segments: Iterable[ClosedSegment], now_ms: int) -> TrimTarget:
    """The log start that retention requires. ``segments``: the closed ones, oldest first; read as far as needed. ``now_ms``: broker time."""
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
    wanted = max(view.log_start, tied_start(view.ties.items(), wanted, view.settings.segment_bytes))
    return TrimTarget(wanted, clock_in_doubt, copied_bytes if reached > wanted else 0)
