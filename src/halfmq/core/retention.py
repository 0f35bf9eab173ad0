"""Retention: which of the oldest segments may be removed, and what prevents the removal of more.

A segment is removed when all of it is older than the retention time, or beyond the retention size; oldest first, and never the segment that
is being written. It is kept while it contains anything within the deduplication window: without the verdict, a repeated half message would
begin a new transaction. Segments that a verdict ties together (``tied_start``) go at once. Retention by size also keeps a segment while
much of it was recently copied there (``core.copies``).

A segment is also kept while a consumer group holds messages in it that it has not read (``core.holds``), so that a job that is behind loses
nothing. A hold is a wish within limits, since a job that never comes back must not fill the disk: it ends at the age that the
group has set, where the log has the size that the operator allows, and for as many bytes as a disk that is nearly full needs.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from halfmq.core.clock_jumps import age_ms
from halfmq.core.commands import Unread
from halfmq.core.copies import may_copy_again
from halfmq.core.holds import holding, unread_between
from halfmq.core.state import State


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
    #: No hold keeps more of the log than this; 0: no limit by size.
    hold_bytes: int = 0
    #: What must be freed even if it is held, since the disk is nearly full.
    must_free_bytes: int = 0


#: Segments that a hold may keep in any case, so that it is of use on a small disk as well.
_HOLD_SEGMENTS_MIN: Final = 4


def hold_bytes_of(disk_bytes: int, segment_bytes: int) -> int:
    """How much of the log consumer groups may hold on a file system of this size, if the operator says nothing: half of it.

    Anybody who can connect may set a hold, and the disk may be shared: it must not grow until the disk is nearly full.
    """
    return max(disk_bytes // 2, _HOLD_SEGMENTS_MIN * segment_bytes)


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
    #: Held messages for which the next segment is kept; empty: no hold delays retention.
    held: tuple[Unread, ...] = ()


def trim_target(view: State, limits: RetentionLimits, segments: Iterable[ClosedSegment], now_ms: int) -> TrimTarget:
    """The log start that retention requires. ``segments``: the closed ones, oldest first, read as needed. ``now_ms``: broker time."""
    young_from_ms = now_ms - limits.dedup_window_ms
    copied_from_ms = now_ms - limits.copy_again_ms
    keep_from = view.session.published - limits.retention_bytes if limits.retention_bytes else 0
    wanted = reached = view.log_start
    copied_bytes = 0
    clock_in_doubt = False
    groups = holding(view)
    hold_from = view.session.published - limits.hold_bytes if limits.hold_bytes else 0
    held: list[Unread] = []
    for start, end, newest_ms in segments:
        too_old = 0 < limits.retention_ms < age_ms(view, newest_ms, now_ms)
        too_far = end <= keep_from
        clock_in_doubt = clock_in_doubt or (not too_old and 0 < limits.retention_ms < now_ms - newest_ms)
        if not (too_old or too_far) or newest_ms >= young_from_ms or start != reached:
            break
        if groups and start - view.log_start >= limits.must_free_bytes and end > hold_from:
            age = age_ms(view, newest_ms, now_ms)
            held = unread_between(view, [group for group in groups if not 0 < group.hold_ms < age], start, end)
            if held:
                break
        reached = end
        copied_bytes += view.derived.copied.get(start, 0) if newest_ms > copied_from_ms else 0
        if too_old or may_copy_again(copied_bytes, reached - view.log_start):
            wanted = reached
    wanted = max(view.log_start, tied_start(view.ties.items(), wanted, view.settings.segment_bytes))
    return TrimTarget(wanted, clock_in_doubt, copied_bytes if reached > wanted else 0, tuple(held))


def tied_start(ties: Iterable[tuple[int, int]], log_start: int, segment_bytes: int) -> int:
    """The last start of a segment at or before ``log_start`` where the log may begin: retention removes segments together if a ``Decided``
    in one shows half batches in earlier ones, without copying them.

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
