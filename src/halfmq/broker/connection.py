"""One connection of a client: bytes in, frames out, and when to stop reading.

Answers are collected and leave in one ``transport.write`` for each read or release, since a write costs more than a
frame. A peer that does not read its answers is not read from either (the transport says when), and so is everybody
while too many answers wait for the disk: what bounds memory is that nobody may send more than we can answer. A small
request may have a large answer, so frames that came in one read wait as well: large answers go to the transport at once
(``relieve``), and from the moment that it is full the rest of the frames stay unread.
"""

import asyncio
from collections import deque
from ipaddress import ip_address
from typing import Final, Protocol, cast

from halfmq.wire.remoting.frame import BrokenFrame, FrameSplitter

#: Bytes of bodies that collect before they are given to the transport, so that it can say that it is full.
RELIEVE_BYTES: Final = 262_144
_UNKNOWN_HOST: Final = b"\x00" * 8


class Frames(Protocol):
    """What a connection asks of the gateway that made it."""

    #: Grows with each look for idle connections; a read stamps the connection with it.
    generation: int

    def opened(self, connection: "Connection") -> None: ...

    def frame(self, connection: "Connection", frame: bytes) -> bool | None:
        """Handle one frame; answers go to ``connection.send``. Never raises. False: hand over nothing that came behind it."""
        ...

    def overloaded(self, connection: "Connection") -> bool:
        """Whether to stop reading from this connection until the gateway calls ``resume``."""
        ...

    def unfinished(self, connection: "Connection", held: int, missing: int, *, another: bool) -> None:
        """A read ended with ``held`` bytes of an unfinished frame, or, with 0, no longer does. See ``UnfinishedFrames.note``."""
        ...

    def broken(self, connection: "Connection", error: BrokenFrame) -> None: ...

    def dirty(self, connection: "Connection") -> None:
        """``connection`` has answers for the next ``flush``."""
        ...

    def flush(self) -> None:
        """Write the answers of every connection that has some."""
        ...

    def closed(self, connection: "Connection", error: BaseException | None) -> None: ...

    def drained(self, connection: "Connection") -> None:
        """The peer reads again, and everything that it had sent is handled."""
        ...


class Connection(asyncio.Protocol):
    """``number`` names it in commands and is never used twice in one run."""

    __slots__ = (
        "_gateway",
        "_heavy",
        "_held",
        "_later",
        "_out",
        "_splitter",
        "_unfinished",
        "_waits",
        "born_host",
        "generation",
        "is_full",
        "is_open",
        "number",
        "peer",
        "transport",
    )

    def __init__(self, gateway: Frames, number: int) -> None:
        self.number = number
        self.is_open = False
        #: IP and int32 port of the peer, packed, as messages store it.
        self.born_host = _UNKNOWN_HOST
        self.peer = "?"
        self.generation = gateway.generation
        self.transport: asyncio.Transport
        self._gateway = gateway
        self._splitter = FrameSplitter()
        self._out: list[bytes | bytearray] = []
        #: The peer does not take its answers: it is not read from, and nothing that can wait is sent to it.
        self.is_full = False
        #: Frames that came before reading stopped. Only while it is full.
        self._later: deque[bytes] = deque()
        #: Bytes of bodies since the last ``relieve``.
        self._heavy = 0
        #: The gateway said to stop reading.
        self._held = False
        #: Bytes of an unfinished frame at the end of the last read.
        self._unfinished = 0
        #: Too much is unfinished elsewhere: the rest of this one's frame is read later.
        self._waits = False

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.is_open = True
        self.born_host, self.peer = _peer(transport.get_extra_info("peername"))
        self._gateway.opened(self)

    def data_received(self, data: bytes) -> None:
        gateway = self._gateway
        self.generation = gateway.generation
        frames: list[bytes] = []
        try:
            frames = self._splitter.feed(data)
            self._handle(frames)
        except BrokenFrame as error:
            self._handle(error.frames)
            gateway.broken(self, error)
        gateway.flush()
        held = self._splitter.pending_bytes
        if held or self._unfinished:
            self._unfinished = held
            gateway.unfinished(self, held, self._splitter.missing_bytes, another=bool(frames))
        if gateway.overloaded(self):
            self._held = True
            self.transport.pause_reading()

    def _handle(self, frames: list[bytes]) -> None:
        handle = self._gateway.frame
        for frame in frames:
            if self.is_full:
                self._later.append(frame)
            elif handle(self, frame) is False:
                return

    def pause_writing(self) -> None:
        self.is_full = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_full = False
        later = self._later
        while later and not self.is_full:
            if self._gateway.frame(self, later.popleft()) is False:
                later.clear()
        if not self.is_full:
            self._gateway.drained(self)
        self._gateway.flush()
        self._read_again()

    def connection_lost(self, error: BaseException | None) -> None:
        self.is_open = False
        self._out.clear()
        self._later.clear()
        self._gateway.closed(self, error)

    # --- for the gateway

    def send(self, frame: bytes | bytearray) -> None:
        """Queue a frame; it leaves at the end of this read or release. Nothing happens when the peer is gone."""
        out = self._out
        if not out:
            if not self.is_open:
                return
            self._gateway.dirty(self)
        out.append(frame)

    def relieve(self, body_bytes: int) -> None:
        """A body of that many bytes was queued. Many of them go to the transport now, which says when it is full."""
        self._heavy += body_bytes
        if self._heavy >= RELIEVE_BYTES:
            self._heavy = 0
            self.flush()

    def flush(self) -> None:
        out = self._out
        if out and self.is_open:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
        out.clear()

    def resume(self) -> None:
        self._held = False
        self._read_again()

    def wait(self) -> None:
        """Read no more until ``go_on``: too much is unfinished elsewhere."""
        self._waits = True
        self.transport.pause_reading()

    def go_on(self) -> None:
        self._waits = False
        self._read_again()

    def turn_away(self) -> None:
        """Let go of the unfinished frame, and close. Answers that are queued leave as far as the peer takes them."""
        self._splitter = FrameSplitter()
        self._unfinished = 0
        self.flush()
        self.transport.close()

    def _read_again(self) -> None:
        if self.is_open and not (self.is_full or self._held or self._waits) and not self.transport.is_closing():
            self.transport.resume_reading()


def _peer(name: object) -> tuple[bytes, str]:
    """(packed host, text) of a transport's peer; zeros where it has no IP address (a Unix socket, a name)."""
    if not isinstance(name, tuple) or len(name) < 2:
        return _UNKNOWN_HOST, str(name or "?")
    text = f"{name[0]}:{name[1]}"
    try:
        return ip_address(name[0]).packed + int(name[1]).to_bytes(4, "big"), text
    except ValueError:  # no address: messages are stored with host 0, and the log still says who it is
        return _UNKNOWN_HOST, text
