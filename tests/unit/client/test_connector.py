"""URLs and addresses, and the one place that opens sockets."""

import asyncio

import pytest

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


async def test_refused_connection_is_an_os_error() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await TcpConnector().connect(Address("127.0.0.1", port), asyncio.Protocol)
    server.close()
    await server.wait_closed()
    with pytest.raises(OSError, match="Connect call failed"):
        await TcpConnector().connect(Address("127.0.0.1", port), asyncio.Protocol)
