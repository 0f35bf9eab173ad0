"""The real clock: wall time in ms since 1970."""

import time

from halfmq.runtime.clock import SystemClock


def test_wall_time_is_in_milliseconds_since_1970() -> None:
    before = time.time()
    assert before * 1_000 - 5 <= SystemClock().wall_ms() <= time.time() * 1_000 + 5
