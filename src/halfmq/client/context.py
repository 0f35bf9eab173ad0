"""``ClientContext``: the objects that the producers, consumers and transactions of one client share."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfmq.client.connection import Connection
from halfmq.client.connection_pool import ConnectionPool
from halfmq.client.membership import Membership
from halfmq.client.retry import Attempts
from halfmq.client.routing import Router
from halfmq.client.unique_ids import UniqueIds
from halfmq.errors import ConnectError, UsageError
from halfmq.runtime.clock import Clock

if TYPE_CHECKING:
    from halfmq.client.telemetry import ClientTelemetry


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

    @property
    def is_away(self) -> bool:
        """No known broker answers: see ``ConnectionPool.is_away``.

        May be asked in any thread. ``AsyncClient`` asks the brokers until one answers.
        """
        known = self.router.brokers().values()
        now = self.loop.time()
        return self.is_looking or (len(known) > 0 and all(self.brokers.is_away(address, now) for address in known))

    def refuse_if_away(self) -> None:
        """Raise ConnectError if no broker answers, before anything is begun that would wait for one."""
        if self.is_away:
            what = f"no broker of {self.url} was found yet"
            if not self.is_looking:
                addresses = ", ".join(sorted({str(address) for address in self.router.brokers().values()}))
                what = f"no broker of {self.url} has answered for some time ({addresses})"
            raise ConnectError(
                f"{what}, so that this fails at once",
                hint="nothing was done; try again later: it succeeds as soon as a broker answers",
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
