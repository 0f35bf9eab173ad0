"""Opening connections: the only place in the client that opens a socket.

Tests and simulations pass another ``Connector`` to run the client on a simulated network.
"""

import asyncio
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Final, NamedTuple, Protocol

from halfmq.errors import UsageError
from halfmq.model.urls import has_credentials, server_host, shown_url

DEFAULT_PORT: Final = 9876


class Address(NamedTuple):
    """Host and TCP port of a server; ``str`` gives ``host:port`` or ``[v6]:port``."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connector(Protocol):
    """Opens connections; passed to a client as ``connector``."""

    async def connect(self, address: Address, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Open a connection and call ``connection_made`` of the protocol that ``protocol()`` returns.

        Raises:
            OSError: refused, unreachable, name unknown.
        """
        ...


class TcpConnector:
    """TCP sockets on the running event loop."""

    async def connect(self, address: Address, protocol: Callable[[], asyncio.Protocol]) -> None:
        """See ``Connector.connect``."""
        await asyncio.get_running_loop().create_connection(protocol, address.host, address.port)


_NO_HOST: Final = frozenset("?#%/\\&= \t")


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Parse ``host``, ``host:port`` or ``[v6]:port``.

    Raises:
        UsageError: not an address.
    """
    host, separator, port = text.strip().rpartition(":")
    if not separator or (text.count(":") > 1 and not text.strip().startswith("[")):
        host, port = text.strip(), str(default_port)
    host = server_host(host)
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        # The text after the colon is not shown: with a missing host it may be a password.
        raise UsageError(f"what follows {shown_url(host)!r} is not the port of an address", hint="host:port")
    if ":" not in host and not _NO_HOST.isdisjoint(host):  # not shown: a password may be behind it
        raise UsageError("an address has a character that no host name has", hint="rocketmq://host:port[;host:port]")
    if ":" in host and not _is_v6(host):
        raise UsageError("an address with several colons is not an IPv6 address", hint="host:port, or [v6]:port")
    return Address(host, int(port))


def _is_v6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def parse_url(url: str) -> tuple[Address, ...]:
    """The name servers of ``rocketmq://host:port[;host:port]``. Several may be separated by ``;`` or ``,``.

    A bare ``host:port`` is accepted too, the format of NAMESRV_ADDR.

    Raises:
        UsageError: another scheme, no address, or credentials, which are not supported. Messages never show a password.
    """
    if not isinstance(url, str):
        raise UsageError(f"{type(url).__name__} is no address", hint='"rocketmq://host:port", or Client.from_env()')
    if has_credentials(url):
        raise UsageError(
            f"the URL {shown_url(url)} has a user or a password, which halfmq does not support",
            hint="rocketmq://host:port",
        )
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        scheme, rest = "rocketmq", scheme
    if scheme != "rocketmq":
        raise UsageError(f"scheme {scheme!r} is not supported", hint="rocketmq://host:port[;host:port]")
    addresses = tuple(parse_address(part) for part in rest.rstrip("/").replace(",", ";").split(";") if part.strip())
    if not addresses:
        raise UsageError(f"{shown_url(url)!r} names no server", hint="rocketmq://host:port[;host:port]")
    return addresses
