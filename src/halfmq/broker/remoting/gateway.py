"""The front door for RocketMQ's remoting protocol: connections, and dispatch of frames to the handlers of their commands.

Both ports accept every command. Each command is implemented in its own module; this one has only the rules that apply to all:

- a malformed frame closes its connection; a header with invalid fields gets code 1
- an unknown command gets code 3
- one-way requests get no response, not even a refusal
- a response uses the serialisation of its request, a push uses JSON
- while the broker drains, clients that know GO_AWAY (1500) get it; all others are still served

Responses are collected on their connections and written with one write for each read or release.
"""

import asyncio
import errno
import itertools
import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from halfmq import limits
from halfmq.broker.front_door import Rejected
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.connection_admission import ConnectionAdmission, Refusal
from halfmq.broker.remoting.intake import Intake
from halfmq.broker.remoting.outgoing_bytes import OutgoingBytes
from halfmq.broker.remoting.unfinished_frames import UnfinishedFrames
from halfmq.broker.remoting.unsupported_requests import UnsupportedRequests
from halfmq.broker.sequencer import BACKLOG_MAX
from halfmq.broker.services.peer import Peer
from halfmq.errors import ProtocolError, StoreDamaged
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.wire.remoting.codes import EXT_DAMAGED, V5_3_1, RequestCode, ResponseCode
from halfmq.wire.remoting.frame import BrokenFrame
from halfmq.wire.remoting.header import (
    InvalidHeader,
    Request,
    decode,
    encode_oneway_request,
    encode_request,
    encode_response,
)

log = logging.getLogger("halfmq.gateway")

Handler = Callable[[Connection, Request[Any]], None]

#: Interval of the search for idle connections, ms; one is closed after four searches without a byte from it.
IDLE_CHECK_MS: Final = limits.CONNECTION_IDLE_MS // 4
_IDLE_CHECKS: Final = 4
#: Minimum interval between two log lines about a client's mistake, for each address and kind, s; and a maximum over all.
_SAY_EACH_S: Final = 10.0
_SAID_TOGETHER_MAX: Final = 50
_OPERATORS_ONLY: Final = "all connections for clients are taken (--connections-max, --connections-per-address-max); this one is for operators"
#: Errors of a read that say nothing about the file: memory or descriptors are short for the moment.
_TRANSIENT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
#: Accepted while draining, too: they are one-way, so their sender could not notice a refusal.
SERVED_WHILE_DRAINING: Final = frozenset({RequestCode.END_TRANSACTION, RequestCode.UNREGISTER_CLIENT})


