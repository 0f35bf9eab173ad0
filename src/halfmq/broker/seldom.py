"""Saying what does not go away by itself at once, and then now and then: a log that is full of one line hides the others."""

from collections.abc import Callable, Hashable
from typing import Final

#: The same thing is said again after this long, seconds.
REST_S: Final = 600.0
#: Things remembered; above it all are forgotten, and said once more.
REMEMBERED_MAX: Final = 1_024


class Seldom:
    """``clock``: monotonic seconds, as ``loop.time``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[Hashable, float] = {}

    def is_due(self, what: Hashable) -> bool:
        """Whether ``what`` should be said now. True counts as said."""
        now = self._clock()
        before = self._said.get(what)
        if before is not None and now - before < REST_S:
            return False
        if len(self._said) >= REMEMBERED_MAX:
            self._said.clear()
        self._said[what] = now
        return True
