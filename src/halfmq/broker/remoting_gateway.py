"""RocketMQ's remoting protocol at the door: connections, and frames to the handlers of their commands.

Both ports take every command. What each command does is in its own module; this one only holds the rules that are the
same for all of them:

- a frame that cannot be read closes its connection; a header whose fields are wrong is answered with code 1
- an unknown command is answered with code 3
- one-way requests are never answered, not even with a refusal
- an answer comes in the serialisation of its request, a push in JSON
- while the broker drains, clients that know GO_AWAY (1500) are sent away; everybody else is still served

Answers collect on their connections and leave with one write for each read or release.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from halfmq import limits
from halfmq.broker.connection import Connection
from halfmq.broker.pump import BACKLOG_MAX
from halfmq.broker.unfinished_frames import UnfinishedFrames
from halfmq.errors import ProtocolError
from halfmq.wire.remoting.codes import V5_3_1, RequestCode, ResponseCode
from halfmq.wire.remoting.frame import BrokenFrame
from halfmq.wire.remoting.header import InvalidHeader, Request, decode, encode_oneway_request, encode_response

log = logging.getLogger("halfmq.gateway")

Handler = Callable[[Connection, Request[Any]], None]

#: How often silent connections are looked for, ms; one is closed after four looks without a byte from it.
IDLE_LOOK_MS: Final = limits.CONNECTION_IDLE_MS // 4
_IDLE_LOOKS: Final = 4
#: A verdict is still taken while draining: it is one-way, so its sender could not learn that it was not.
_NEVER_SENT_AWAY: Final = frozenset({RequestCode.END_TRANSACTION, RequestCode.UNREGISTER_CLIENT})


class Gateway:
    """Owns the connections. ``handlers`` is filled by the composition root before the first connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        backlog: Callable[[], int],
        *,
        connections_max: int = limits.CONNECTIONS_MAX,
        unfinished_bytes_max: int = limits.UNFINISHED_BYTES_MAX,
    ) -> None:
        self.unfinished_frames = UnfinishedFrames(loop, unfinished_bytes_max)
        self.connections_max = connections_max
        self.generation = 0
        self.draining = False
        self.handlers: dict[int, Handler] = {}
        #: Told the number of each connection that ended, and only once it is gone from ``connections``.
        self.on_closed: Callable[[int], None] = lambda number: None
        #: Told each connection that takes answers again.
        self.on_drained: Callable[[Connection], None] = lambda connection: None
        self.connections: dict[int, Connection] = {}
        #: Numbers of connections that were accepted and have not begun. They count.
        self.expected: set[int] = set()
        self._loop = loop
        self._backlog = backlog
        self._numbers = itertools.count(1)
        self._opaques = itertools.count(1)
        self._dirty: list[Connection] = []
        self._paused: list[Connection] = []
        self._idle_handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._idle_handle = self._loop.call_later(IDLE_LOOK_MS / 1000, self._look_for_idle)

    @property
    def is_full(self) -> bool:
        """Whether nobody else may be let in."""
        return len(self.connections) + len(self.expected) >= self.connections_max

    def expect(self) -> Connection:
        """The protocol for a socket that was accepted. Take its number out of ``expected`` if it comes to nothing."""
        connection = Connection(self, next(self._numbers))
        self.expected.add(connection.number)
        return connection

    # --- frames ----------------------------------------------------------------------------------------------

    def frame(self, connection: Connection, frame: bytes) -> bool | None:
        """Serve one frame. False: the connection is being closed, and what came behind the frame is not served."""
        try:
            request = decode(frame)
        except InvalidHeader as error:
            log.info("%s: %s", connection.peer, error)
            self.answer(connection, error.request, ResponseCode.SYSTEM_ERROR, str(error))
            return None
        except ProtocolError as error:
            self._drop(connection, error)
            return False
        if request.flag & 1:
            return None  # an answer: we only push one-way commands, so nobody waits for it
        handler = self.handlers.get(request.code)
        if handler is None:
            self.answer(
                connection,
                request,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported",
            )
            return None
        if self.draining and request.version > V5_3_1 and request.code not in _NEVER_SENT_AWAY:
            self.answer(connection, request, ResponseCode.GO_AWAY, "this broker is stopping")
            return None
        try:
            handler(connection, request)
        except ProtocolError as error:
            # The frame was sound, its body was not: the peer's mistake, said so; the connection may live.
            self.answer(connection, request, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception as error:
            log.exception("%s: command %d failed", connection.peer, request.code)
            self.answer(connection, request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        return None

    def answer(
        self,
        connection: Connection,
        request: Request[Any],
        code: int,
        remark: str | None = None,
        ext: Mapping[str, object] | None = None,
        body: bytes | bytearray | memoryview = b"",
    ) -> None:
        """Answer ``request``, unless it is one-way."""
        if not request.flag & 2:
            connection.send(encode_response(request, code, remark, ext, body))
            if body:
                connection.relieve(len(body))

    def push(self, number: int, code: int, ext: Mapping[str, object], body: bytes = b"") -> bool:
        """Send a command to a client, one-way. False when its connection is gone, or does not read what it is sent."""
        connection = self.connections.get(number)
        if connection is None or connection.is_full:
            return False
        connection.send(encode_oneway_request(code, next(self._opaques), ext, body))
        return True

    def push_frame(self, number: int, make: Callable[[int], bytes]) -> bool:
        """Like ``push``, for a frame that ``make(opaque)`` encodes."""
        connection = self.connections.get(number)
        if connection is None or connection.is_full:
            return False
        frame = make(next(self._opaques))
        connection.send(frame)
        connection.relieve(len(frame))
        return True

    def unfinished(self, connection: Connection, held: int, missing: int, *, another: bool) -> None:
        self.unfinished_frames.note(connection, held, missing, another=another)

    def broken(self, connection: Connection, error: BrokenFrame) -> None:
        self._drop(connection, error)

    def _drop(self, connection: Connection, error: ProtocolError) -> None:
        log.warning("closing %s: %s", connection.peer, error)
        connection.flush()
        connection.transport.close()

    # --- connections -----------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self.expected.discard(connection.number)
        self.connections[connection.number] = connection

    def closed(self, connection: Connection, error: BaseException | None) -> None:
        self.unfinished_frames.gone(connection.number)
        if self.connections.pop(connection.number, None) is not None:
            self.on_closed(connection.number)

    def drained(self, connection: Connection) -> None:
        self.on_drained(connection)

    def dirty(self, connection: Connection) -> None:
        self._dirty.append(connection)

    def flush(self) -> None:
        """Write what is due, one write for each connection."""
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
        if self._backlog() < BACKLOG_MAX:
            return False
        self._paused.append(connection)
        return True

    def _look_for_idle(self) -> None:
        """Close who said nothing for 120 s: a live client sends a heartbeat each 30 s. Source: NettyRemotingServer."""
        self.generation += 1
        for connection in list(self.connections.values()):
            if connection.generation + _IDLE_LOOKS < self.generation:
                log.info("closing %s: silent for more than %d s", connection.peer, limits.CONNECTION_IDLE_MS // 1000)
                connection.transport.abort()
        self._idle_handle = self._loop.call_later(IDLE_LOOK_MS / 1000, self._look_for_idle)

    def close(self, *, abort: bool) -> None:
        """End every connection: at once, or after what is queued has left."""
        if self._idle_handle is not None:
            self._idle_handle.cancel()
        self.unfinished_frames.stop()
        for connection in list(self.connections.values()):
            if abort:
                connection.transport.abort()
            else:
                connection.flush()
                connection.transport.close()
