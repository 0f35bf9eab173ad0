"""``ClientContext``: the objects that the producers, consumers and transactions of one client share."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from halfmq.client.connection import Connection
from halfmq.client.connection_pool import TRY_AGAIN_S, TRY_S, ConnectionPool
from halfmq.client.membership import Membership
from halfmq.client.retry import Attempts
from halfmq.client.routing import Router
from halfmq.client.unique_ids import UniqueIds
from halfmq.errors import ConnectError, HalfmqError, UsageError
from halfmq.model.address import Address
from halfmq.runtime.clock import Clock

if TYPE_CHECKING:
    from halfmq.client.telemetry import ClientTelemetry


_T = TypeVar("_T")

#: The longest pause between attempts to connect that the client makes by itself, seconds.
RECONNECT_MAX_S: Final = 2.0


@dataclass(slots=True)
class ClientContext:
    """Connections, routes, client identity, clock, random numbers and timeouts of one client. Times in seconds."""

    #: As given by the application.
    url: str
    brokers: ConnectionPool
    router: Router
    membership: Membership
    ids: UniqueIds
    clock: Clock
    rng: random.Random
    #: For a whole call, retries included.
    timeout_s: float
    #: For one attempt.
    attempt_timeout_s: float
    #: The loop that all of it belongs to.
    loop: asyncio.AbstractEventLoop
    #: Makes a task that ends with the client.
    spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
    #: None: nobody wants traces and metrics.
    telemetry: "ClientTelemetry | None" = None
    #: Bytes of the replies that are repeated behind their handlers.
    late_reply_bytes: int = 0
    #: A broker is being looked for, and none was found yet.
    is_looking: bool = False
    #: What looks for it, and when its present attempt began, on the loop's clock; None: it pauses.
    finding: "asyncio.Task[None] | None" = None
    looking_since: float | None = None

    @property
    def is_away(self) -> bool:
        """No known broker answers: see ``ConnectionPool.is_away``.

        May be asked in any thread. ``AsyncClient`` asks the brokers until one answers.
        """
        known = self.router.brokers().values()
        now = self.loop.time()
        return self.is_looking or (len(known) > 0 and all(self.brokers.is_away(address, now) for address in known))

    def refuse_if_away(self) -> None:
        """Raise ConnectError if no broker answers, and ``answered`` would not try one: for what cannot wait. Before anything is begun."""
        if self.is_away and not self._tries() and not self._looks():
            raise self._away()

    async def answered(self, timeout_s: float | None = None) -> None:
        """Return if a broker answers, which is at once but after an absence. Then the brokers are tried once, for at most ``TRY_S``
        seconds (or ``timeout_s``): the background may pause for seconds, and the first call after a broker's return must not fail.

        Raises:
            ConnectError: no broker answers, so that nothing may be begun that would wait for one.
        """
        if not self.is_away:
            return
        limit_s = TRY_S if timeout_s is None else min(TRY_S, timeout_s)
        if self.finding is not None and self._looks():  # a service that has just started
            await asyncio.wait({self.finding}, timeout=limit_s)
            if not self.is_away:
                return
        failure: Exception | None = None
        tries = [self.loop.create_task(self.brokers.try_again(address)) for address in self._tries()]
        try:
            async with asyncio.timeout(limit_s):
                for one in asyncio.as_completed(tries):
                    try:
                        await one
                    except HalfmqError as error:
                        failure = error
                    if not self.is_away:
                        return
        except TimeoutError as error:
            failure = error
        finally:
            for task in tries:
                task.cancel()
            # The attempts themselves go on: they are the pool's.
            await asyncio.gather(*tries, return_exceptions=True)
        if self.is_away:
            raise self._away() from failure

    def _looks(self) -> bool:
        """Whether a broker is being looked for, in an attempt that may be waited for."""
        return self.is_looking and self.looking_since is not None and self.loop.time() < self.looking_since + TRY_S

    def _tries(self) -> list[Address]:
        """The brokers that a call may try to connect to now."""
        now = self.loop.time()
        return [one for one in set(self.router.brokers().values()) if self.brokers.can_try(one, now)]

    def _away(self) -> ConnectError:
        if self.is_looking:
            what = f"no broker of {self.url} was found yet"
            then = f"the client looks for one by itself, at least every {RECONNECT_MAX_S:g} s"
        else:
            addresses = ", ".join(sorted({str(address) for address in self.router.brokers().values()}))
            what = f"no broker of {self.url} has answered for some time ({addresses})"
            then = (
                f"a call {TRY_AGAIN_S:g} s later tries again, and the client does so by itself, at least every {RECONNECT_MAX_S:g} s"
                if self._tries()
                else "the client asks by itself about every second"
            )
        return ConnectError(
            f"{what}, so that this fails at once",
            hint=f"nothing was done; {then}, and calls succeed as soon as a broker answers",
        )

    def refuse_other_loop(self, what: str) -> None:
        """Raise UsageError in a coroutine of another event loop than the client's, whose futures and connections it cannot use."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # a thread without a loop, for what waits for nothing
            return
        if running is not self.loop:
            raise UsageError(
                f"{what} belongs to another event loop{', which is closed' if self.loop.is_closed() else ''}",
                hint="open an AsyncClient in each loop and close it there, or use Client, in any thread",
            )

    def attempts(self, what: str, timeout_s: float | None = None, **named: Any) -> Attempts:
        """The retry budget of a new call. ``what``: the call, for error messages. ``timeout_s``: default ``self.timeout_s``. ``named``:
        as for ``Attempts``."""
        total_s = self.timeout_s if timeout_s is None else timeout_s
        return Attempts(what, total_s, self.attempt_timeout_s, self.rng, lambda: self.brokers.closed, **named)

    async def broker(self, name: str) -> Connection:
        """A connection to the broker ``name``, opened if necessary.

        Raises:
            ConnectError: no route names the broker, or it does not answer.
        """
        address = self.router.address_of(name)
        if address is None:
            raise ConnectError(f"no route names broker {name}")
        return await self.brokers.get(address)

    def established(self, name: str) -> Connection | None:
        """The open connection to the broker ``name``, or None. Never opens one."""
        address = self.router.address_of(name)
        return None if address is None else self.brokers.existing(address)


class OnceAnswered(AbstractAsyncContextManager[_T], Generic[_T]):
    """``block``, which is entered once a broker answers: see ``ClientContext.answered``."""

    def __init__(self, context: ClientContext, timeout_s: float | None, block: AbstractAsyncContextManager[_T]) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._block = block

    async def __aenter__(self) -> _T:
        await self._context.answered(self._timeout_s)
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, traceback)
