"""Wall clock and monotonic clock. ``core`` never reads one: time is an argument of each command."""

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time; tests use a virtual one."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary start; never decreases."""

    def elapsed_s(self) -> float:
        """Seconds since another arbitrary start, at the highest resolution, to measure microseconds."""


class SystemClock:
    """The clocks of the operating system."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    elapsed_s = staticmethod(time.perf_counter)
