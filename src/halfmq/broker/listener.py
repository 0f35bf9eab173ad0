"""One port: bound before the store is opened, listening once it is recovered, accepting at the end.

    bind -> the store opens and recovers -> listen -> the first batch is written -> accept

Each step reports its failure. ``create_server`` of an event loop does not: it does not notice that another process began to listen on the
port between bind and listen, and the broker would report that it listens and receive nothing.

Connections that their front door rejects are closed at once: a connection takes a descriptor, and the store's must be available when it
needs them. Every accepted socket is counted before the next one is accepted.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from halfmq.broker.config import address_text
from halfmq.broker.front_door import FrontDoor, Rejected
from halfmq.errors import EnvironmentFailed, PortTaken

log = logging.getLogger("halfmq.listener")

BACKLOG: Final = 1_024
#: Maximum number of connections accepted in one turn of the loop; others wait in the backlog, so that the turn is short.
_ACCEPTS_MAX: Final = 64
#: Delay after the machine failed to accept (no descriptors), s.
_REST_S: Final = 1.0
#: Minimum interval between two log lines with the number of rejected connections, s.
_SAY_EACH_S: Final = 10.0
#: Errors that exclude one of several addresses of a name: this machine does not have that address family.
_NO_SUCH_FAMILY: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class BoundPort(Protocol):
    """A bound port."""

    @property
    def port(self) -> int:
        """The port number; for port 0 the one that was chosen."""
        ...

    def listen(self) -> None:
        """Listen, without accepting yet. Call ``accept`` when the broker can serve.

        Raises:
            PortTaken, EnvironmentFailed: it cannot listen.
        """
        ...

    def accept(self) -> None:
        """Accept connections from now on."""
        ...

    def close(self) -> None:
        """Accept no more, and free the port. Connections stay open."""
        ...


Bind = Callable[[FrontDoor, str, str, int], Awaitable[BoundPort]]


class Listener:
    """The listener sockets of one front door."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, front_door: FrontDoor, sockets: Sequence[socket.socket], what: str
    ) -> None:
        """``what``: the beginning of errors, as in "the broker cannot listen on 127.0.0.1:10911"."""
        self._loop = loop
        self._front_door = front_door
        self._sockets = list(sockets)
        self._what = what
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused = 0
        self._said_at = -_SAY_EACH_S
        self._rest: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._sockets[0].getsockname()[1])

    def listen(self) -> None:
        """Listen, without accepting yet.

        Raises:
            PortTaken: another process began to listen since the bind.
            EnvironmentFailed: any other reason.
        """
        for listening in self._sockets:
            try:
                listening.listen(BACKLOG)
            except OSError as error:
                raise cannot_listen(self._what, error) from error

    def accept(self) -> None:
        """Accept connections from now on."""
        self._rest = None
        for listening in self._sockets:
            self._loop.add_reader(listening, self._arrived, listening)

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        if self._rest is not None:
            self._rest.cancel()
        for listening in self._sockets:
            if not self._loop.is_closed():
                self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    def _arrived(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                peer, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._machine_refuses(error)
                return
            host = str(address[0]) if address else ""
            connection = self._front_door.admit(host)
            if isinstance(connection, Rejected):
                peer.close()
                self._reject(connection)
            else:
                task = self._loop.create_task(self._welcome(peer, connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _welcome(self, peer: socket.socket, connection: asyncio.BaseProtocol) -> None:
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(lambda: connection, peer)
        except OSError as error:
            log.info("a connection was lost while it began: %s", error)
            peer.close()
        finally:
            self._front_door.begun(connection)

    def _reject(self, rejected: Rejected) -> None:
        self._refused += 1
        now = self._loop.time()
        if now - self._said_at >= _SAY_EACH_S:
            log.warning("%s: %d refused", rejected.why, self._refused)
            self._said_at = now
            self._refused = 0

    def _machine_refuses(self, error: OSError) -> None:
        """The machine has no descriptors or memory left: pause, and leave connections in the backlog."""
        log.error("cannot accept connections, retrying in %.0f s: %s", _REST_S, error)
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        self._rest = self._loop.call_later(_REST_S, self.accept)


async def bind(front_door: FrontDoor, what: str, host: str, port: int) -> Listener:
    """Bind ``what`` to each address of ``host``, on one port; 0: any free one. On the running loop.

    Raises:
        PortTaken, EnvironmentFailed: nothing is bound.
    """
    loop = asyncio.get_running_loop()
    text = f"the {what} cannot listen on {address_text(host, port)}"
    sockets: list[socket.socket] = []
    left_out: OSError | None = None
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                _bind_one(sockets, family, address)
            except OSError as error:
                if error.errno not in _NO_SUCH_FAMILY:
                    raise
                left_out = error
        if not sockets:
            raise left_out or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise cannot_listen(text, error) from error
    return Listener(loop, front_door, sockets, text)


def _bind_one(sockets: list[socket.socket], family: int, address: tuple[object, ...]) -> None:
    """Bind one more address, on the port of the first."""
    if sockets:
        address = (address[0], sockets[0].getsockname()[1], *address[2:])
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        # Otherwise a restart would wait for the connections of the last run to expire. Other listeners are still excluded.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    sockets.append(made)


def cannot_listen(what: str, error: OSError) -> PortTaken | EnvironmentFailed:
    """The error for a port that could not be bound, with a hint for its reason."""
    text = f"{what}: {error.strerror or error}"
    if error.errno == errno.EADDRINUSE:
        return PortTaken(
            text, hint="stop the other process, or choose --port, --name-port and --http-port (0: any free one)"
        )
    if isinstance(error, socket.gaierror) or error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL):
        return EnvironmentFailed(
            text,
            hint="--host is not an address of this machine; to listen on all addresses: --host 0.0.0.0 with --advertise-host",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return EnvironmentFailed(
            text, hint="ports below 1024 are for root: choose --port, --name-port and --http-port above"
        )
    return EnvironmentFailed(
        text, hint="check --host, --port, --name-port and --http-port, and the limits of this machine"
    )
