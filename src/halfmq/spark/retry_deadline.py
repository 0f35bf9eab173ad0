"""Waiting for a broker that is away: try again with growing pauses until a deadline, say so once, then give up by name."""

import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from halfmq.errors import ConnectError

T = TypeVar("T")

_log: Final = logging.getLogger("halfmq.spark")
_PAUSE_FIRST_S: Final = 0.05
_PAUSE_LONGEST_S: Final = 2.0


class Away(Exception):
    """Not now, perhaps later: the reason. Only for ``RetryDeadline``; never leaves this package."""


class RetryDeadline:
    """``brokerTimeout`` of one reader. Each call waits that long on its own."""

    def __init__(
        self,
        timeout_ms: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout_s = timeout_ms / 1_000
        self._clock = clock
        self._sleep = sleep

    def until(self, attempt: Callable[[], T], what: str) -> T:
        """What ``attempt`` returns, as soon as it does not raise ``Away``.

        Raises:
            ConnectError: it was ``Away`` for all of ``brokerTimeout``; the text says what was tried and the last reason.
        """
        pause = _PAUSE_FIRST_S
        deadline = self._clock() + self._timeout_s
        while True:
            try:
                return attempt()
            except Away as reason:
                left = deadline - self._clock()
                if left <= 0:
                    raise ConnectError(
                        f"{what}: {reason}; waited {self._timeout_s:g} s",
                        hint="is the broker running? brokerTimeout says how long to wait for it",
                    ) from reason
                if pause == _PAUSE_FIRST_S:
                    _log.warning("%s: %s; waiting up to %g s", what, reason, self._timeout_s)
                # Half of each pause is rng, so that tasks that lost one broker do not all come back in one moment.
                self._sleep(min(left, pause * random.uniform(0.5, 1.0)))
                pause = min(pause * 2, _PAUSE_LONGEST_S)
