"""A blocking connection to a broker or name server: one request at a time (``ask``), or several on the way (``send``, ``receive``)."""

import socket
from collections import deque
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
        #: Responses that arrived together with one that was returned.
        self._arrived: deque[Request[dict[str, str]]] = deque()

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

    @property
    def local_host(self) -> tuple[str, int]:
        """Our own address on this connection: (IP, port)."""
        host, port = self._stream.getsockname()[:2]
        return str(host), int(port)

    def ask(self, code: int, fields: Mapping[str, object], body: bytes | memoryview = b"") -> Request[dict[str, str]]:
        """Send a request and return its response, which may have any code. Responses to others are kept for ``receive``.

        Raises:
            Unavailable: the connection broke, or no response arrived in time.
            ProtocolError: the server sent something other than a response.
        """
        number = self.send(code, fields, body)
        others: list[Request[dict[str, str]]] = []
        while True:
            answer = self.receive()
            if answer.opaque == number:
                self._arrived.extendleft(reversed(others))
                return answer
            others.append(answer)

    def send(self, code: int, fields: Mapping[str, object], body: bytes | memoryview = b"") -> int:
        """Send a request without waiting, and return its number, which the response from ``receive`` has as ``opaque``.

        The caller bounds how many it sends before it receives.

        Raises:
            Unavailable: the connection broke.
        """
        self._opaque += 1
        try:
            self._stream.sendall(encode_request(code, self._opaque, fields, body))
        except OSError as error:
            raise self._unavailable(error) from error
        return self._opaque

    def receive(self) -> Request[dict[str, str]]:
        """The next response to any request.

        Raises:
            Unavailable: the connection broke, or no response arrived in time.
            ProtocolError: the server sent something other than a response.
        """
        while True:
            while self._arrived:
                answer = self._arrived.popleft()
                if answer.is_response:
                    return answer
            try:
                data = self._stream.recv(_READ_BYTES)
            except OSError as error:
                raise self._unavailable(error) from error
            if not data:
                raise Unavailable(f"{self._address[0]}:{self._address[1]} closed the connection")
            self._arrived.extend([header.decode(frame) for frame in self._splitter.feed(data)])

    def _unavailable(self, error: OSError) -> Unavailable:
        return Unavailable(f"{self._address[0]}:{self._address[1]}: {error or type(error).__name__}")

    def tell(self, code: int, fields: Mapping[str, object]) -> None:
        """Send a one-way request.

        Raises:
            Unavailable: the connection broke.
        """
        self._opaque += 1
        try:
            self._stream.sendall(encode_request(code, self._opaque, fields, oneway=True))
        except OSError as error:
            raise self._unavailable(error) from error

    def close(self) -> None:
        """Close the socket."""
        self._stream.close()