class Gateway:
    """Owns the connections. The composition root fills ``handlers`` before the first connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        backlog: Callable[[], int],
        *,
        clock: Callable[[], float],
        connections_max: int = limits.CONNECTIONS_MAX,
        unfinished_bytes_max: int = limits.UNFINISHED_BYTES_MAX,
        outgoing_bytes_max: int = limits.OUTGOING_BYTES_MAX,
        connections_per_address_max: int | None = None,
    ) -> None:
        self.places = ConnectionAdmission(connections_max, connections_per_address_max)
        self.outgoing = OutgoingBytes(loop, outgoing_bytes_max)
        self.unfinished_frames = UnfinishedFrames(loop, unfinished_bytes_max)
        self.intake = Intake(loop, clock, flush=self.flush)
        self.intake.on_stop = self._stop_reading
        self.intake.on_start = self._read_again
        self.unsupported_requests = UnsupportedRequests(loop.time)
        self.connections_max = connections_max
        self.generation = 0
        self.draining = False
        self.handlers: dict[int, Handler] = {}
        #: Called with the number of each connection that ended, after its removal from ``connections``.
        self.on_closed: Callable[[int], None] = lambda number: None
        #: Called with each connection whose client reads again.
        self.on_drained: Callable[[Connection], None] = lambda connection: None
        #: Called with each response of a client, whether to a ``call`` or not.
        self.on_response: Callable[[Connection, Request[Any]], None] = lambda connection, answer: None
        self.connections: dict[int, Connection] = {}
        #: Numbers of accepted connections that are not made yet. They count.
        self.expected: set[int] = set()
        self._loop = loop
        self._backlog = backlog
        self._throttle = LogThrottle(loop.time, rest_s=_SAY_EACH_S, together_max=_SAID_TOGETHER_MAX)
        self._numbers = itertools.count(1)
        self._opaques = itertools.count(1)
        self._unreadable_said = LogThrottle(loop.time)
        self._dirty: list[Connection] = []
        self._paused: list[Connection] = []
        self._idle_handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to search for idle connections."""
        self._idle_handle = self._loop.call_later(IDLE_CHECK_MS / 1000, self._close_idle)

    @property
    def is_full(self) -> bool:
        """Whether no further connection may be admitted."""
        return len(self.connections) + len(self.expected) >= self.connections_max

    def admit(self, host: str) -> Connection | Rejected:
        """The protocol for a socket accepted from ``host``, or why to close it. Call ``begun`` with the result of the connection."""
        refusal = self.places.refusal(host)
        if refusal is None:
            connection = self.expect()
            self.places.take(connection.number, host)
            return connection
        number = self.places.operators_place()
        in_its_place = self.connections.get(number or 0)
        if number is None or (number and in_its_place is None):
            return self._rejected(refusal, host)
        if self._throttle.is_due(refusal):
            whose = "all places" if refusal is Refusal.ALL else f"all places of {host}"
            log.warning("%s for clients are taken: further ones may only send operators' commands", whose)
        if in_its_place is not None:
            self.places.free(in_its_place.number)
            in_its_place.transport.abort()
        connection = self.expect()
        self.places.take_operators(connection.number, host)
        return connection

    def expect(self) -> Connection:
        """As ``admit``, for a caller that checked ``is_full``."""
        connection = Connection(self, next(self._numbers))
        self.expected.add(connection.number)
        return connection

    def _rejected(self, refusal: Refusal, host: str) -> Rejected:
        if refusal is Refusal.ADDRESS:
            what, count, limit = (
                f"connections from {host}",
                self.places.per_address_max,
                "--connections-per-address-max",
            )
        else:
            what, count = "connections", self.connections_max
            limit = "--connections-max, or the limit of open files"
        return Rejected(f"{what}: limit of {count} reached ({limit})")

    def begun(self, connection: asyncio.BaseProtocol) -> None:
        """The connection that ``admit`` returned was made, or failed."""
        assert isinstance(connection, Connection)
        self.expected.discard(connection.number)
        if connection.number not in self.connections:
            self.places.free(connection.number)

    # --- frames ----------------------------------------------------------------------------------------------

    def frame(self, connection: Connection, frame: bytes) -> bool | None:
        """Serve one frame. False: the connection is being closed, and later frames are ignored."""
        try:
            request = decode(frame)
        except InvalidHeader as error:
            self.log_throttled(log, logging.INFO, "header", connection, "%s", error)
            self.answer(connection, error.request, ResponseCode.SYSTEM_ERROR, str(error))
            return None
        except ProtocolError as error:
            self._drop(connection, error)
            return False
        if request.flag & 1:
            self.on_response(connection, request)
            return None
        try:  # ``get`` takes twice as long
            handler = self.handlers[request.code]
        except KeyError:
            self.unsupported_requests.command(connection.address, request)
            self.answer(
                connection,
                request,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported",
            )
            return None
        if self.draining and request.version > V5_3_1 and request.code not in SERVED_WHILE_DRAINING:
            self.answer(connection, request, ResponseCode.GO_AWAY, "this broker is stopping")
            return None
        if self.places.on_operators and not self.places.may_ask(connection.number, request.code):
            self.answer(connection, request, ResponseCode.SYSTEM_BUSY, _OPERATORS_ONLY)
            connection.flush()
            connection.transport.close()
            return False
        try:  # inlined ``serve``: a function call for each frame costs 1 %
            handler(connection, request)
        except Exception as error:  # noqa: BLE001 - judged in ``failed``
            self.failed(connection, request, error)
        return None

    def serve(self, handler: Handler, connection: Connection, request: Request[Any]) -> None:
        """Call ``handler``, and respond to what it raises."""
        try:
            handler(connection, request)
        except Exception as error:  # noqa: BLE001 - judged in ``failed``
            self.failed(connection, request, error)

    def failed(self, connection: Connection, request: Request[Any], error: Exception) -> None:
        """Respond to what the service of ``request`` raised."""
        text = str(error)
        ext = None
        if isinstance(error, ProtocolError):
            pass  # the frame was valid, its body was not: the client's mistake; the connection may stay
        elif isinstance(error, StoreDamaged | OSError):
            # The disk's fault, not a bug: the requester is told which file cannot be read, everything else is served.
            if not isinstance(error, OSError) or error.errno not in _TRANSIENT:
                ext = {EXT_DAMAGED: "true"}
            if self._unreadable_said.is_due(text):
                log.error("command %d of %s was refused: %s", request.code, connection.address, error)
        else:
            kind = ("failed", request.code)
            self.log_throttled(log, logging.ERROR, kind, connection, "command %d failed", request.code, error=error)
            text = f"{type(error).__name__}: {error}"
        self.answer(connection, request, ResponseCode.SYSTEM_ERROR, text, ext)

    def answer(
        self,
        connection: Connection,
        request: Request[Any],
        code: int,
        remark: str | None = None,
        ext: Mapping[str, object] | None = None,
        body: bytes | bytearray | memoryview = b"",
    ) -> None:
        """Respond to ``request``, unless it is one-way."""
        if not request.flag & 2:
            connection.send(encode_response(request, code, remark, ext, body))
            if body:
                connection.flush_if_large(len(body))

    def push(self, number: int, code: int, ext: Mapping[str, object], body: bytes = b"") -> bool:
        """Send a one-way command to a client. False if its connection is gone, or the client does not read."""
        connection = self.connections.get(number)
        if connection is None or connection.is_full:
            return False
        connection.send(encode_oneway_request(code, next(self._opaques), ext, body))
        return True

    def call(self, number: int, code: int, ext: Mapping[str, object], body: bytes = b"") -> int | None:
        """Send a command to which the client responds (``on_response``). Returns its number; None where ``push`` returns False."""
        connection = self.connections.get(number)
        if connection is None or connection.is_full:
            return None
        opaque = next(self._opaques)
        connection.send(encode_request(code, opaque, ext, body))
        return opaque

    def push_frame(self, number: int, make: Callable[[int], bytes]) -> bool:
        """As ``push``, for a frame that ``make(opaque)`` encodes."""
        connection = self.connections.get(number)
        if connection is None or connection.is_full:
            return False
        frame = make(next(self._opaques))
        connection.send(frame)
        connection.flush_if_large(len(frame))
        return True

    def unfinished(self, connection: Connection, held: int, missing: int, *, another: bool) -> None:
        """Count an unfinished frame of this connection, which may have to wait, or be closed (``UnfinishedFrames.note``)."""
        self.unfinished_frames.note(connection, held, missing, another=another)

    def broken(self, connection: Connection, error: BrokenFrame) -> None:
        """The bytes are no frames: log it, say so if it is TLS, and close the connection."""
        if error.is_tls:
            self.unsupported_requests.tls(connection.address)
            connection.transport.close()
        else:
            self._drop(connection, error)

    def _drop(self, connection: Connection, error: ProtocolError) -> None:
        self.log_throttled(log, logging.WARNING, "closing", connection, "it is closed: %s", error)
        connection.flush()
        connection.transport.close()

    def log_throttled(
        self,
        logger: logging.Logger,
        level: int,
        kind: Hashable,
        connection: Peer,
        text: str,
        *arguments: object,
        error: Exception | None = None,
    ) -> None:
        """Log an action of a client, once for its address and ``kind``, then at intervals with a count."""
        times = self._throttle.times((kind, connection.born_host[:-4]))
        if times:
            text = f"%s: {text}" + (" (%d times since the last line)" if times > 1 else "")
            told = (connection.address, *arguments, *((times,) if times > 1 else ()))
            logger.log(level, text, *told, exc_info=error)

    def is_due(self, what: Hashable) -> bool:
        """Whether to log now another condition that clients can cause at will."""
        return self._throttle.is_due(what)

    # --- connections -----------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """The connection was made: it counts among ``connections``, and is read from if ``intake`` allows it."""
        self.expected.discard(connection.number)
        self.connections[connection.number] = connection
        if self.intake.stops(connection):
            connection.stop_reading()

    def closed(self, connection: Connection, error: BaseException | None) -> None:
        """The connection has ended: free its memory and its place, and tell the services (``on_closed``)."""
        self.unfinished_frames.gone(connection.number)
        self.places.free(connection.number)
        self.outgoing.gone(connection.number)
        if self.connections.pop(connection.number, None) is not None:
            self.on_closed(connection.number)

    def drained(self, connection: Connection) -> None:
        """The client reads again: tell the services, which may have withheld something from it (``on_drained``)."""
        self.on_drained(connection)

    def dirty(self, connection: Connection) -> None:
        """The connection has responses to write: the next ``flush`` writes them."""
        self._dirty.append(connection)

    def flush(self) -> None:
        """Write the queued responses, one write for each connection."""
        dirty = self._dirty
        if dirty:
            self._dirty = []
            for connection in dirty:
                connection.flush()
        if self._paused and self._backlog() < BACKLOG_MAX // 2:
            paused, self._paused = self._paused, []
            for connection in paused:
                connection.resume()

    def overloaded(self, connection: Connection) -> bool:
        """Whether too many replies wait for the disk; if so, the connection is not read from until ``flush`` finds half as many."""
        if self._backlog() < BACKLOG_MAX:
            return False
        self._paused.append(connection)
        return True

    def released(self) -> None:
        """Replies were released: write them, and continue with waiting requests."""
        self.flush()
        self.intake.release_finished()

    def _stop_reading(self) -> None:
        for connection in self.connections.values():
            if self.intake.stops(connection):
                connection.stop_reading()

    def _read_again(self) -> None:
        for connection in list(self.connections.values()):
            connection.read_again()

    def _close_idle(self) -> None:
        """Close connections that were silent for 120 s: a live client sends a heartbeat every 30 s. Source: NettyRemotingServer."""
        self.generation += 1
        for connection in list(self.connections.values()):
            if connection.generation + _IDLE_CHECKS < self.generation:
                silent_s = limits.CONNECTION_IDLE_MS // 1000
                self.log_throttled(
                    log, logging.INFO, "silent", connection, "it is closed: silent for more than %d s", silent_s
                )
                connection.transport.abort()
        self._idle_handle = self._loop.call_later(IDLE_CHECK_MS / 1000, self._close_idle)

    def close(self, *, abort: bool) -> None:
        """Close every connection: at once, or after its queued responses were sent."""
        self.draining = True
        if self._idle_handle is not None:
            self._idle_handle.cancel()
        self.unfinished_frames.stop()
        self.outgoing.stop()
        for connection in list(self.connections.values()):
            if abort:
                connection.transport.abort()
            else:
                connection.flush()
                connection.transport.close()
