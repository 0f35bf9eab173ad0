"""Time from outside: wall time in ms and a monotonic clock. Decisions never ask; they are told."""

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the machine believes; may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that only go forward; the zero is arbitrary."""
        ...

    def elapsed_s(self) -> float:
        """The same in seconds, as fine as the machine has it: for what takes microseconds."""
        ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    elapsed_s = staticmethod(time.perf_counter)
