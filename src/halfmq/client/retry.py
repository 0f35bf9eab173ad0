"""Retry policy of a call: number of attempts, timeouts, backoff, and the final exception.

A request that was not written is retried until the call times out, which covers a broker restart. A written one is attempted
at most ``ATTEMPTS`` times, always with the same unique id, so that the broker can deduplicate. If any attempt got no
response, the call ends with ``SendTimeout`` whatever the other attempts returned: the request may have been executed.

The timeout covers the whole call: route queries, connecting and backoff as well as the attempts.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from halfmq.client.connection import Answer, Connection, NoAnswer, NotSent
from halfmq.client.refusals import RETRIABLE, meaning_of, refusal
from halfmq.errors import ConnectError, HalfmqError, LoginFailed, RequestFailed, SendTimeout
from halfmq.wire.remoting.codes import ResponseCode

#: Written attempts per request. Precedent: RocketMQ ``retryTimesWhenSendFailed`` = 2, so three in all.
ATTEMPTS: Final = 3
BACKOFF_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0

_T = TypeVar("_T")
Request = Callable[[Connection, float], Coroutine[Any, Any, Answer]]


class OutOfTime(NotSent):
    """The call timed out before the attempt was written."""


class Attempts:
    """The retry budget of one call.

    Use ``timeout_s`` as the timeout of each attempt, run its preparation (route, connection) in ``within``, and report each
    failure to ``lost`` or ``refused``, which sleep before the next attempt or raise the final error.
    """

    __slots__ = (
        "_attempt_timeout_s", "_backoff_s", "_deadline", "_gave_up", "_hint", "_is_closed", "_last", "_left", "_now",
        "_patient_until", "_rng", "_unknown", "_what",
    )  # fmt: skip

    def __init__(
        self,
        what: str,
        timeout_s: float,
        attempt_timeout_s: float,
        rng: random.Random,
        is_closed: Callable[[], bool],
        hint: str = "do not send it again as a new message; query it, or deduplicate at the consumer",
        patient_s: float = 0.0,
    ) -> None:
        """``hint``: what the caller does after ``SendTimeout``. ``patient_s``: so long, and no longer than the call, attempts are not
        counted: what is refused may succeed as soon as somebody else is there.
        """
        self._what = what
        #: Whether the client is closed; then no attempt can succeed.
        self._is_closed = is_closed
        self._now = asyncio.get_running_loop().time
        self._deadline = self._now() + timeout_s
        self._attempt_timeout_s = attempt_timeout_s
        self._rng = rng
        self._hint = hint
        self._left = ATTEMPTS
        self._patient_until = self._now() + patient_s
        self._backoff_s = BACKOFF_S
        self._unknown: Exception | None = None
        #: The last failure other than ``OutOfTime``, for the final error.
        self._last: Exception | None = None
        #: Why the call ended before its time was over; part of the final error.
        self._gave_up = ""

    def left_s(self) -> float:
        """Remaining time of the call, seconds; at least 0."""
        return max(0.0, self._deadline - self._now())

    def timeout_s(self) -> float:
        """The timeout of the next attempt, seconds.

        Raises:
            OutOfTime: no time is left. Report it to ``lost``.
        """
        left_s = self._deadline - self._now()
        if left_s <= 0:
            raise OutOfTime("its time was over")
        return min(self._attempt_timeout_s, left_s)

    async def within(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work``, which precedes writing the request (route, connection), within the remaining time of the call.

        Raises:
            OutOfTime: it took too long and was cancelled. Any exception of ``work``.
        """
        limit = asyncio.timeout_at(self._deadline)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise OutOfTime("its time was over before there was a connection") from None

    async def find(
        self, work: Callable[[], Coroutine[Any, Any, _T]], *, again: Callable[[], bool] = lambda: True
    ) -> _T:
        """The result of what precedes a request, such as finding its broker; tried again. Raises: as ``lost``."""
        while True:
            try:
                return await self.within(work())
            except (ConnectError, NotSent) as error:
                await self.lost(error, again=again())

    @property
    def outcome_unknown(self) -> bool:
        """An attempt was written and got no response."""
        return self._unknown is not None

    async def lost(self, error: ConnectError | NotSent | NoAnswer, *, again: bool = True) -> None:
        """Report an attempt without response. Returns after the backoff, when the next attempt may start. ``again``: False: raise at once,
        since no broker answers.

        Raises:
            SendTimeout: attempts or time are used up, and one may have arrived. ConnectError: the same, and none was
                written. Raised at once if the client is closed, or the server does not accept the user.
        """
        if isinstance(error, NoAnswer):
            self._unknown = error
            self._left -= 1
        if isinstance(error, OutOfTime) and self._last is not None:
            raise self._final(self._last)
        self._last = error
        if self._is_closed():
            raise self._final(ConnectError(f"{self._what}: the client is closed"))
        if isinstance(error, LoginFailed):  # it does not pass by itself
            raise self._final(error)
        if not again:
            self._gave_up = f" (no broker has answered for {self._attempt_timeout_s:g} s, the client's attempt_timeout)"
        if not again or self._is_used_up() or not await self._wait():
            raise self._final(error)

    async def refused(self, error: RequestFailed, *, permanent: bool = False) -> None:
        """Report an error response. Returns after the backoff if it is transient. ``permanent``: never retry it, whatever its code.

        Raises:
            RequestFailed: ``error`` itself. SendTimeout: an earlier attempt may have arrived.
        """
        self._left -= 1
        self._last = error
        if permanent or error.response_code not in RETRIABLE or self._is_used_up() or not await self._wait():
            raise self._final(error)

    def _is_used_up(self) -> bool:
        return self._left <= 0 and self._now() >= self._patient_until

    async def ask(self, connect: Callable[[], Coroutine[Any, Any, Connection]], request: Request) -> Answer:
        """The answer to a request that changes nothing, so that it is sent again also where the answer was lost.

        ``connect`` finds the broker, ``request(connection, timeout_s)`` sends it.

        Raises: as ``lost`` and ``refused``; any other exception of the two.
        """
        while True:
            try:
                connection = await self.within(connect())
                answer = await request(connection, self.timeout_s())
            except NoAnswer as error:
                await self.lost(NotSent(str(error)))
            except (ConnectError, NotSent) as error:
                await self.lost(error)
            else:
                if answer.code == ResponseCode.SUCCESS:
                    return answer
                await self.refused(refusal(answer.code, answer.remark, self._what))

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
                f"{self._what}: no response; it may have been executed{self._gave_up}",
                hint=self._hint,
            )
        elif isinstance(last, HalfmqError):
            return last
        else:
            error = ConnectError(
                f"{self._what}: {last}{self._gave_up}", hint="nothing was sent; is the server running?"
            )
        error.__cause__ = last
        return error


def _settles(error: Exception) -> bool:
    """Whether the error also tells the outcome of earlier attempts: the transaction has a verdict, or cannot have one."""
    return isinstance(error, RequestFailed) and meaning_of(error.response_code).settles
