"""What the connections under an event loop (``connection``) and under a plain socket (``blocking``) share: how a socket
is opened, which is done nowhere else outside of the broker, and how requests are numbered and responses split and
decoded, without I/O.

A response names its request by ``opaque``; who waits for it, and what is done about one that comes late, is theirs.
Tests and simulations pass another ``Connector`` to run the client on a simulated network.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from halfmq.errors import ConnectError
from halfmq.model.address import Address, TlsFiles
from halfmq.runtime.tls import client_context
from halfmq.runtime.watched_files import Watched
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
    """Sockets on the running event loop. ``tls``: files of TLS, or a context of the application; None: plain TCP."""

    def __init__(self, tls: TlsFiles | ssl.SSLContext | None) -> None:
        """
        Raises:
            EnvironmentFailed: the TLS files cannot be used.
        """
        self._tls = client_context(tls) if isinstance(tls, TlsFiles) else tls

    async def connect(self, address: Address, protocol: Callable[[], asyncio.Protocol]) -> None:
        """See ``Connector.connect``."""
        tls = self._tls.current() if isinstance(self._tls, Watched) else self._tls
        # The timeout of the handshake is the caller's.
        await asyncio.get_running_loop().create_connection(protocol, address.host, address.port, ssl=tls)


def open_socket(address: Address, tls: TlsFiles | None, connect_s: float, answer_s: float) -> socket.socket:
    """A connected blocking socket, plain if ``tls`` is None; timeouts for connecting and for each later call, seconds.

    Raises:
        OSError: refused, unreachable, name unknown, no answer in time, no TLS with this server.
        EnvironmentFailed: the TLS files cannot be used.
    """
    context = None if tls is None else client_context(tls).current()
    stream = socket.create_connection(address, connect_s)
    try:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            stream = context.wrap_socket(stream, server_hostname=address.host)
    except BaseException:
        stream.close()
        raise
    stream.settimeout(answer_s)
    return stream


#: For a connection that the server closed before it said anything.
LOST_HINT: Final = "is it a halfmq or RocketMQ server? One with TLS closes connections without it, and perhaps without a certificate: rocketmqs://"

_NO_TLS_HERE: Final = "does it speak TLS on this port? without: rocketmq://"


def cannot_connect(address: Address, error: OSError) -> ConnectError:
    """The error for a connection that could not be opened, with a hint for its reason. Nothing was sent."""
    text, hint = error.strerror or str(error) or type(error).__name__, "is the server running?"
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"no TLS with {address}: {error.verify_message or text}"
        hint = "give the CA of the server: rocketmqs://host:port?cafile=FILE"
        if error.verify_code in _OTHER_NAME:
            hint = "the server's certificate has to name the host of its address: of the url, and of --advertise-host"
        return ConnectError(text, hint=hint)
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or text).replace("_", " ").lower()
        hint = _NO_TLS_HERE
        if is_certificates_fault(error):
            hint = "the server accepts clients with a certificate of its CA: rocketmqs://host:port?certfile=FILE&keyfile=FILE"
        return ConnectError(f"no TLS with {address}: {reason}", hint=hint)
    if isinstance(
        error, ConnectionResetError | ConnectionAbortedError
    ):  # without TLS nothing is said before it is open
        return ConnectError(f"no TLS with {address}: the server closed the connection", hint=_NO_TLS_HERE)
    return ConnectError(f"no connection to {address}: {text}", hint=hint)


def is_certificates_fault(error: OSError) -> bool:
    """Whether TLS failed by a certificate, the server's or ours. Another attempt fails like this one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    return isinstance(error, ssl.SSLError) and (error.reason or "").endswith(_ALERTS)


#: Ends of the names of alerts by which a server rejects our certificate, or its absence (RFC 8446, 6.2).
_ALERTS: Final = (
    "ALERT_BAD_CERTIFICATE", "ALERT_UNSUPPORTED_CERTIFICATE", "ALERT_CERTIFICATE_REVOKED", "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_UNKNOWN", "ALERT_UNKNOWN_CA", "ALERT_CERTIFICATE_REQUIRED",
)  # fmt: skip
#: OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH, _EMAIL_, _IP_ADDRESS_.
_OTHER_NAME: Final = (62, 63, 64)
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

    @property
    def last_opaque(self) -> int:
        """The number of the newest request; 0: there was none."""
        return self._opaque

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
