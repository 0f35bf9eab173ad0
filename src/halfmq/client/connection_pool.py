"""One connection for each server, made when it is needed and kept; whoever asks meanwhile waits for the same attempt."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from halfmq.client.connection import Connection, NoAnswer, NotSent, OnPush
from halfmq.client.connector import Address, Connector
from halfmq.client.log import log
from halfmq.errors import ConnectError

#: What each new connection starts with (the heartbeat), before anybody else may use it.
Introduce = Callable[[Connection], Awaitable[None]]
CONNECT_TIMEOUT_S: Final = 5.0


async def _nothing(_connection: Connection) -> None:
    return


class ConnectionPool:
    """The open connections by address.

    ``on_lost`` is called when one that was in use ends, unless ``close`` ended it.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        on_push: OnPush,
        on_lost: Callable[[Address], None] = lambda _address: None,
        introduce: Introduce = _nothing,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._connector = connector
        self._on_push = on_push
        self._on_lost = on_lost
        self._introduce = introduce
        self._connect_timeout_s = connect_timeout_s
        self._open: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        #: For good.
        self.closed = False

    def established(self) -> list[Connection]:
        return list(self._open.values())

    def existing(self, address: Address) -> Connection | None:
        """The connection if there is one already; the hot path asks here first."""
        return self._open.get(address)

    async def get(self, address: Address) -> Connection:
        """A connection that has been introduced.

        Raises:
            ConnectError: refused, unreachable, or no answer within the connect timeout. Nothing was sent.
        """
        connection = self._open.get(address)
        if connection is not None:
            return connection
        if self.closed:
            raise ConnectError("the client is closed")
        task = self._opening.get(address)
        if task is None:
            task = self._opening[address] = asyncio.get_running_loop().create_task(self._connect(address))
            task.add_done_callback(lambda done: self._opened(address, done))
        # Shielded: one caller's cancellation is not the failure of the others that wait for the same connection.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self.closed and task.cancelled() and not (caller is not None and caller.cancelling()):
                raise ConnectError("the client was closed") from None
            raise

    def _opened(self, address: Address, task: "asyncio.Task[Connection]") -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # seen: those who wait have it, and nobody may be waiting any more

    async def _connect(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(address, loop, self._on_push, self._lost)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._connector.connect(address, lambda: connection)
                await self._introduce(connection)
        except TimeoutError:
            connection.abort("it did not answer the first request")
            raise ConnectError(
                f"{address} did not answer within {self._connect_timeout_s:g} s",
                hint="is it a halfmq or RocketMQ server?",
            ) from None
        except OSError as error:
            raise ConnectError(
                f"no connection to {address}: {error.strerror or error}", hint="is the server running?"
            ) from error
        except (NotSent, NoAnswer) as error:
            connection.abort("it was lost while it was opened")
            raise ConnectError(f"the connection to {address} was lost at once: {error}") from error
        except BaseException:
            connection.abort("it was given up while it was opened")  # nobody else knows it
            raise
        if connection.closed:
            raise ConnectError(f"the connection to {address} was closed at once")
        self._open[address] = connection
        return connection

    def _lost(self, connection: Connection) -> None:
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]
            if not self.closed:
                log.info("connection to %s lost", connection.address)
                self._on_lost(connection.address)

    def close(self) -> None:
        """Close all; later ``get`` calls fail."""
        self.closed = True
        for task in list(self._opening.values()):
            task.cancel()
        for connection in list(self._open.values()):
            connection.close()
        self._open.clear()
