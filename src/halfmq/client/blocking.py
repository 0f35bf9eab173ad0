"""Blocking connections to brokers and name servers, and what name servers say; for commands and Spark, which do nothing else meanwhile.

No retries: a caller that may repeat a request does so when it gets ``Unavailable``.
"""

import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Self

from halfmq import limits
from halfmq.client.connector import LOST_HINT, Exchange, cannot_connect, decode, is_certificates_fault, open_socket
from halfmq.client.credentials import Credentials, credentials_of
from halfmq.client.login import PROBE, PROBE_AFTER_S, log_in
from halfmq.client.refusals import is_temporary, refused
from halfmq.errors import ConnectError, LoginFailed, ProtocolError
from halfmq.model.address import Address, Security, ServerUrl
from halfmq.wire.remoting import header
from halfmq.wire.remoting.codes import HMQ_LOGIN, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, encode_request
from halfmq.wire.remoting.route import READ, BrokerData, Route, decode_cluster_info, decode_route, decode_topic_list

Answer = Request[dict[str, str]]

#: Timeouts for connecting and for a response. Precedent: RocketMQ's client, 3 s and 30 s.
CONNECT_S: Final = 3.0
ANSWER_S: Final = 15.0
_READ_BYTES: Final = 1 << 18
#: A response may be larger than a request: a message of maximum size, with others.
_FRAME_BYTES_MAX: Final = 2 * limits.FRAME_BYTES_MAX
_TWO_WORDS: Final = struct.Struct(">II")


class Unavailable(Exception):
    """Temporary failure, with its reason: no connection, no response, or a refusal that may pass. Whoever repeats requests handles it;
    users never see it.
    """


class NotTrusted(Unavailable):
    """TLS failed by a certificate, the server's or ours, which does not pass by itself: nobody should wait. Another server may do."""


class _Line:
    """A socket that sends numbered requests. The caller must close it, also after an error: a late response may still arrive."""

    def __init__(
        self, address: Address, stream: socket.socket, exchange: Exchange, credentials: Credentials | None
    ) -> None:
        """``exchange``: with the requests that were sent so far, all of them answered. ``credentials``: sign requests with them."""
        self.address = address
        self._stream = stream
        self._credentials = credentials
        self._exchange = exchange
        #: Whether anything was received.
        self._is_heard = exchange.last_opaque > 0

    @classmethod
    def open(cls, address: Address, security: Security, timeout_s: float | None = None) -> Self:
        """Connect, and log in as the user of ``security``, if there is one. ``timeout_s``: for connecting and for each response; else the
        usual ones.

        Raises:
            Unavailable: the connection failed; NotTrusted: by a certificate.
            LoginFailed: the server does not accept the user, or does not know the secret itself.
            ProtocolError: the server sent something other than a response.
            EnvironmentFailed: a file cannot be used.
            UsageError: there is a user without a secret.
        """
        credentials = credentials_of(security)
        if credentials is None:
            return cls._attempt(address, security, None, timeout_s)
        secret = credentials.secret()
        try:
            return cls._attempt(address, security, credentials, timeout_s)
        except LoginFailed:
            if not credentials.is_replaced(secret):
                raise
        return cls._attempt(address, security, credentials, timeout_s)

    @classmethod
    def _attempt(
        cls, address: Address, security: Security, credentials: Credentials | None, timeout_s: float | None
    ) -> Self:
        connect_s, answer_s = (CONNECT_S, ANSWER_S) if timeout_s is None else (timeout_s, timeout_s)
        try:
            stream = open_socket(address, security.tls, connect_s, answer_s)
        except OSError as error:
            raise _broken(address, error) from error
        exchange = Exchange()
        try:
            if credentials is not None and not Connection(address, stream, exchange, None).log_in(credentials):
                credentials = None
        except BaseException:
            stream.close()
            raise
        return cls(address, stream, exchange, credentials)

    @property
    def local_host(self) -> tuple[str, int]:
        """Our own address on this connection: (IP, port)."""
        host, port = self._stream.getsockname()[:2]
        return str(host), int(port)

    def send(
        self, code: int, fields: Mapping[str, object], body: bytes | memoryview = b"", *, oneway: bool = False
    ) -> int:
        """Send a request; its number. ``oneway``: there is no response.

        Raises:
            Unavailable: the connection broke.
        """
        opaque = self._exchange.next_opaque()
        try:
            frame = encode_request(code, opaque, fields, body, oneway=oneway)
            self._stream.sendall(frame if self._credentials is None else self._credentials.sign(frame))
        except OSError as error:
            raise _broken(self.address, error) from error
        return opaque

    def close(self) -> None:
        """Close the socket."""
        self._stream.close()

    def _received(self, data: int | bytes) -> None:
        if not data:
            raise Unavailable(f"{self.address} closed the connection" + ("" if self._is_heard else f" ({LOST_HINT})"))
        self._is_heard = True


