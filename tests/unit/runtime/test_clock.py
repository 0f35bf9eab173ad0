"""The real clock: wall time in ms since 1970, monotonic time that does not go back."""

import time

from halfmq.runtime.clock import SystemClock


def test_wall_time_is_in_milliseconds_since_1970() -> None:
    before = time.time()
    assert before * 1_000 - 5 <= SystemClock().wall_ms() <= time.time() * 1_000 + 5


def test_monotonic_time_does_not_go_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic_ms() for _ in range(1_000)]
    assert readings == sorted(readings)
