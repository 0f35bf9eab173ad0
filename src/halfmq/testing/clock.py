"""The clock of the brokers of this process that are tested with: real time, and what tests have added to it.

All of them share it, as the processes of a service share the time of day. What answers their checks in this process from a marker table
asks how old a transaction is, and must live in the same time.
"""

import threading
from collections.abc import Callable
from typing import Final

from halfmq.runtime.clock import SystemClock
from halfmq.sql.rules.check import AgeGuard

_lock: Final = threading.Lock()


class MovedClock(SystemClock):
    """Real time, and what was added by ``advance``."""

    def __init__(self) -> None:
        #: What tests have added, ms.
        self.ahead_ms = 0
        #: Called after each move, in the thread that moved it.
        self.on_moved: list[Callable[[], None]] = []

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms

    def advance(self, span_ms: int) -> None:
        """Add ``span_ms`` at once."""
        with _lock:
            self.ahead_ms += span_ms
            AgeGuard.ahead_ms = self.ahead_ms
            moved = tuple(self.on_moved)
        for call in moved:
            call()


CLOCK: Final = MovedClock()
