"""How often a request is tried, how long, and what the caller is told at the end.

What was never written may be tried for as long as the call may take: a broker that restarts is back soon. What was
written is tried at most ``ATTEMPTS`` times, always with the same unique id, so that the broker can tell a repetition
from a new message. If one attempt stayed without an answer, the end is ``SendTimeout``, whatever the others said:
it may have happened.

The time of a call is for all of it: asking for routes, connecting and the pauses in between count like the attempts.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from halfmq.client.connection import NoAnswer, NotSent
from halfmq.errors import ConnectError, HalfmqError, RequestFailed, SendTimeout
from halfmq.wire.remoting.codes import ResponseCode

#: Written attempts of one request. Precedent: RocketMQ ``retryTimesWhenSendFailed`` = 2, so three in all.
ATTEMPTS: Final = 3
BACKOFF_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0

#: Answers after which the same request may succeed soon, or on another queue.
#: RocketMQ's set without 16 and 17, which do not change by asking again.
RETRIABLE: Final = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
        204,
        205,
    )
)


_T = TypeVar("_T")


class OutOfTime(NotSent):
    """The time of the call was over before the attempt was written."""


class Attempts:
    """The budget of one call. Ask ``timeout_s`` before each attempt, do ``within`` it what comes before; report each failure."""

    __slots__ = (
        "_attempt_timeout_s",
        "_backoff_s",
        "_deadline",
        "_is_closed",
        "_last",
        "_left",
        "_now",
        "_rng",
        "_unknown",
        "_what",
    )  # fmt: skip

    def __init__(
        self,
        what: str,
        timeout_s: float,
        attempt_timeout_s: float,
        rng: random.Random,
        is_closed: Callable[[], bool],
    ) -> None:
        self._what = what
        #: Whether the client is, after which no attempt can succeed any more.
        self._is_closed = is_closed
        self._now = asyncio.get_running_loop().time
        self._deadline = self._now() + timeout_s
        self._attempt_timeout_s = attempt_timeout_s
        self._rng = rng
        self._left = ATTEMPTS
        self._backoff_s = BACKOFF_S
        self._unknown: Exception | None = None
        #: The last failure that was not merely the end of the time: it is what the caller is told.
        self._last: Exception | None = None

    def left_s(self) -> float:
        """What is left of the call, seconds; not below 0."""
        return max(0.0, self._deadline - self._now())

    def timeout_s(self) -> float:
        """How long the next attempt may take, seconds.

        Raises:
            OutOfTime: not at all. Report it as any ``NotSent``.
        """
        left_s = self._deadline - self._now()
        if left_s <= 0:
            raise OutOfTime("its time was over")
        return min(self._attempt_timeout_s, left_s)

    async def within(self, work: Coroutine[Any, Any, _T]) -> _T:
        """What must be done before anything can be written (a route, a connection), for as long as the call may take.

        Raises:
            OutOfTime: it took longer, and was cancelled. Whatever ``work`` raises.
        """
        limit = asyncio.timeout_at(self._deadline)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise OutOfTime("its time was over before there was a connection") from None

    @property
    def outcome_unknown(self) -> bool:
        """Some attempt was written and got no answer."""
        return self._unknown is not None

    async def lost(self, error: ConnectError | NotSent | NoAnswer) -> None:
        """The attempt got no answer. Returns when it is time for the next one.

        Raises:
            SendTimeout: no more attempts, and one may have arrived. ConnectError: no more time, and none was written.
                Either at once where the client is closed.
        """
        if isinstance(error, NoAnswer):
            self._unknown = error
            self._left -= 1
        if isinstance(error, OutOfTime) and self._last is not None:
            raise self._final(self._last)
        self._last = error
        if self._is_closed():
            raise self._final(ConnectError(f"{self._what}: the client is closed"))
        if self._left <= 0 or not await self._wait():
            raise self._final(error)

    async def refused(self, error: RequestFailed, *, stays: bool = False) -> None:
        """The server said no. Returns when another attempt is worth it; ``stays``: it never is, whatever the number says.

        Raises:
            RequestFailed: ``error`` itself. SendTimeout: an earlier attempt may have arrived.
        """
        self._left -= 1
        if stays or error.response_code not in RETRIABLE or self._left <= 0 or not await self._wait():
            raise self._final(error)

    async def _wait(self) -> bool:
        left_s = self._deadline - self._now()
        if left_s <= 0:
            return False
        pause_s = self._backoff_s * self._rng.uniform(0.5, 1.0)
        self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)
        await asyncio.sleep(min(pause_s, left_s))
        return True

    def _final(self, last: Exception) -> HalfmqError:
        if self._unknown is not None and not _settles(last):
            error: HalfmqError = SendTimeout(
                f"{self._what}: no answer; it may have happened",
                hint="do not send it again as a new message; look for it, or let its receiver drop duplicates",
            )
        elif isinstance(last, HalfmqError):
            return last
        else:
            error = ConnectError(f"{self._what}: {last}", hint="nothing was sent; is the server running?")
        error.__cause__ = last
        return error


def _settles(error: Exception) -> bool:
    """A refusal that says what became of earlier attempts too: this transaction has its verdict, or it cannot have one."""
    return isinstance(error, RequestFailed) and error.response_code == ResponseCode.ILLEGAL_OPERATION
