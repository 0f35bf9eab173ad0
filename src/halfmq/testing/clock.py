"""The clock of the brokers of this process that are tested with: real time, and what tests have added to it.

All of them share it, as the processes of a service share the time of day. What answers their checks in this process from a marker table
asks how old a transaction is, and must live in the same time; so must the messages that wait in this process to be handled again.
"""

import threading
from collections.abc import Callable
from typing import Final

from halfmq.client import redelivery_timers
from halfmq.runtime.clock import SystemClock
from halfmq.sql.rules.check import AgeGuard

_lock: Final = threading.Lock()


class MovedClock(SystemClock):
    """Real time, and what was added by ``advance``."""

    def __init__(self) -> None:
        #: What tests have added, ms.
        self.ahead_ms = 0
        self._on_moved: list[Callable[[], None]] = []

    def follow(self, moved: Callable[[], None]) -> None:
        """A broker has started: call ``moved`` after each move, in the thread that moved it."""
        with _lock:
            self._on_moved.append(moved)
            self._tell_checks()

    def leave(self, moved: Callable[[], None]) -> None:
        """The broker has ended."""
        with _lock:
            self._on_moved.remove(moved)
            self._tell_checks()

    def _tell_checks(self) -> None:
        AgeGuard.ahead_ms = self.ahead_ms if self._on_moved else 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms

    def advance(self, span_ms: int) -> None:
        """Add ``span_ms`` at once."""
        with _lock:
            self.ahead_ms += span_ms
            moved = tuple(self._on_moved)
            self._tell_checks()
        redelivery_timers.pass_time(span_ms / 1000)
        for call in moved:
            call()


CLOCK: Final = MovedClock()
