"""Which old segments may go: a pure rule over facts about segments.

Segments go from the oldest on, whole, and the one that is written never goes. A limit that is None does not apply;
of those that do, the first to be exceeded counts. Nothing is asked about what is in a segment: what is still alive
(undecided halves, undelivered delayed messages) is carried forward before the trim, so it never holds a segment back.
"""

from collections.abc import Sequence
from typing import NamedTuple


class SegmentFacts(NamedTuple):
    """One segment. ``newest_ms``: broker time, ms, of its last batch."""

    start: int
    end: int
    newest_ms: int


class RetentionPolicy(NamedTuple):
    """Limits on what is kept. Age in ms since a segment was last written; bytes and count over all segments."""

    age_ms_max: int | None = None
    bytes_max: int | None = None
    segments_max: int | None = None


def log_start_after_retention(segments: Sequence[SegmentFacts], policy: RetentionPolicy, now_ms: int) -> int:
    """Where the log should start. ``segments``: ascending, the one that is written last.

    The caller carries forward what is alive below it, appends the Trim record and only then unlinks. The result is the
    present start when nothing may go, and 0 for a log without segments.
    """
    if not segments:
        return 0
    start = segments[0].start
    kept_bytes = sum(segment.end - segment.start for segment in segments)
    kept = len(segments)
    for segment in segments[:-1]:
        too_old = policy.age_ms_max is not None and now_ms - segment.newest_ms > policy.age_ms_max
        too_large = policy.bytes_max is not None and kept_bytes > policy.bytes_max
        too_many = policy.segments_max is not None and kept > policy.segments_max
        if not (too_old or too_large or too_many):
            break
        start = segment.end
        kept_bytes -= segment.end - segment.start
        kept -= 1
    return start
