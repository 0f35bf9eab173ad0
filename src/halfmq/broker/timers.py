"""Broker time, and the timer that sends ``Tick`` commands.

Broker time is max(last time in the log, wall clock at start) + monotonic time since: it never decreases, whatever the wall clock or a
restart does (promise 9). The core tells when something is due (``next_deadline_ms``); this module keeps one timer for it and decides
nothing.
"""

import asyncio
from collections.abc import Callable

from halfmq.runtime.clock import Clock

#: Maximum sleep of the timer, ms: a deadline missed because of a bug is delayed by at most this.
_SLEEP_MAX_MS = 60_000


class BrokerTime:
    """Milliseconds since 1970 that never decrease, within a run and over restarts of a store."""

    __slots__ = ("_base_ms", "_clock")

    def __init__(self, clock: Clock, last_in_log_ms: int) -> None:
        self._clock = clock
        self._base_ms = max(last_in_log_ms, clock.wall_ms()) - clock.monotonic_ms()

    def now_ms(self) -> int:
        """Broker time, ms; never decreases, within a run or over a restart."""
        return self._base_ms + self._clock.monotonic_ms()


class DeadlineTimer:
    """Calls ``due`` at or shortly after the earliest deadline; has at most one handle on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, time: BrokerTime, due: Callable[[], None]) -> None:
        self._loop = loop
        self._time = time
        self._due = due
        self._handle: asyncio.TimerHandle | None = None
        self._armed_ms = 0
        self._not_before_ms = 0

    def rest(self, span_ms: int) -> None:
        """Do not fire within ``span_ms`` from now, whatever is due: the due work is impossible at the moment."""
        self._not_before_ms = self._time.now_ms() + span_ms
        self.stop()
        self.arm(self._not_before_ms)

    def arm(self, deadline_ms: int | None) -> None:
        """Fire at ``deadline_ms`` (broker time) or earlier; an earlier pending deadline stays."""
        if deadline_ms is None:
            return
        deadline_ms = max(deadline_ms, self._not_before_ms)
        if self._handle is not None and self._armed_ms <= deadline_ms:
            return
        self.stop()
        now_ms = self._time.now_ms()
        self._armed_ms = min(max(deadline_ms, now_ms), now_ms + _SLEEP_MAX_MS)
        self._handle = self._loop.call_later((self._armed_ms - now_ms) / 1000, self._fire)

    def clock_moved(self) -> None:
        """The clock has jumped, which only a test's can: what is due by it fires now, and not when the loop's own time has passed."""
        if self._handle is not None:
            self.stop()
            self.arm(self._armed_ms)

    def stop(self) -> None:
        """No more ticks."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._due()
