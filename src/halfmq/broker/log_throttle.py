"""Saying what does not go away by itself at once, and then now and then: a log that is full of one line hides the others."""

from collections.abc import Callable, Hashable
from typing import Final

#: The same thing is said again after this long, seconds.
REST_S: Final = 600.0
#: Things remembered; above it all are forgotten, and said once more.
REMEMBERED_MAX: Final = 1_024


class LogThrottle:
    """``clock``: monotonic seconds, as ``loop.time``. ``together_max``: things of all kinds that are said within ``rest_s``,
    where peers choose how many there are."""

    def __init__(self, clock: Callable[[], float], *, rest_s: float = REST_S, together_max: int | None = None) -> None:
        self._clock = clock
        self._rest_s = rest_s
        self._together_max = together_max
        self._said: dict[Hashable, float] = {}
        #: How often since then it was not said.
        self._left_out: dict[Hashable, int] = {}
        self._together = 0
        self._together_since = clock()

    def is_due(self, what: Hashable) -> bool:
        """Whether ``what`` should be said now. True counts as said."""
        return self.times(what) > 0

    def times(self, what: Hashable) -> int:
        """How often ``what`` has happened since it was said last, with this time; 0: it should not be said now."""
        now = self._clock()
        before = self._said.get(what)
        if before is not None and now - before < self._rest_s:
            self._left_out[what] = self._left_out.get(what, 0) + 1
            return 0
        if now - self._together_since >= self._rest_s:
            self._together_since = now
            self._together = 0
        elif self._together_max is not None and self._together >= self._together_max:
            return 0
        self._together += 1
        if len(self._said) >= REMEMBERED_MAX:
            self._said.clear()
            self._left_out.clear()
        self._said[what] = now
        return 1 + self._left_out.pop(what, 0)
