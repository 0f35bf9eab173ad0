"""One port: bound before the store is opened, listening once it is recovered, accepting at the end.

    bind -> the store opens and recovers -> listen -> the first batch is written -> accept

Each step reports its failure. ``create_server`` of an event loop does not: it does not notice that another process began to listen on the
port between bind and listen, and the broker would report that it listens and receive nothing.

Connections that their front door rejects are closed at once: a connection takes a descriptor, and the store's must be available when it
needs them. Every accepted socket is counted before the next one is accepted.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, Protocol

from halfmq.broker.peers.bounded_writes import BoundedWrites
from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.peers import Admit, Rejected
from halfmq.errors import EnvironmentFailed, PortTaken
from halfmq.model.address import Address, ip_of
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.runtime.tls import TlsContext

log = logging.getLogger("halfmq.listener")

BACKLOG: Final = 1_024
#: Maximum number of connections accepted in one turn of the loop; others wait in the backlog, so that the turn is short.
_ACCEPTS_MAX: Final = 64
#: Delay after the machine failed to accept (no descriptors), s.
_REST_S: Final = 1.0
#: Minimum interval between two log lines with the number of rejected connections, or about handshakes of one address, s; and a maximum of
#: the latter over all addresses. As ``peers.peers``.
_LOG_INTERVAL_S: Final = 10.0
_LOGGED_TOGETHER_MAX: Final = 50
#: Every address of this machine; and of each family.
_EVERYWHERE: Final = ip_address("::")
_WILDCARDS: Final = ("::", "0.0.0.0")  # nosec B104 # noqa: S104 - what the operator asked for
#: Ports tried until one is free on all addresses.
_PORTS_TRIED: Final = 8
#: Time for a TLS handshake, and for the first byte that tells whether there is one, s. A connection has its place meanwhile.
HANDSHAKE_S: Final = 10.0
#: Time for what a closed connection has yet to send, and for the other end to say that it has ended, s. It has its place meanwhile.
SHUTDOWN_S: Final = 5.0
#: The first byte of a TLS handshake (RFC 8446, 5.1). Nothing else that a front door reads begins with it.
_HANDSHAKE: Final = b"\x16"
#: Errors that exclude one of several addresses of a name: this machine does not have that address family.
_NO_SUCH_FAMILY: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class PortTls(NamedTuple):
    """TLS of a port."""

    context: TlsContext
    #: Whether connections without TLS are closed; else both are served, told apart by their first byte. Precedent: RocketMQ
    #: ``tls.server.mode``, enforcing and permissive.
    is_required: bool


class PortPlan(NamedTuple):
    """A port that the broker should listen on. Whoever binds it gets the plan, so a property of a port is a field here."""

    #: As in "the broker cannot listen on 127.0.0.1:10911".
    name: str
    #: Of its front door.
    admit: Admit
    #: 0: any free one.
    port: int
    #: Consequence for clients if it cannot listen, for the log; empty: the broker does not start without it.
    without: str = ""
    #: Whether it serves during a drain too, as health does.
    closed_last: bool = False
    #: None: without TLS.
    tls: PortTls | None = None


class BoundPort(Protocol):
    """A bound port."""

    @property
    def port(self) -> int:
        """The port number; for port 0 the one that was chosen."""
        ...

    @property
    def addresses(self) -> Sequence[str]:
        """``host:port`` of each address that it is bound to."""
        ...

    def listen(self) -> None:
        """Listen, without accepting yet. Call ``accept`` when the broker can serve.

        Raises:
            PortTaken: another process began to listen since the bind.
            EnvironmentFailed: it cannot listen for another reason.
        """
        ...

    def accept(self) -> None:
        """Accept connections from now on."""
        ...

    def close(self) -> None:
        """Accept no more, and free the port. Connections stay open."""
        ...


#: Binds a port on these hosts.
Bind = Callable[[PortPlan, Sequence[str]], Awaitable[BoundPort]]


class Listener(BoundPort):
    """The listener sockets of one front door."""

    def __init__(self, loop: asyncio.AbstractEventLoop, plan: PortPlan, sockets: Mapping[socket.socket, str]) -> None:
        """``sockets``: each with the beginning of errors, as in "the broker cannot listen on 127.0.0.1:10911"."""
        self._loop = loop
        self._plan = plan
        self._sockets = dict(sockets)
        self._tasks: set[asyncio.Task[None]] = set()
        #: Of the tasks.
        self._beginning: set[Peer] = set()
        self._log_throttle = LogThrottle(loop.time, rest_s=_LOG_INTERVAL_S)
        #: Of handshakes that failed, by address.
        self._failed = LogThrottle(loop.time, rest_s=_LOG_INTERVAL_S, together_max=_LOGGED_TOGETHER_MAX)
        self._rest: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        return int(next(iter(self._sockets)).getsockname()[1])

    @property
    def addresses(self) -> list[str]:
        return [str(Address(_numeric(one), self.port)) for one in self._sockets]

    def listen(self) -> None:
        for listening, what in self._sockets.items():
            try:
                listening.listen(BACKLOG)
            except OSError as error:
                raise cannot_listen(what, error) from error

    def accept(self) -> None:
        self._rest = None
        for listening in self._sockets:
            self._loop.add_reader(listening, self._arrived, listening)

    def close(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        for listening in self._sockets:
            if not self._loop.is_closed():
                self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        for peer in self._beginning:
            if not peer.is_open:
                peer.abort()

    def _arrived(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._machine_refuses(error)
                return
            host = str(address[0]) if address else ""
            peer = self._plan.admit(host)
            if isinstance(peer, Rejected):
                accepted.close()
                refused = self._log_throttle.times("refused")
                if refused:
                    log.warning("%s: %d refused", peer.why, refused)
            else:
                self._beginning.add(peer)
                if self._plan.tls is not None:
                    peer.give_up = partial(_shut, accepted)
                task = self._loop.create_task(self._welcome(accepted, peer, host))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _welcome(self, accepted: socket.socket, peer: Peer, host: str) -> None:
        context = None
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = self._plan.tls
            if tls is not None and (tls.is_required or await self._begins_handshake(accepted)):
                context = tls.context.current()
            if context is None:
                await self._loop.connect_accepted_socket(lambda: peer, accepted)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: BoundedWrites(peer),
                    accepted,
                    ssl=context,
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=SHUTDOWN_S,
                )
        except OSError as error:
            if context is None:
                log.info("a connection was lost while it began: %s", error)
                accepted.close()
            elif peer.give_up is not None:  # its transport, which exists by now, closes the socket
                # By reason: one that repeats, as of a client that connects again and again, must not hide another.
                reason = _no_tls(error)
                times = self._failed.times((host, reason))
                if times:
                    log.warning("%s: no TLS with %s, %d times: %s", self._plan.name, host, times, reason)
        finally:
            peer.give_up = None
            self._beginning.discard(peer)
            peer.begun()

    async def _begins_handshake(self, accepted: socket.socket) -> bool:
        """Whether the first byte of the connection is that of a handshake. False for one that is silent for ``HANDSHAKE_S``."""
        readable = asyncio.Event()
        accepted.setblocking(False)
        self._loop.add_reader(accepted, readable.set)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await readable.wait()
        except TimeoutError:
            return False
        finally:
            self._loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK) == _HANDSHAKE

    def _machine_refuses(self, error: OSError) -> None:
        """The machine has no descriptors or memory left: pause, and leave connections in the backlog."""
        log.error("cannot accept connections, retrying in %.0f s: %s", _REST_S, error)
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        self._rest = self._loop.call_later(_REST_S, self.accept)


def _shut(accepted: socket.socket) -> None:
    """End a handshake, at whatever it is: it fails as if the client had closed the connection."""
    with contextlib.suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)


def _no_tls(error: OSError) -> str:
    """Why a handshake failed."""
    if isinstance(error, ConnectionResetError):
        return "it closed the connection, as clients do that do not trust the certificate, or that end"
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = (error.reason if isinstance(error, ssl.SSLError) else "") or str(error) or type(error).__name__
    hint = _HINTS.get(reason, "")
    return reason.replace("_", " ").lower() + hint


#: What OpenSSL says of a client -> what it means.
_HINTS: Final = {
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"),
        ": does the client speak TLS? It has to: rocketmqs:// in its url, tls.enable=true in Java",
    ),
    # The second is what OpenSSL sends, the others Java.
    **dict.fromkeys(
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", "TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE"),
        ": the client does not trust the certificate; the CA is cafile in its url, tls.client.trustCertPath in Java",
    ),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        ": --tls-client-ca asks for one: certfile and keyfile in its url; in Java tls.client.certPath and tls.client.keyPath, with "
        "tls.test.mode.enable=false"
    ),
}


def _numeric(bound: socket.socket) -> str:
    """The address of a socket, with its interface if it is link-local."""
    return socket.getnameinfo(bound.getsockname(), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]


class _Place(NamedTuple):
    """Where one socket listens. ``what``: the beginning of errors."""

    family: int
    address: tuple[Any, ...]
    what: str

    @property
    def is_wildcard(self) -> bool:
        return self.address[0] in _WILDCARDS


async def bind(plan: PortPlan, hosts: Sequence[str]) -> Listener:
    """Bind the port to each address of ``hosts``, the same number on all. On the running loop.

    ``::`` stands for every address of this machine. It is bound as ``::`` and ``0.0.0.0``, each for its family: a socket for both would
    show IPv4 peers as IPv6 addresses, and it would not exist where IPv6 is switched off. An address that a wildcard covers is not bound
    again.

    Raises:
        PortTaken, EnvironmentFailed: nothing is bound.
    """
    found = [_places(plan, host) for host in hosts]
    wild = {place.family for places in found for place in places if place.is_wildcard}
    wanted = [[place for place in places if place.is_wildcard or place.family not in wild] for places in found]
    for left in reversed(range(_PORTS_TRIED if plan.port == 0 else 1)):
        sockets: dict[_Place, socket.socket] = {}
        try:
            for places in wanted:
                _bind_some(sockets, places)
        except (PortTaken, EnvironmentFailed) as error:
            for bound in sockets.values():
                bound.close()
            # The free port of the first address need not be free on the others.
            if left == 0 or len(sockets) == 0 or not isinstance(error, PortTaken):
                raise
        else:
            break
    return Listener(asyncio.get_running_loop(), plan, {bound: place.what for place, bound in sockets.items()})


def _places(plan: PortPlan, host: str) -> list[_Place]:
    text = f"the {plan.name} cannot listen on {Address(host, plan.port)}"
    places = []
    try:
        for name in _WILDCARDS if ip_of(host) == _EVERYWHERE else (host,):
            # Not by the loop: uvloop's drops the interface of an address. It may block, since nobody is served yet.
            found = socket.getaddrinfo(name or None, plan.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            places += [_Place(family, address, text) for family, _, _, _, address in found]
    except OSError as error:
        raise cannot_listen(text, error) from error
    return list(dict.fromkeys(places))


def _bind_some(sockets: dict[_Place, socket.socket], places: Sequence[_Place]) -> None:
    """Bind the addresses of one host, except those whose family this machine does not have; at least one, if there is any."""
    left_out: OSError | None = None
    bound = False
    for place in places:
        try:
            if all(place.address != other.address for other in sockets):  # several names may lead to it
                sockets[place] = _bind_one(place, next(iter(sockets.values()), None))
            bound = True
        except OSError as error:
            if error.errno not in _NO_SUCH_FAMILY:
                raise cannot_listen(place.what, error) from error
            left_out = error
    if left_out is not None and not bound:
        raise cannot_listen(places[0].what, left_out) from left_out


def _bind_one(place: _Place, first: socket.socket | None) -> socket.socket:
    """Bind one address, on the port of the first."""
    address = place.address if first is None else (place.address[0], first.getsockname()[1], *place.address[2:])
    made = socket.socket(place.family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        # Otherwise a restart would wait for the connections of the last run to expire. Other listeners are still excluded.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if place.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def cannot_listen(what: str, error: OSError) -> PortTaken | EnvironmentFailed:
    """The error for a port that could not be bound, with a hint for its reason."""
    text = f"{what}: {error.strerror or error}"
    if error.errno == errno.EADDRINUSE:
        hint = "stop the other process, or choose --port, --name-port and --http-port (0: any free one)"
        return PortTaken(text, hint=hint)
    if isinstance(error, socket.gaierror) or error.errno == errno.EINVAL:
        hint = (
            "check --host: its name, or the interface behind its %, is not known here, or the address has no interface"
        )
    elif error.errno in _NO_SUCH_FAMILY:
        hint = "--host is not an address of this machine; to listen on all addresses: --host :: with --advertise-host"
    elif error.errno in (errno.EACCES, errno.EPERM):
        hint = "ports below 1024 are for root: choose --port, --name-port and --http-port above"
    else:
        hint = "check --host, --port, --name-port and --http-port, and the limits of this machine"
    return EnvironmentFailed(text, hint=hint)