class Connection(_Line):
    """Several requests may be sent before the first response is received. Each needs ``receive`` or ``forget``."""

    def __init__(
        self, address: Address, stream: socket.socket, exchange: Exchange, credentials: Credentials | None
    ) -> None:
        super().__init__(address, stream, exchange, credentials)
        #: Responses that came while another one was waited for.
        self._came: dict[int, Answer] = {}
        #: Requests whose response nobody wants.
        self._forgotten: set[int] = set()

    def receive(self, opaque: int) -> Answer:
        """The response to the request, which may have any code.

        Raises:
            Unavailable: the connection broke, or no response arrived in time.
            ProtocolError: the server sent something other than a response.
        """
        try:
            while opaque not in self._came:
                self._more()
        except OSError as error:
            raise _broken(self.address, error) from error
        return self._came.pop(opaque)

    def _more(self) -> None:
        """Wait for bytes, and take the responses in them."""
        data = self._stream.recv(_READ_BYTES)
        self._received(data)
        for frame in self._exchange.frames(data):
            answer = decode(frame)
            if not self._exchange.is_asked(answer):
                raise ProtocolError("unexpected response", hint="check that the address is a broker")
            if answer.opaque in self._forgotten:
                self._forgotten.remove(answer.opaque)
            else:
                self._came[answer.opaque] = answer

    def forget(self, opaque: int) -> None:
        """Ignore the response to the request."""
        if self._came.pop(opaque, None) is None:
            self._forgotten.add(opaque)

    def ask(self, code: int, fields: Mapping[str, object], body: bytes | memoryview = b"") -> Answer:
        """``send`` and ``receive``."""
        return self.receive(self.send(code, fields, body))

    def log_in(self, credentials: Credentials) -> bool:
        """Say who this is, before any other request. Whether requests are to be signed from now on.

        Raises:
            Unavailable: the connection broke, no response arrived in time, or the server takes no logins at the moment.
            LoginFailed, ProtocolError: as ``login.log_in``.
        """
        steps = log_in(self.address, credentials.user, credentials.secret())
        try:
            answer = self._first_answer(next(steps))
            while True:
                try:
                    fields = steps.send(answer)
                except StopIteration as over:
                    return bool(over.value)
                answer = self.ask(HMQ_LOGIN, fields)
        except LoginFailed:
            raise
        except ConnectError as error:
            raise Unavailable(str(error)) from error

    def _first_answer(self, fields: Mapping[str, str]) -> Answer | None:
        """The response to the first HMQ_LOGIN; None: the server does not know it, and answered ``PROBE`` instead."""
        login = self.send(HMQ_LOGIN, fields)
        timeout_s = self._stream.gettimeout()
        try:
            self._stream.settimeout(PROBE_AFTER_S)
            try:
                while login not in self._came:
                    self._more()
            except TimeoutError:
                pass
            finally:
                self._stream.settimeout(timeout_s)
            if login not in self._came:
                probe = self.send(PROBE, {})
                while not self._came:
                    self._more()
                if login not in self._came:
                    return None
                self.receive(probe)  # whoever uses the connection next expects no response
        except OSError as error:
            raise _broken(self.address, error) from error
        return self._came.pop(login)


class RawConnection(_Line):
    """For responses of megabytes, which come in the order of their requests: their header is read before their body, which is received
    where it stays.

    ``Connection`` collects a response in pieces and copies them. Here the body is received into one buffer, which the next response uses
    again: fresh memory costs more than the copy (2 us for a page of 4 KiB where memory is virtual).
    """

    def __init__(
        self, address: Address, stream: socket.socket, exchange: Exchange, credentials: Credentials | None
    ) -> None:
        super().__init__(address, stream, exchange, credentials)
        #: The number of the response whose header was read last.
        self._heads = exchange.last_opaque
        self._buffer = bytearray()
        #: Length of the body of the response whose header was read.
        self._body_bytes = 0

    def head(self) -> Answer:
        """The next response, without its body: call ``body`` before the next one.

        Raises:
            Unavailable: the connection broke, or no response arrived in time.
            ProtocolError: the server sent something other than the response.
        """
        words = bytearray(8)
        self._exactly(memoryview(words))
        total, word = _TWO_WORDS.unpack(words)
        head_bytes = word & 0xFFFFFF
        if not head_bytes + 4 <= total <= _FRAME_BYTES_MAX:
            raise ProtocolError(f"a response of {total} bytes with a header of {head_bytes}")
        head = bytearray(head_bytes)
        self._exactly(memoryview(head))
        answer = header.decode(bytes(words[4:] + head))
        self._heads += 1
        if not answer.is_response or answer.opaque != self._heads:
            raise ProtocolError(f"response {answer.opaque} arrived instead of {self._heads}")
        self._body_bytes = total - 4 - head_bytes
        return answer

    def body(self) -> memoryview:
        """The body of the response whose header was read. It is overwritten by the next call. Raises as ``head``."""
        if len(self._buffer) < self._body_bytes:
            self._buffer = bytearray(self._body_bytes)
        body = memoryview(self._buffer)[: self._body_bytes]
        self._exactly(body)
        return body

    def _exactly(self, left: memoryview) -> None:
        """Fill ``left``."""
        try:
            while len(left):
                received = self._stream.recv_into(left)
                self._received(received)
                left = left[received:]
        except OSError as error:
            raise _broken(self.address, error) from error


