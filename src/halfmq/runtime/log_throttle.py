"""Log a persistent condition once, then at most every ``REST_S`` seconds: repetitions would hide other lines."""

from collections.abc import Callable, Hashable
from typing import Final

#: Minimum interval between two lines about one condition, seconds.
REST_S: Final = 600.0
#: Maximum number of remembered conditions; beyond it all are forgotten, and logged once more.
REMEMBERED_MAX: Final = 1_024


class LogThrottle:
    """``clock``: monotonic seconds, as ``loop.time``. ``together_max``: maximum number of lines within ``rest_s`` over all conditions, for
    conditions whose number clients determine.
    """

    def __init__(self, clock: Callable[[], float], *, rest_s: float = REST_S, together_max: int | None = None) -> None:
        self._clock = clock
        self._rest_s = rest_s
        self._together_max = together_max
        self._said: dict[Hashable, float] = {}
        #: Number of suppressed lines since the last one, by condition.
        self._left_out: dict[Hashable, int] = {}
        self._together = 0
        self._together_since = clock()

    def is_due(self, what: Hashable) -> bool:
        """Whether to log ``what`` now. True counts as logged."""
        return self.times(what) > 0

    def times(self, what: Hashable) -> int:
        """Number of occurrences of ``what`` since it was last logged, including this one; 0: do not log it now."""
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
