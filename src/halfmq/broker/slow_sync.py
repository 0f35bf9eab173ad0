"""Logs slow syncs of the log, during and after them: every reply waits for them.

The sync thread calls ``began`` and ``ended``; the loop calls ``look`` at intervals. Consecutive slow syncs are counted instead of logged
one by one.
"""

import logging
from typing import Final

from halfmq.runtime.clock import Clock

log = logging.getLogger("halfmq.store")

#: A sync takes milliseconds; seconds mean a stalled disk, and timeouts for clients.
SLOW_MS: Final = 1_000
#: Minimum interval between two lines about slow syncs, ms.
REST_MS: Final = 60_000


class SlowSync:
    """Logs a sync that takes seconds, while it runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms: int | None = None
        #: Begin of the sync that ``look`` logged.
        self._told_ms: int | None = None
        self._quiet_until_ms = 0
        #: Number of slow syncs since the last line.
        self._untold = 0

    def began(self) -> None:
        """A sync began."""
        self._began_ms = self._clock.monotonic_ms()

    def look(self) -> None:
        """Log the running sync if it is slow."""
        began_ms = self._began_ms
        now_ms = self._clock.monotonic_ms()
        if began_ms is None or began_ms == self._told_ms or now_ms - began_ms < SLOW_MS or not self._is_due(now_ms):
            return
        self._told_ms = began_ms
        log.warning(
            "fdatasync of the log, or making its next segment, has been running for %.1f s, and replies wait for it: the disk "
            "stalls%s",
            (now_ms - began_ms) / 1_000, self._others(),
        )  # fmt: skip

    def ended(self) -> None:
        """The sync ended."""
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
