"""Logs problems of decisions: each kind once, then at most every ten minutes."""

import logging
from collections.abc import Callable

from halfmq.core.engine import DecisionFailed, DelayedNotShown, FitsNowhere, NoNextSegment, NotCopied, Problem
from halfmq.model.placement import segment_start
from halfmq.runtime.log_throttle import LogThrottle

log = logging.getLogger("halfmq.engine")


class Problems:
    """``clock``: monotonic seconds, as ``loop.time``."""

    def __init__(self, clock: Callable[[], float], segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._throttle = LogThrottle(clock)
        #: Delayed messages that were postponed: those not logged yet, and all of them.
        self._not_shown_untold = 0
        self._not_shown = 0

    def tell(self, problem: Problem) -> None:
        """Log one problem of the engine, with advice for operators."""
        match problem:
            case DecisionFailed(command, error):
                if self._throttle.is_due((type(command), type(error))):
                    log.error("decision failed on %s; nothing was changed", type(command).__name__, exc_info=error)
            case FitsNowhere(command, error):
                what = type(command).__name__
                if self._throttle.is_due((what, "failed")):
                    log.error("%s failed; nothing was changed, everything else continues", what, exc_info=error)
            case NotCopied(command, source, text):
                if self._throttle.is_due((type(command), source)):
                    log.error("%s", text)
            case DelayedNotShown(damaged, more):
                self._delayed(damaged, more=more)
            case NoNextSegment():
                log_no_space()

    def _delayed(self, damaged: tuple[tuple[int, str], ...], *, more: bool) -> None:
        by_segment: dict[int, list[str]] = {}
        for source, text in damaged:
            by_segment.setdefault(segment_start(source, self._segment_bytes), []).append(text)
        self._not_shown += len(damaged)
        for start, texts in by_segment.items():
            if self._throttle.is_due(("aside", start)):
                log.error(
                    "delayed messages will not be delivered before the next start, %d of one segment so far: %s",
                    len(texts),
                    texts[0],
                )
            else:
                self._not_shown_untold += len(texts)
        if self._not_shown_untold and not more and self._throttle.is_due("aside"):
            log.error(
                "%d more delayed messages of such segments will not be delivered before the next start: %d in all",
                self._not_shown_untold,
                self._not_shown,
            )
            self._not_shown_untold = 0


def log_no_space() -> None:
    """Log that new messages are refused because the disk is full."""
    log.warning("the disk is full: new messages are refused; verdicts and checks continue")
