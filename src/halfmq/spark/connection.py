"""A blocking connection to a broker or name server, with one request at a time."""

import socket
from collections.abc import Mapping
from typing import Final

from halfmq.spark.retry_deadline import Unavailable
from halfmq.wire.remoting import header
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import Request, encode_request

#: (host, port).
Address = tuple[str, int]

#: Timeouts for connecting and for a response. Precedent: RocketMQ's client, 3 s and 30 s.
CONNECT_S: Final = 3.0
ANSWER_S: Final = 15.0
_READ_BYTES: Final = 1 << 18


class Connection:
    """The caller must close it, also after ``Unavailable`` or ``ProtocolError``: a late response may still arrive."""

    def __init__(self, address: Address, stream: socket.socket) -> None:
        self._address = address
        self._stream = stream
        self._splitter = FrameSplitter()
        self._opaque = 0

    @classmethod
    def open(cls, address: Address) -> "Connection":
        """Connect.

        Raises:
            Unavailable: the connection failed.
        """
        try:
            stream = socket.create_connection(address, CONNECT_S)
        except OSError as error:
            raise Unavailable(f"{address[0]}:{address[1]}: {error}") from error
        stream.settimeout(ANSWER_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(address, stream)

    def ask(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> Request[dict[str, str]]:
        """Send a request and return the response, which may have any code.

        Raises:
            Unavailable: the connection broke, or no response arrived in time.
            ProtocolError: the server sent something other than a response.
        """
        self._opaque += 1
        try:
            self._stream.sendall(encode_request(code, self._opaque, fields, body))
            while True:
                data = self._stream.recv(_READ_BYTES)
                if not data:
                    raise Unavailable(f"{self._address[0]}:{self._address[1]} closed the connection")
                for frame in self._splitter.feed(data):
                    answer = header.decode(frame)
                    if answer.is_response and answer.opaque == self._opaque:
                        return answer
        except OSError as error:
            raise Unavailable(f"{self._address[0]}:{self._address[1]}: {error or type(error).__name__}") from error

    def tell(self, code: int, fields: Mapping[str, object]) -> None:
        """Send a one-way request.

        Raises:
            Unavailable: the connection broke.
        """
        self._opaque += 1
        try:
            self._stream.sendall(encode_request(code, self._opaque, fields, oneway=True))
        except OSError as error:
            raise Unavailable(f"{self._address[0]}:{self._address[1]}: {error or type(error).__name__}") from error

    def close(self) -> None:
        """Close the socket."""
        self._stream.close()
