"""One connection of a client: splits bytes into frames, collects responses, and decides when to stop reading.

Responses are collected and written with one ``transport.write`` for each read or release, since a write costs more than a frame. The
broker does not read from a client that does not read its responses (the transport reports it), nor from any client while too many
replies wait for the disk: memory is bounded because nobody may send more than can be answered. A small request may have a large
response, so frames of one read wait as well: large responses go to the transport at once (``flush_if_large``), and once it is full the
remaining frames stay unprocessed. The same applies if they exceed the share of one connection in a turn (``intake``), or its time.
"""

import asyncio
from collections import deque
from ipaddress import ip_address
from typing import Final, Protocol, cast

from halfmq import limits
from halfmq.broker.remoting.intake import REQUEST_COST, Intake
from halfmq.broker.remoting.outgoing_bytes import OutgoingBytes
from halfmq.wire.remoting.frame import BrokenFrame, FrameSplitter

#: Number of frames of one read that are handled between two readings of the clock.
FEW: Final = 4
#: Bytes of bodies that are collected before they are passed to the transport, so that it can report that it is full.
LARGE_BODIES_BYTES: Final = 262_144
_UNKNOWN_HOST: Final = b"\x00" * 8

# Why a connection is not read from: bits of ``Connection._paused``. Plain numbers, since each operation of an ``enum.Flag`` is a call of
# Python code, and a busy connection is paused in each turn. ``Intake.stops`` is one more reason: it depends on what all connections have sent.

#: The client does not read its responses.
_FULL: Final = 1
#: It waits for its turn of ``intake``.
_TURN: Final = 2
#: Too many replies of all connections wait for the disk.
_BACKLOG: Final = 4
#: Unfinished frames of other connections take too much memory.
_UNFINISHED: Final = 8
#: Work of one of its requests goes on (``broker.turns``), which must not be overtaken by the requests after it.
_WORK: Final = 16
#: While one of these holds, received frames are not handled either.
_HANDLES_NOTHING: Final = _FULL | _TURN | _WORK


class Frames(Protocol):
    """What a connection needs from its gateway."""

    #: Incremented by each search for idle connections; a read records the current value.
    generation: int
    intake: Intake
    outgoing: OutgoingBytes

    def opened(self, connection: "Connection") -> None:
        """The connection was made and can be written to."""
        ...

    def frame(self, connection: "Connection", frame: bytes) -> bool | None:
        """Handle one frame; responses go to ``connection.send``. Never raises. False: ignore the frames after it."""
        ...

    def overloaded(self, connection: "Connection") -> bool:
        """Whether to stop reading from this connection until the gateway calls ``resume``."""
        ...

    def unfinished(self, connection: "Connection", held: int, missing: int, *, another: bool) -> None:
        """A read ended with ``held`` bytes of an unfinished frame; 0: with none. See ``UnfinishedFrames.note``."""
        ...

    def broken(self, connection: "Connection", error: BrokenFrame) -> None:
        """The bytes are not frames: log it, and close the connection."""
        ...

    def dirty(self, connection: "Connection") -> None:
        """``connection`` has responses for the next ``flush``."""
        ...

    def flush(self) -> None:
        """Write the responses of every connection that has some."""
        ...

    def closed(self, connection: "Connection", error: BaseException | None) -> None:
        """The connection has ended; ``error`` None: without an error."""
        ...

    def drained(self, connection: "Connection") -> None:
        """The client reads again, and all of its received frames were handled."""
        ...


