"""Retries with exponential backoff while a broker is unavailable, until ``brokerTimeout``."""

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from halfmq.client.blocking import NotTrusted, Unavailable
from halfmq.client.log import logger
from halfmq.errors import ConnectError, EnvironmentFailed

T = TypeVar("T")

_log: Final = logger("halfmq.spark")
_PAUSE_FIRST_S: Final = 0.05
_PAUSE_LONGEST_S: Final = 2.0


class RetryDeadline:
    """Retries for up to ``timeout_ms``, counted for each call of ``until``."""

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
        """Call ``attempt`` until it does not raise ``Unavailable``, and return its result. The first failure is logged.

        Raises:
            ConnectError: the time has passed; the text contains ``what`` and the last reason.
            EnvironmentFailed: a certificate is not trusted, which takes a person and not time.
        """
        pause = _PAUSE_FIRST_S
        deadline = self._clock() + self._timeout_s
        while True:
            try:
                return attempt()
            except NotTrusted as reason:
                raise EnvironmentFailed(f"{what}: {reason}") from reason
            except Unavailable as reason:
                left = deadline - self._clock()
                if left <= 0:
                    raise ConnectError(
                        f"{what}: {reason}; waited {self._timeout_s:g} s",
                        hint="check that the broker runs; option brokerTimeout is the time to wait for it",
                    ) from reason
                if pause == _PAUSE_FIRST_S:
                    _log.warning("%s: %s; waiting up to %g s", what, reason, self._timeout_s)
                # Jitter, so that all tasks that lost a broker do not reconnect at the same time.
                self._sleep(min(left, pause * random.uniform(0.5, 1.0)))  # nosec B311 # jitter
                pause = min(pause * 2, _PAUSE_LONGEST_S)


class Attempts:
    """Requests to several brokers, of which at most a fifth of the time is spent on those that do not respond, since the others are read
    meanwhile.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Brokers that did not respond: when to ask again, and why they did not.
        self._failed: dict[str, tuple[float, str]] = {}

    def of(self, broker: str, attempt: Callable[[], T]) -> T:
        """The result of ``attempt``.

        Raises:
            Unavailable: the broker does not respond, or did not a moment ago.
        """
        began = self._clock()
        again, why = self._failed.pop(broker, (began, ""))
        try:
            if began < again:
                raise Unavailable(why)
            return attempt()
        except Unavailable as reason:
            now = self._clock()
            self._failed[broker] = (max(again, now + 4 * (now - began)), str(reason))
            raise
