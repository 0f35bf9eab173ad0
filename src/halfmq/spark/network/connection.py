"""Blocking connections to brokers and name servers. Several requests may be sent before the first response is received."""

import socket
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from halfmq.errors import NotAuthorized, ProtocolError, RequestFailed
from halfmq.spark.retry_deadline import Unavailable
from halfmq.wire.remoting import header
from halfmq.wire.remoting.codes import EXT_DAMAGED, ResponseCode
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import Request, encode_request

#: (host, port).
Address = tuple[str, int]

#: Timeouts for connecting and for a response. Precedent: RocketMQ's client, 3 s and 30 s.
CONNECT_S: Final = 3.0
ANSWER_S: Final = 15.0
_READ_BYTES: Final = 1 << 18


#: Temporary rejections, unless files are damaged: the broker is busy, starting or stopping.
TEMPORARY: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)


class Connection:
    """The caller must close it, also after ``Unavailable`` or ``ProtocolError``: a late response may still arrive."""

    def __init__(self, address: Address, stream: socket.socket) -> None:
        self._address = address
        self._stream = stream
        self._splitter = FrameSplitter()
        self._opaque = 0
        #: Requests without a received response; the response, if it came while another one was waited for.
        self._waiting: dict[int, Request[dict[str, str]] | None] = {}

    @classmethod
    def open(cls, address: Address) -> "Connection":
        """Connect.

        Raises:
            Unavailable: the connection failed.
        """
        return cls(address, open_socket(address))

    @property
    def local_host(self) -> tuple[str, int]:
        """Our own address on this connection: (IP, port)."""
        host, port = self._stream.getsockname()[:2]
        return str(host), int(port)

    def send(self, code: int, fields: Mapping[str, object], body: bytes | memoryview = b"") -> int:
        """Send a request. Call ``receive`` or ``forget`` with the result.

        Raises:
            Unavailable: the connection broke.
        """
        self._opaque += 1
        try:
            self._stream.sendall(encode_request(code, self._opaque, fields, body))
        except OSError as error:
            raise broken(self._address, error) from error
        self._waiting[self._opaque] = None
        return self._opaque

    def receive(self, opaque: int) -> Request[dict[str, str]]:
        """The response to the request, which may have any code.

        Raises:
            Unavailable: the connection broke, or no response arrived in time.
            ProtocolError: the server sent something other than a response.
        """
        try:
            while (answer := self._waiting[opaque]) is None:
                data = self._stream.recv(_READ_BYTES)
                if not data:
                    raise Unavailable(f"{self._address[0]}:{self._address[1]} closed the connection")
                for frame in self._splitter.feed(data):
                    found = header.decode(frame)
                    if found.is_response and found.opaque in self._waiting:
                        self._waiting[found.opaque] = found
        except OSError as error:
            raise broken(self._address, error) from error
        del self._waiting[opaque]
        return answer

    def forget(self, opaque: int) -> None:
        """Ignore the response to the request."""
        self._waiting.pop(opaque, None)

    def ask(self, code: int, fields: Mapping[str, object], body: bytes | memoryview = b"") -> Request[dict[str, str]]:
        """``send`` and ``receive``."""
        return self.receive(self.send(code, fields, body))

    def tell(self, code: int, fields: Mapping[str, object]) -> None:
        """Send a one-way request.

        Raises:
            Unavailable: the connection broke.
        """
        self._opaque += 1
        try:
            self._stream.sendall(encode_request(code, self._opaque, fields, oneway=True))
        except OSError as error:
            raise broken(self._address, error) from error

    def close(self) -> None:
        """Close the socket."""
        self._stream.close()


class Sent(NamedTuple):
    """A request that was sent, for ``Connections.receive``."""

    address: Address
    connection: Connection
    opaque: int


class Connections:
    """One connection per address, opened by its first request, and closed if one fails."""

    def __init__(self, on_open: Callable[[Address], object] = lambda address: None) -> None:
        """``on_open``: called with each address that is connected to."""
        self._open: dict[Address, Connection] = {}
        self._on_open = on_open

    def __contains__(self, address: object) -> bool:
        return address in self._open

    def send(self, address: Address, code: int, fields: Mapping[str, object], body: bytes | memoryview = b"") -> Sent:
        """Send a request. Call ``receive`` or ``forget`` with the result. Raises as ``Connection.send``."""
        connection = self._connected(address)
        try:
            return Sent(address, connection, connection.send(code, fields, body))
        except Unavailable:
            self.drop(address)
            raise

    def tell(self, address: Address, code: int, fields: Mapping[str, object]) -> None:
        """Send a one-way request. Raises Unavailable."""
        connection = self._connected(address)
        try:
            connection.tell(code, fields)
        except Unavailable:
            self.drop(address)
            raise

    def _connected(self, address: Address) -> Connection:
        connection = self._open.get(address)
        if connection is None:
            connection = self._open[address] = Connection.open(address)
            self._on_open(address)
        return connection

    def receive(self, sent: Sent) -> Request[dict[str, str]]:
        """The response. Raises as ``Connection.receive``; Unavailable also if the connection failed meanwhile."""
        if self._open.get(sent.address) is not sent.connection:
            raise Unavailable(f"{sent.address[0]}:{sent.address[1]}: the connection failed")
        try:
            return sent.connection.receive(sent.opaque)
        except (Unavailable, ProtocolError):
            self.drop(sent.address)
            raise

    def ask(
        self, address: Address, code: int, fields: Mapping[str, object], body: bytes = b""
    ) -> Request[dict[str, str]]:
        """``send`` and ``receive``."""
        return self.receive(self.send(address, code, fields, body))

    def drop(self, address: Address) -> None:
        """Close the connection to the address, if there is one."""
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for address in list(self._open):
            self.drop(address)


def open_socket(address: Address) -> socket.socket:
    """A connected socket with the timeout of a response. Raises Unavailable."""
    try:
        stream = socket.create_connection(address, CONNECT_S)
    except OSError as error:
        raise broken(address, error) from error
    stream.settimeout(ANSWER_S)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def broken(address: Address, error: OSError) -> Unavailable:
    """The exception for an error of the socket."""
    return Unavailable(f"{address[0]}:{address[1]}: {error or type(error).__name__}")


def check_success(answer: Request[dict[str, str]], what: str) -> None:
    """Check that the response has code 0.

    Raises:
        Unavailable: temporary rejection.
        NotAuthorized, RequestFailed: permanent rejection, also because of damage.
    """
    if answer.code == ResponseCode.SUCCESS:
        return
    text = f"{what} was rejected with code {answer.code}: {answer.remark or 'no reason given'}"
    if answer.code in TEMPORARY and EXT_DAMAGED not in answer.ext:
        raise Unavailable(text)
    if answer.code == ResponseCode.NO_PERMISSION:
        raise NotAuthorized(text, response_code=answer.code)
    raise RequestFailed(text, response_code=answer.code)