class Connection(asyncio.Protocol):
    """A ``services.peer.Peer``. ``number`` identifies it in commands and is never reused in one run."""

    __slots__ = (
        "_gateway",
        "_handles_nothing",
        "_heavy",
        "_largest",
        "_later",
        "_out",
        "_paused",
        "_splitter",
        "_unfinished",
        "address",
        "born_host",
        "generation",
        "is_full",
        "is_open",
        "later_bytes",
        "number",
        "pending",
        "raw_read_end",
        "taken",
        "transport",
        "unfinished_bytes",
        "used_s",
    )

    def __init__(self, gateway: Frames, number: int) -> None:
        self.number = number
        self.is_open = False
        #: IP and int32 port of the client, packed, as messages store it.
        self.born_host = _UNKNOWN_HOST
        self.address = "?"
        self.generation = gateway.generation
        self.transport: asyncio.Transport
        self._gateway = gateway
        self._splitter = FrameSplitter()
        self._out: list[bytes | bytearray | memoryview] = []
        #: Topic id, queue and next offset of its last raw read; None if that had no messages.
        self.raw_read_end: tuple[int, int, int] | None = None
        #: Why it is not read from; 0: it is, unless ``intake`` stops it. Only ``_set_paused`` changes it.
        self._paused = 0
        #: Computed from it: whether _FULL is among them, so that nothing that can wait is sent to it; and whether one of ``_HANDLES_NOTHING``
        #: is. Both are booleans since they are checked for each response and after each frame.
        self.is_full = False
        self._handles_nothing = False
        #: Received frames that are not handled. Only while it ``_handles_nothing``.
        self._later: deque[bytes] = deque()
        #: State of ``intake``.
        self.pending = 0
        self.taken = 0
        self.later_bytes = 0
        self.used_s = 0.0
        self.unfinished_bytes = 0
        #: The largest write since it became full: its transport keeps that until the last byte is sent.
        self._largest = 0
        #: Bytes of bodies since the last ``flush_if_large``.
        self._heavy = 0
        #: Bytes of an unfinished frame at the end of the last read.
        self._unfinished = 0

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.is_open = True
        self.born_host, self.address = _peer(transport.get_extra_info("peername"))
        self._gateway.opened(self)

    def data_received(self, data: bytes) -> None:
        gateway = self._gateway
        self.generation = gateway.generation
        frames: list[bytes] = []
        try:
            frames = self._splitter.feed(data)
            self._take(frames, self._splitter.frames_bytes)
        except BrokenFrame as error:
            self._take(error.frames, sum(map(len, error.frames)))
            gateway.broken(self, error)
        gateway.flush()
        held = self._splitter.pending_bytes
        if held or self._unfinished:
            self._unfinished = held
            missing = self._splitter.missing_bytes
            self.unfinished_bytes = held + missing
            gateway.unfinished(self, held, missing, another=bool(frames))
            if gateway.intake.stopped and gateway.intake.stops(self):
                self.stop_reading()
        if gateway.overloaded(self):
            self._pause(_BACKLOG)

    def _take(self, frames: list[bytes], frames_bytes: int) -> None:
        """Handle the frames of a read as far as ``intake`` allows; the rest waits in ``_later``."""
        if not frames:
            return
        gateway = self._gateway
        intake = gateway.intake
        cost = frames_bytes + REQUEST_COST * len(frames)
        if self._later or self._handles_nothing or cost > intake.room(self):
            self._later += frames
            if not self.awaits_turn:
                self._take_later()
            else:
                intake.set_waiting_cost(self, self._cost_of_later())
            return
        work, handle, clock = intake.work, gateway.frame, intake.clock
        before = work.submitted
        began = clock() + work.expected_s
        left = iter(frames)
        few = FEW
        for frame in left:
            if handle(self, frame) is False:
                left = iter(())
                break
            if self._handles_nothing:
                break
            few -= 1
            if not few:
                few = FEW
                if clock() + work.expected_s - began >= limits.INTAKE_TURN_S:
                    break
        self._later += left
        later_bytes = self._cost_of_later() if self._later else 0
        intake.record_read(self, cost - later_bytes, before, clock() + work.expected_s - began)
        if later_bytes:
            if self.is_full:
                gateway.outgoing.note(self, 0)
            else:
                intake.set_waiting_cost(self, later_bytes)

    def _take_later(self) -> None:
        """Handle waiting frames as far as ``intake`` allows."""
        intake = self._gateway.intake
        later, handle = self._later, self._gateway.frame
        if not later:
            return
        room = intake.room(self)
        if room > 0 and not self.is_full:
            work, clock = intake.work, intake.clock
            before = work.submitted
            began = clock() + work.expected_s
            spent, seconds = 0, 0.0
            while later and spent < room and seconds < limits.INTAKE_TURN_S and not self._handles_nothing:
                frame = later.popleft()
                spent += len(frame) + REQUEST_COST
                if handle(self, frame) is False:
                    later.clear()
                seconds = clock() + work.expected_s - began
            intake.record_read(self, spent, before, seconds)
        if later and self.is_full:
            self._gateway.outgoing.note(self, 0)
        elif later:
            if not self._paused & _WORK:
                intake.wait(self)
            intake.set_waiting_cost(self, self._cost_of_later())

    def _cost_of_later(self) -> int:
        return sum(map(len, self._later)) + REQUEST_COST * len(self._later)

    def hold(self) -> None:
        """Stop reading until ``take_more``: other connections come first."""
        self._pause(_TURN)

    def take_more(self) -> None:
        """The connection's turn: handle waiting frames, and read again."""
        self._end_pause(_TURN)
        self._gateway.intake.set_waiting_cost(self, 0)
        if not self.is_full:
            self._take_later()
        self.read_again()

    def pause_writing(self) -> None:
        self._pause(_FULL)

    def resume_writing(self) -> None:
        self._end_pause(_FULL)
        self._largest = 0
        self._gateway.outgoing.gone(self.number)
        if not self.awaits_turn:
            self._take_later()
        if not self.is_full:
            self._gateway.drained(self)
        self._gateway.flush()
        self.read_again()

    def connection_lost(self, error: BaseException | None) -> None:
        self.is_open = False
        self._out.clear()
        self._later.clear()
        self._gateway.intake.set_waiting_cost(self, 0)
        self._gateway.closed(self, error)

    # --- for the gateway

    def send(self, frame: bytes | bytearray | memoryview) -> None:
        """Queue a frame; it is written at the end of this read or release. Ignored if the client is gone."""
        out = self._out
        if not out:
            if not self.is_open:
                return
            self._gateway.dirty(self)
        out.append(frame)

    def flush_if_large(self, body_bytes: int) -> None:
        """A body of that many bytes was queued. Large amounts go to the transport now, which reports when it is full."""
        self._heavy += body_bytes
        if self._heavy >= LARGE_BODIES_BYTES:
            self._heavy = 0
            self.flush()

    def flush(self) -> None:
        """Write the collected responses in one write."""
        out = self._out
        if out and self.is_open:
            data = out[0] if len(out) == 1 else b"".join(out)
            self.transport.write(data)
            if self.is_full:
                self._largest = max(self._largest, len(data))
                self._gateway.outgoing.note(self, len(data))
        out.clear()

    def outgoing_bytes(self) -> tuple[int, int]:
        """Bytes of responses that the client has not read."""
        left = self.transport.get_write_buffer_size()
        return max(left, self._largest) + self._cost_of_later(), left

    def abort(self) -> None:
        """Close without waiting until responses are sent."""
        self._later.clear()
        self.transport.abort()

    def keep(self, memory_bytes: int) -> None:
        self._gateway.intake.keep(self, memory_bytes)

    def give_back(self, memory_bytes: int) -> None:
        self._gateway.intake.give_back(self, memory_bytes)

    def hold_requests(self) -> None:
        self._pause(_WORK)

    def resume_requests(self) -> None:
        self._end_pause(_WORK)
        if not self.awaits_turn:
            self._gateway.intake.set_waiting_cost(self, 0)
            self._take_later()
        self.read_again()

    def resume(self) -> None:
        """Read again, after the gateway stopped all connections."""
        self._end_pause(_BACKLOG)
        self.read_again()

    def wait(self) -> None:
        """Stop reading until ``continue_reading``: unfinished frames of other connections take too much memory."""
        self._pause(_UNFINISHED)

    def continue_reading(self) -> None:
        """Read again, after ``wait``."""
        self._end_pause(_UNFINISHED)
        self.read_again()

    @property
    def awaits_turn(self) -> bool:
        return self._paused & _TURN != 0

    @property
    def held_up(self) -> bool:
        return self._paused & (_TURN | _BACKLOG | _WORK) != 0 or self._gateway.intake.stops(self)

    def reject(self) -> None:
        """Discard the unfinished frame, and close. Queued responses are sent as far as the client reads them."""
        self._splitter = FrameSplitter()
        self._unfinished = self.unfinished_bytes = 0
        self.flush()
        self.transport.close()

    def stop_reading(self) -> None:
        """Stop reading until ``read_again``, because of ``Intake.stops``."""
        if self.is_open and not self.transport.is_closing():
            self.transport.pause_reading()

    def read_again(self) -> None:
        """Read, unless there is a reason not to."""
        if (
            not self._paused
            and self.is_open
            and not self._gateway.intake.stops(self)
            and not self.transport.is_closing()
        ):
            self.transport.resume_reading()

    def _pause(self, reason: int) -> None:
        """Stop reading until ``_end_pause`` of this reason, and ``read_again``."""
        self._set_paused(self._paused | reason)
        self.stop_reading()

    def _end_pause(self, reason: int) -> None:
        """The caller continues with ``read_again``, when frames that came before were handled."""
        self._set_paused(self._paused & ~reason)

    def _set_paused(self, reasons: int) -> None:
        self._paused = reasons
        self.is_full = reasons & _FULL != 0
        self._handles_nothing = reasons & _HANDLES_NOTHING != 0


def _peer(name: object) -> tuple[bytes, str]:
    """(packed host, text) of a transport's peer; zeros if it has no IP address (a Unix socket, a name)."""
    if not isinstance(name, tuple) or len(name) < 2:
        return _UNKNOWN_HOST, str(name or "?")
    text = f"{name[0]}:{name[1]}"
    try:
        return ip_address(name[0]).packed + int(name[1]).to_bytes(4, "big"), text
    except ValueError:  # no address: messages are stored with host 0, but log lines contain the name
        return _UNKNOWN_HOST, text
