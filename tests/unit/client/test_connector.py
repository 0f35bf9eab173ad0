"""URLs and addresses, and the one place that opens sockets."""

import asyncio
from typing import Any

import pytest

from halfmq.client.async_client import AsyncClient
from halfmq.client.connector import Address, TcpConnector, parse_address, parse_url
from halfmq.errors import UsageError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rocketmq://127.0.0.1:9876", [("127.0.0.1", 9876)]),
        ("rocketmq://a:1;b:2", [("a", 1), ("b", 2)]),
        ("rocketmq://a:1,b:2/", [("a", 1), ("b", 2)]),
        ("rocketmq://host", [("host", 9876)]),
        ("127.0.0.1:9876;other:1", [("127.0.0.1", 9876), ("other", 1)]),
        ("rocketmq://[::1]:9876", [("::1", 9876)]),
    ],
)
def test_url_names_the_name_servers(url: str, expected: list[tuple[str, int]]) -> None:
    assert list(parse_url(url)) == expected


@pytest.mark.parametrize("url", ["", "rocketmq://", "kafka://a:1", "rocketmq://a:none", "rocketmq://a:70000", "a:0"])
def test_other_urls_are_refused_with_a_hint(url: str) -> None:
    with pytest.raises(UsageError, match="host"):
        parse_url(url)


def test_address_prints_as_it_is_written() -> None:
    assert str(parse_address("a:1")) == "a:1"
    assert str(parse_address("[::1]:2")) == "[::1]:2"


class Leaves(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def test_refused_connection_is_an_os_error() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await TcpConnector().connect(Address("127.0.0.1", port), Leaves)
    server.close()
    await server.wait_closed()
    with pytest.raises(OSError, match="Connect call failed"):
        await TcpConnector().connect(Address("127.0.0.1", port), asyncio.Protocol)


@pytest.mark.parametrize(
    "url",
    [
        "rocketmq://user:hunter2@host:9876",
        "rocketmq://hunter2@host",
        "user:hunter2@host:9876",
        "rocketmq://user:hunter2;@a:1;b:2",
        "amqp://user:hunter2@host/vhost",
        "rocketmq://host:9876?password=hunter2",
        "rocketmq://user:hunter2",
        "rocketmq://host?password=hunter2",
        "rocketmq://user%3Ahunter2%40host:1",
        "user:hunter2:9876",
        "rocketmq://host:1;user:hunter2@other:1",
        b"rocketmq://user:hunter2@host:9876",
        {"password": "hunter2"},
    ],
)
def test_no_error_shows_a_password(url: Any) -> None:
    """Such a URL is refused, so that it is in no later error either: of a connection, of the log."""
    for make in (parse_url, AsyncClient):
        with pytest.raises(UsageError) as caught:
            make(url)
        assert "host:port" in str(caught.value)
        assert "hunter2" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("text", ["[fe80::1%eth0]:1", "fe80::1"])
def test_addresses_of_version_6(text: str) -> None:
    assert parse_address(text).host == text.removeprefix("[").removesuffix("]:1")
