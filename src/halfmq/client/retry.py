"""How often a request is tried, how long, and what the caller is told at the end.

What was never written may be tried for as long as the call may take: a broker that restarts is back soon. What was
written is tried at most ``ATTEMPTS`` times, always with the same unique id, so that the broker can tell a repetition
from a new message. If one attempt stayed without an answer, the end is ``SendTimeout``, whatever the others said:
it may have happened.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

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


class Attempts:
    """The budget of one call. Ask ``timeout_s`` before each attempt; report each failure."""

    __slots__ = (
        "_attempt_timeout_s", "_backoff_s", "_deadline", "_dice", "_is_closed", "_left", "_now", "_unknown", "_what",
    )  # fmt: skip

    def __init__(
        self,
        what: str,
        timeout_s: float,
        attempt_timeout_s: float,
        dice: random.Random,
        is_closed: Callable[[], bool],
    ) -> None:
        self._what = what
        #: Whether the client is, after which no attempt can succeed any more.
        self._is_closed = is_closed
        self._now = asyncio.get_running_loop().time
        self._deadline = self._now() + timeout_s
        self._attempt_timeout_s = attempt_timeout_s
        self._dice = dice
        self._left = ATTEMPTS
        self._backoff_s = BACKOFF_S
        self._unknown: Exception | None = None

    def timeout_s(self) -> float:
        """How long the next attempt may take, seconds; never less than a moment."""
        return max(0.05, min(self._attempt_timeout_s, self._deadline - self._now()))

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
        pause_s = self._backoff_s * self._dice.uniform(0.5, 1.0)
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
