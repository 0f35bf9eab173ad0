"""One connection per server, opened on demand and kept. Concurrent callers share one connection attempt."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from halfmq.client.connection import Connection, NoAnswer, NotSent, OnPush, OnSilent
from halfmq.client.connector import LOST_HINT, Connector, cannot_connect
from halfmq.client.credentials import Credentials
from halfmq.client.log import log
from halfmq.errors import ConnectError, LoginFailed
from halfmq.model.address import Address

#: Runs on each new connection before it is used: the first heartbeat.
Introduce = Callable[[Connection], Awaitable[None]]
CONNECT_TIMEOUT_S: Final = 5.0
#: How long a server that has let a request time out may take for one that waits for nothing, seconds.
PROBE_TIMEOUT_S: Final = 1.0
#: The shortest time between two attempts to connect to a server that calls ask for, seconds: so many processes that have work while it is
#: away do not flood it, and a call waits for it rather than fail beside a server that has just come back.
TRY_AGAIN_S: Final = 0.1
#: How long such a call waits for an attempt, seconds; one that takes longer, since nothing answers, is not waited for by later calls.
TRY_S: Final = 0.25
#: How long a server may take to answer the end of a connection with TLS, seconds.
CLOSE_S: Final = 1.0


async def _nothing(_connection: Connection) -> None:
    return


class ConnectionPool:
    """Open connections by address.

    ``patience_s``: see ``is_away``. ``on_lost`` is called when an open connection is lost, but not when ``close`` closes it. ``on_silent``:
    see ``OnSilent``. ``credentials``: each connection logs in with them before it is used; None: as nobody.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        on_push: OnPush,
        on_lost: Callable[[Address], None] = lambda _address: None,
        on_silent: OnSilent = lambda _connection: False,
        introduce: Introduce = _nothing,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        patience_s: float = math.inf,
        credentials: Credentials | None = None,
    ) -> None:
        self._connector = connector
        self._credentials = credentials
        self._on_push = on_push
        self._on_lost = on_lost
        self._on_silent = on_silent
        self._introduce = introduce
        self._connect_timeout_s = connect_timeout_s
        self._open: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        #: When the attempt of ``_opening`` began, and when the last one failed; on the loop's clock.
        self._began_at: dict[Address, float] = {}
        self._failed_at: dict[Address, float] = {}
        self._closing: list[Connection] = []
        self._patience_s = patience_s
        #: From when on an address without a connection, which had or was to have one, counts as away; on the loop's clock.
        self._away_from: dict[Address, float] = {}
        #: Set by ``close``, permanently.
        self.closed = False

    def established(self) -> list[Connection]:
        """All open connections."""
        return list(self._open.values())

    def existing(self, address: Address) -> Connection | None:
        """The open connection to ``address``, or None. Fast path before ``get``."""
        return self._open.get(address)

    def is_away(self, address: Address, now: float) -> bool:
        """Whether the server has been silent for ``patience_s`` seconds since a request, and did not answer a probe either; or cannot be
        connected to for as long.

        Ended by anything that is heard from it. May be called from any thread; ``now``: the loop's time.
        """
        connection = self._open.get(address)
        if connection is not None:
            return connection.is_silent
        return now >= self._away_from.get(address, math.inf)

    async def get(self, address: Address) -> Connection:
        """The open connection to ``address``; opens one, logs in and sends the first heartbeat if necessary.

        Raises:
            ConnectError: refused, unreachable, no response within the connect timeout, or closed. Nothing was sent. LoginFailed: the server
                does not accept the user.
        """
        connection = self._open.get(address)
        if connection is not None:
            return connection
        if self.closed:
            raise ConnectError("the client is closed")
        task = self._opening.get(address)
        if task is None:
            loop = asyncio.get_running_loop()
            self._began_at[address] = loop.time()
            task = self._opening[address] = loop.create_task(self._connect(address))
            task.add_done_callback(lambda done: self._opened(address, done))
        # Shielded: other callers may wait for the same attempt.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self.closed and task.cancelled() and not (caller is not None and caller.cancelling()):
                raise ConnectError("the client was closed") from None
            raise

    def _opened(self, address: Address, task: "asyncio.Task[Connection]") -> None:
        self._opening.pop(address, None)
        # Asking for it marks it as retrieved: perhaps no caller waits any more.
        if task.cancelled() or task.exception() is not None:
            self._failed_at[address] = task.get_loop().time()
        else:
            self._failed_at.pop(address, None)

    def can_try(self, address: Address, now: float) -> bool:
        """Whether ``try_again`` would wait for an attempt: there is no connection, and no attempt that takes long. May be called from any
        thread; ``now``: the loop's time."""
        if address in self._open:
            return False
        return address not in self._opening or now < self._began_at.get(address, now) + TRY_S

    async def try_again(self, address: Address) -> None:
        """Connect on behalf of a call, while the background pauses between its own attempts: wait for the one that is under way, or begin
        one, not earlier than ``TRY_AGAIN_S`` after the last has failed. All calls that ask meanwhile share it, and its failure.

        Raises: as ``get``.
        """
        asked_at = asyncio.get_running_loop().time()
        if address not in self._opening:
            await asyncio.sleep(self._failed_at.get(address, -math.inf) + TRY_AGAIN_S - asked_at)
            if address not in self._opening and self._failed_at.get(address, -math.inf) > asked_at:
                raise ConnectError(f"no connection to {address}")
        await self.get(address)

    async def _connect(self, address: Address) -> Connection:
        deadline = asyncio.get_running_loop().time() + self._connect_timeout_s
        credentials = self._credentials
        if credentials is None:
            return await self._attempt(address, deadline)
        secret = credentials.secret()
        try:
            return await self._attempt(address, deadline)
        except LoginFailed:
            if not credentials.is_replaced(secret):
                raise
        return await self._attempt(address, deadline)

    async def _attempt(self, address: Address, deadline: float) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(address, loop, self._on_push, self._lost, self._silent)
        self._away_from.setdefault(address, loop.time() + self._patience_s)
        try:
            async with asyncio.timeout_at(deadline):
                await self._connector.connect(address, lambda: connection)
                if self._credentials is not None:
                    # The limit for all of it comes first, and has the better text.
                    await connection.log_in(self._credentials, 2 * self._connect_timeout_s)
                await self._introduce(connection)
        except TimeoutError:
            connection.abort("it did not answer the first request")
            raise ConnectError(
                f"{address} did not answer within {self._connect_timeout_s:g} s",
                hint="is it a halfmq or RocketMQ server?",
            ) from None
        except OSError as error:
            raise cannot_connect(address, error) from error
        except (NotSent, NoAnswer) as error:
            connection.abort("it was lost while it was opened")
            raise ConnectError(f"the connection to {address} was lost at once: {error}", hint=LOST_HINT) from error
        except BaseException:
            connection.abort("it was given up while it was opened")  # no other reference to it exists
            raise
        if connection.closed:
            raise ConnectError(f"the connection to {address} was closed at once")
        self._open[address] = connection
        del self._away_from[address]
        return connection

    def _silent(self, connection: Connection) -> bool:
        # If it is not open, it is being opened, which has a timeout.
        return self._open.get(connection.address) is connection and self._on_silent(connection)

    def _lost(self, connection: Connection) -> None:
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]
            now = asyncio.get_running_loop().time()
            self._away_from[connection.address] = min(now, connection.silent_from) + self._patience_s
            if not self.closed:
                log.info("connection to %s lost", connection.address)
                self._on_lost(connection.address)

    def close(self) -> None:
        """Close all connections; later ``get`` calls raise ConnectError. ``wait_closed`` waits for the sockets."""
        self.closed = True
        for task in list(self._opening.values()):
            task.cancel()
        for connection in list(self._open.values()):
            connection.close()
            self._closing.append(connection)
        self._open.clear()

    async def wait_closed(self) -> None:
        """Until the sockets are closed, at most ``CLOSE_S``. A loop that ends before leaves them to the garbage collector, which warns."""
        await asyncio.gather(*(connection.gone(CLOSE_S) for connection in self._closing))
        self._closing.clear()
