"""What the connections under an event loop (``connection``) and under a plain socket (``blocking``) share: how a socket
is opened, which is done nowhere else outside of the broker, and how requests are numbered and responses split and
decoded, without I/O.

A response names its request by ``opaque``; who waits for it, and what is done about one that comes late, is theirs.
Tests and simulations pass another ``Connector`` to run the client on a simulated network.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from halfmq.model.address import Address
from halfmq.wire.remoting import header
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import Request


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


def open_socket(address: Address, connect_s: float, answer_s: float) -> socket.socket:
    """A connected blocking socket; timeouts for connecting and for each later call, seconds.

    Raises:
        OSError: refused, unreachable, name unknown, no answer in time.
    """
    stream = socket.create_connection(address, connect_s)
    stream.settimeout(answer_s)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


_OPAQUE_MASK: Final = 0x7FFFFFFF


class Exchange:
    """The numbers and the frames of one connection. After a ``BrokenFrame`` the caller must close it."""

    __slots__ = ("_opaque", "frames")

    def __init__(self) -> None:
        #: Splits received bytes into frames, for ``decode``.
        self.frames = FrameSplitter().feed
        self._opaque = 0

    def next_opaque(self) -> int:
        """The number of a new request."""
        self._opaque = opaque = (self._opaque + 1) & _OPAQUE_MASK
        return opaque

    def is_asked(self, answer: Request[Any]) -> bool:
        """Whether it is a response, to a request of this connection."""
        return answer.is_response and 0 < answer.opaque <= self._opaque


#: Fast path. Strict: whatever it rejects goes to ``header.decode``, so both read the same.
_read_answer: Final = msgspec.json.Decoder(Request[dict[str, str]]).decode


def decode(frame: bytes) -> Request[Any]:
    """``header.decode`` with a fast path for the common case, a response with a JSON header."""
    if frame[:1] == b"\0":
        end = 4 + int.from_bytes(frame[1:4], "big")
        try:
            answer = _read_answer(frame[4:end])
        except (msgspec.MsgspecError, ValueError):
            return header.decode(frame)
        if answer.is_response and end <= len(frame):
            answer.body = frame[end:]
            return answer
    return header.decode(frame)
