"""The one place that opens sockets."""

import asyncio

import pytest

from halfmq.client.connector import TcpConnector
from halfmq.model.address import Address


class Leaves(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def test_refused_connection_is_an_os_error() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await TcpConnector(None).connect(Address("127.0.0.1", port), Leaves)
    server.close()
    await server.wait_closed()
    with pytest.raises(OSError, match="Connect call failed"):
        await TcpConnector(None).connect(Address("127.0.0.1", port), asyncio.Protocol)