class Sent(NamedTuple):
    """A request that was sent, for ``Connections.receive``."""

    address: Address
    connection: Connection
    opaque: int

    def forget(self) -> None:
        """Ignore the response."""
        self.connection.forget(self.opaque)


class Connections:
    """One connection per address, opened by its first request, and closed if one fails."""

    def __init__(
        self,
        security: Security,
        on_open: Callable[[Address], object] = lambda address: None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """``on_open``: called with each address that is connected to. ``timeout_s``: as for ``Connection.open``."""
        self._security = security
        self._timeout_s = timeout_s
        self._open: dict[Address, Connection] = {}
        self._on_open = on_open

    def __contains__(self, address: object) -> bool:
        return address in self._open

    def connected(self, address: Address) -> Connection:
        """The connection to the address. Raises Unavailable."""
        connection = self._open.get(address)
        if connection is None:
            connection = self._open[address] = Connection.open(address, self._security, self._timeout_s)
            self._on_open(address)
        return connection

    def send(
        self,
        address: Address,
        code: int,
        fields: Mapping[str, object],
        body: bytes | memoryview = b"",
        *,
        oneway: bool = False,
    ) -> Sent:
        """Send a request. Call ``receive`` or ``Sent.forget`` if there is a response. Raises as ``Connection.send``."""
        connection = self.connected(address)
        try:
            return Sent(address, connection, connection.send(code, fields, body, oneway=oneway))
        except BaseException:  # also an interrupt: a part of the request may have been written
            self.drop(address)
            raise

    def receive(self, sent: Sent) -> Answer:
        """The response. Raises as ``Connection.receive``; Unavailable also if the connection failed meanwhile."""
        if self._open.get(sent.address) is not sent.connection:
            raise Unavailable(f"{sent.address}: the connection failed")
        try:
            return sent.connection.receive(sent.opaque)
        except BaseException:
            self.drop(sent.address)
            raise

    def ask(self, address: Address, code: int, fields: Mapping[str, object], body: bytes = b"") -> Answer:
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


class NameServers:
    """The name servers of one installation, asked in turn. ``connections`` are the caller's, who closes them.

    Methods raise Unavailable if none responds, or one refuses for the moment, NotTrusted if TLS with each fails by a certificate,
    RequestFailed if one refuses for good.
    """

    def __init__(self, url: ServerUrl, connections: Connections) -> None:
        self._url = url
        self._servers = url.servers
        self._connections = connections
        #: Index of the server that responded last.
        self._server = 0

    def __str__(self) -> str:
        return self._url.shown

    def registered(self) -> dict[str, BrokerData]:
        """The brokers, by name; of the first server that knows any."""
        for _ in self._servers:
            answer = self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
            check_success(answer, "the list of brokers")
            brokers = decode_cluster_info(answer.body)
            if brokers:
                return {data.broker_name: data for data in brokers}
            self._turn()
        return {}

    def topics(self) -> tuple[str, ...]:
        """Names of all topics."""
        answer = self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        check_success(answer, "the list of topics")
        return decode_topic_list(answer.body)

    def route(self, topic: str) -> Route | None:
        """Brokers of the topic; None if it does not exist."""
        answer = self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        check_success(answer, f"the route of topic {topic}")
        return decode_route(answer.body)

    def routed(self, topics: Iterable[str]) -> set[str]:
        """The brokers from which one of ``topics`` can be read."""
        routes = [self.route(topic) for topic in topics]
        return {data.broker_name for route in routes if route for data in route.queues if data.permission & READ}

    def _ask(self, code: int, fields: dict[str, object]) -> Answer:
        """Send the request to the server that responded last, else to the others."""
        reasons: list[Unavailable] = []
        for _ in self._servers:
            try:
                return self._connections.ask(self._servers[self._server], code, fields)
            except Unavailable as reason:
                reasons.append(reason)
                self._turn()
        is_trusted = any(not isinstance(reason, NotTrusted) for reason in reasons)
        raise (Unavailable if is_trusted else NotTrusted)("; ".join(map(str, reasons)))

    def _turn(self) -> None:
        self._server = (self._server + 1) % len(self._servers)


def check_success(answer: Answer, what: str) -> None:
    """Check that the response to a request that may be repeated has code 0.

    Raises:
        Unavailable: temporary rejection.
        RequestFailed: permanent rejection, also because of damage.
    """
    if answer.code == ResponseCode.SUCCESS:
        return
    text = f"{what} was rejected with code {answer.code}: {answer.remark or 'no reason given'}"
    if is_temporary(answer.code, answer.ext):
        raise Unavailable(text)
    raise refused(answer.code, text)


def _broken(address: Address, error: OSError) -> Unavailable:
    if isinstance(error, ssl.SSLError):  # also at a response: so a server rejects the certificate of a client
        return (NotTrusted if is_certificates_fault(error) else Unavailable)(str(cannot_connect(address, error)))
    return Unavailable(f"{address}: {error or type(error).__name__}")
