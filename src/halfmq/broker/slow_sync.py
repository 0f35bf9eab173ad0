"""A sync of the log that takes long is said: while it hangs, and when it is over. Every answer waits for it.

``began`` and ``ended`` come from the sync thread, ``look`` from the loop, now and then. Syncs that follow at once are
counted and not told one by one.
"""

import logging
from typing import Final

from halfmq.runtime.clock import Clock

log = logging.getLogger("halfmq.store")

#: A sync takes milliseconds; seconds are a disk that stalls, and clients that run into time-outs.
SLOW_MS: Final = 1_000
#: After a line about a slow sync the next one rests for so long, ms.
REST_MS: Final = 60_000


class SlowSync:
    """Logs a sync of the log that takes seconds, while it does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms: int | None = None
        #: When the sync began that ``look`` told of.
        self._told_ms: int | None = None
        self._quiet_until_ms = 0
        #: Slow ones since the last line.
        self._untold = 0

    def began(self) -> None:
        """A sync began."""
        self._began_ms = self._clock.monotonic_ms()

    def look(self) -> None:
        """Log it if it has taken long."""
        began_ms = self._began_ms
        now_ms = self._clock.monotonic_ms()
        if began_ms is None or began_ms == self._told_ms or now_ms - began_ms < SLOW_MS or not self._is_due(now_ms):
            return
        self._told_ms = began_ms
        log.warning(
            "fdatasync of the log, or making its next segment, has been running for %.1f s, and answers wait for it: the disk "
            "stalls%s",
            (now_ms - began_ms) / 1_000, self._others(),
        )  # fmt: skip

    def ended(self) -> None:
        """The sync is done."""
        began_ms, self._began_ms = self._began_ms, None
        now_ms = self._clock.monotonic_ms()
        if began_ms is None or now_ms - began_ms < SLOW_MS:
            return
        if began_ms != self._told_ms and not self._is_due(now_ms):
            self._untold += 1
            return
        log.warning(
            "fdatasync of the log, or making its next segment, took %.1f s, and replies waited for it%s",
            (now_ms - began_ms) / 1_000, self._others(),
        )  # fmt: skip

    def _is_due(self, now_ms: int) -> bool:
        if now_ms < self._quiet_until_ms:
            return False
        self._quiet_until_ms = now_ms + REST_MS
        return True

    def _others(self) -> str:
        others, self._untold = self._untold, 0
        return f" ({others} more took over {SLOW_MS // 1_000} s since the last such line)" if others else ""
