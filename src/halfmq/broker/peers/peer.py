"""Who is connected: one peer of a front door, whatever its protocol. It collects responses, and decides when to stop reading.

A front door makes a subclass, which finds requests in the bytes it reads; services know only this class, and nothing of a door.

Responses are collected and written with one ``transport.write`` for each read or release, since a write costs more than a response. The
broker does not read from a peer that does not read its responses (the transport reports it), nor from any peer while too many
replies wait for the disk: memory is bounded because nobody may send more than can be answered. A small request may have a large
response, so requests of one read wait as well: large responses go to the transport at once (``flush_if_large``), and once it is full the
remaining requests stay unprocessed. The same applies if they exceed the share of one peer in a turn (``intake``), or its time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from halfmq import limits
from halfmq.broker.peers.principal import Principal
from halfmq.model.address import ip_of
from halfmq.model.users import Right, Scope

if TYPE_CHECKING:
    from halfmq.broker.peers.peers import Peers

#: Memory of the objects of one request in addition to its bytes. A one-way send of 200 bytes takes about 2,000 until it is
#: durable; each request counts half of that, since large ones take less relative to their size.
REQUEST_COST: Final = 1_024
#: Number of requests of one read that are handled between two readings of the clock.
FEW: Final = 4
#: Bytes of bodies that are collected before they are passed to the transport, so that it can report that it is full.
LARGE_BODIES_BYTES: Final = 262_144
_UNKNOWN_HOST: Final = b"\x00" * 8

# Why a peer is not read from: bits of ``Peer._paused``. Plain numbers, since each operation of an ``enum.Flag`` is a call of
# Python code, and a busy peer is paused in each turn. ``Intake.stops`` is one more reason: it depends on what all peers have sent.

#: It does not read its responses.
_FULL: Final = 1
#: It waits for its turn of ``intake``.
_TURN: Final = 2
#: Too many replies of all peers wait for the disk.
_BACKLOG: Final = 4
#: Unfinished requests of other peers take too much memory.
_UNFINISHED: Final = 8
#: Work of one of its requests goes on (``broker.turns``), which must not be overtaken by the requests after it.
_WORK: Final = 16
#: Its user has sent as much as that one may (``rest``).
_RATE: Final = 32
#: While one of these holds, received requests are not handled either.
_HANDLES_NOTHING: Final = _FULL | _TURN | _WORK | _RATE

#: Serves one request of a peer; responses go to ``Peer.send``. Never raises. False: the peer is being closed; ignore what it sent after
#: that.
Handle = Callable[[Any, bytes], bool | None]


class Peer(asyncio.Protocol):
    """One that is connected, from its admission to its end."""

    __slots__ = (
        "_handle",
        "_handles_nothing",
        "_heavy",
        "_largest",
        "_later",
        "_out",
        "_paused",
        "_unfinished",
        "address",
        "born_host",
        "generation",
        "give_up",
        "is_full",
        "is_open",
        "later_bytes",
        "number",
        "peers",
        "pending",
        "principal",
        "taken",
        "transport",
        "unfinished_bytes",
        "used_s",
        "user",
    )

    #: Whether it is read from less while all peers together have sent too much.
    is_throttled: ClassVar[bool] = True

    def __init__(self, peers: "Peers", number: int) -> None:
        self.peers = peers
        #: Identifies it in commands and session state; never reused in one run of the broker.
        self.number = number
        #: False: it has ended, or not begun, and cannot be sent to.
        self.is_open = False
        #: ``ip:port``, for logs and for audit records.
        self.address = "?"
        #: IP (4 or 16 bytes) and int32 port, packed, as messages store it.
        self.born_host = _UNKNOWN_HOST
        #: Which user it is; None: it has not said yet, or the broker has no users, so that it may do everything.
        self.principal: Principal | None = None
        #: The name of its user; "": it is nobody's.
        self.user = ""
        #: ``Peers.generation`` at its last read.
        self.generation = peers.generation
        self.transport: asyncio.Transport
        #: Ends a connection that is admitted and has not begun, since its handshake goes on. None: it begins in a moment.
        self.give_up: Callable[[], None] | None = None
        #: Set by a subclass that calls ``_take``.
        self._handle: Handle
        self._out: list[bytes | bytearray | memoryview] = []
        #: Why it is not read from; 0: it is, unless ``intake`` stops it. Only ``_set_paused`` changes it.
        self._paused = 0
        #: Computed from it: whether it does not read its responses, so that nothing that can wait is sent to it; and whether one of
        #: ``_HANDLES_NOTHING`` holds. Both are booleans since they are checked for each response and after each request.
        self.is_full = False
        self._handles_nothing = False
        #: Received requests that are not handled. Only while it ``_handles_nothing``.
        self._later: deque[bytes] = deque()
        # Counted by ``intake``: the cost of its pending requests; of these, the held ones and what it keeps; and of requests that wait for
        # its turn. Used time, s, determines whose turn it is.
        self.pending = 0
        self.taken = 0
        self.later_bytes = 0
        self.used_s = 0.0
        #: Full size of a partly received request, else 0.
        self.unfinished_bytes = 0
        #: The largest write since it became full: its transport keeps that until the last byte is sent.
        self._largest = 0
        #: Bytes of bodies since the last ``flush_if_large``.
        self._heavy = 0
        #: Bytes of an unfinished request at the end of the last read.
        self._unfinished = 0

    # --- for services

    def become(self, principal: Principal) -> None:
        """It has proved that it is this user."""
        self.principal = principal
        self.user = principal.name

    def may(self, right: Right, scope: Scope, name: str) -> bool:
        """Whether its user has the right on ``name``; everybody has, in a broker without users."""
        return self.principal is None or self.principal.may(right, scope, name)

    @property
    def is_private(self) -> bool:
        """Whether nobody else can read what is sent: with TLS, or within this machine."""
        address = ip_of(self.address.rpartition(":")[0])
        is_local = address is not None and address.is_loopback
        return is_local or self.transport.get_extra_info("sslcontext") is not None

    def rest(self, seconds: float) -> None:
        """Handle and read nothing for this time: it sends more than it may."""
        if not self._paused & _RATE:
            self._pause(_RATE)
            self.peers.call_later(seconds, self._rested)

    def _rested(self) -> None:
        if self.is_open:
            self._go_on_after(_RATE)
            self.peers.flush()

    def keep(self, memory_bytes: int) -> None:
        """Count ``memory_bytes`` that are kept for a waiting request of this peer; it is read from less.

        Call ``give_back`` with the same number when they are freed, even if the peer is gone by then.
        """
        self.peers.intake.keep(self, memory_bytes)

    def give_back(self, memory_bytes: int) -> None:
        """The end of ``keep``."""
        self.peers.intake.give_back(self, memory_bytes)

    def hold_requests(self) -> None:
        """Serve none of its further requests until ``resume_requests``: they must not overtake one that takes long."""
        self._pause(_WORK)

    def resume_requests(self) -> None:
        """The end of ``hold_requests``."""
        self._go_on_after(_WORK)

    def _go_on_after(self, reason: int) -> None:
        self._end_pause(reason)
        if not self.awaits_turn:
            self.peers.intake.set_waiting_cost(self, 0)
            self._take_later()
        self.read_again()

    def log_throttled(
        self,
        logger: logging.Logger,
        level: int,
        kind: Hashable,
        text: str,
        *arguments: object,
        error: Exception | None = None,
    ) -> None:
        """Log an action of this peer: once for its address and ``kind``, then rarely, with a count: peers choose how often they act."""
        times = self.peers.log_throttle.times((kind, self.born_host[:-4]))
        if times:
            text = f"%s: {text}" + (" (%d times since the last line)" if times > 1 else "")
            values = (self.address, *arguments, *((times,) if times > 1 else ()))
            logger.log(level, text, *values, exc_info=error)

    def push(self, what: object) -> bool:
        """Send it something that it did not request, one of the types that services name; call ``Peers.push``. False: its door has none."""
        return False

    # --- for its front door

    def send(self, frame: bytes | bytearray | memoryview) -> None:
        """Queue a response; it is written at the end of this read or release. Ignored if the peer is gone."""
        out = self._out
        if not out:
            if not self.is_open:
                return
            self.peers.unwritten.append(self)
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
                self.peers.outgoing.note(self, len(data))
        out.clear()

    def close(self) -> None:
        """Close after the collected responses are sent."""
        self.flush()
        self.transport.close()

    def begun(self) -> None:
        """Call it when the connection was made, or failed."""
        if not self.is_open:
            self._ended()

    def _ended(self) -> None:
        """It has ended, or could not be connected."""
        self.peers.ended(self)

    # --- asyncio.Protocol; ``data_received`` calls ``_take``, then ``_end_read``

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.is_open = True
        self.born_host, self.address = _peer(transport.get_extra_info("peername"))
        self.peers.opened(self)

    def connection_lost(self, error: BaseException | None) -> None:
        self.is_open = False
        self._out.clear()
        self._later.clear()
        self.peers.intake.set_waiting_cost(self, 0)
        self._ended()

    def pause_writing(self) -> None:
        self._pause(_FULL)

    def resume_writing(self) -> None:
        self._end_pause(_FULL)
        self._largest = 0
        self.peers.outgoing.gone(self.number)
        if not self.awaits_turn:
            self._take_later()
        if not self.is_full:
            self.peers.on_drained(self)
        self.peers.flush()
        self.read_again()

    def _take(self, requests: list[bytes], requests_bytes: int) -> None:
        """Handle the requests of a read as far as ``intake`` allows; the rest waits in ``_later``."""
        if not requests:
            return
        peers = self.peers
        intake = peers.intake
        cost = requests_bytes + REQUEST_COST * len(requests)
        if self._later or self._handles_nothing or cost > intake.budget(self):
            self._later += requests
            if not self.awaits_turn:
                self._take_later()
            else:
                intake.set_waiting_cost(self, self._cost_of_later())
            return
        work, handle, clock = intake.work, self._handle, intake.clock
        before = work.submitted
        began = clock() + work.expected_s
        left = iter(requests)
        few = FEW
        for request in left:
            if handle(self, request) is False:
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
                peers.outgoing.note(self, 0)
            else:
                intake.set_waiting_cost(self, later_bytes)

    def _take_later(self) -> None:
        """Handle waiting requests as far as ``intake`` allows."""
        later = self._later
        if not later:
            return
        intake, handle = self.peers.intake, self._handle
        budget = intake.budget(self)
        if budget > 0 and not self.is_full:
            work, clock = intake.work, intake.clock
            before = work.submitted
            began = clock() + work.expected_s
            spent, seconds = 0, 0.0
            while later and spent < budget and seconds < limits.INTAKE_TURN_S and not self._handles_nothing:
                request = later.popleft()
                spent += len(request) + REQUEST_COST
                if handle(self, request) is False:
                    later.clear()
                seconds = clock() + work.expected_s - began
            intake.record_read(self, spent, before, seconds)
        if later and self.is_full:
            self.peers.outgoing.note(self, 0)
        elif later:
            if not self._paused & (_WORK | _RATE):
                intake.wait(self)
            intake.set_waiting_cost(self, self._cost_of_later())

    def _cost_of_later(self) -> int:
        return sum(map(len, self._later)) + REQUEST_COST * len(self._later)

    def _end_read(self, held: int, missing: int, another: bool) -> None:
        """Write the responses. A read ended with ``held`` bytes of an unfinished request; 0: with none. See ``UnfinishedFrames.note``."""
        peers = self.peers
        peers.flush()
        if held or self._unfinished:
            self._unfinished = held
            self.unfinished_bytes = held + missing
            peers.unfinished_frames.note(self, held, missing, another=another)
            if peers.intake.stopped and peers.intake.stops(self):
                self.stop_reading()
        if peers.overloaded(self):
            self._pause(_BACKLOG)

    # --- for ``Peers`` and what it limits

    def wait_for_turn(self) -> None:
        """Handle and read nothing until ``take_turn``: it waits for its turn."""
        self._pause(_TURN)

    def take_turn(self) -> None:
        """Its turn: handle waiting requests, and read again."""
        self._end_pause(_TURN)
        self.peers.intake.set_waiting_cost(self, 0)
        if not self.is_full:
            self._take_later()
        self.read_again()

    @property
    def awaits_turn(self) -> bool:
        """Whether it waits for its turn: between ``wait_for_turn`` and ``take_turn``."""
        return self._paused & _TURN != 0

    def resume(self) -> None:
        """Read again, after too many replies of all peers waited."""
        self._end_pause(_BACKLOG)
        self.read_again()

    def wait(self) -> None:
        """Stop reading until ``continue_reading``: unfinished requests of other peers take too much memory."""
        self._pause(_UNFINISHED)

    def continue_reading(self) -> None:
        """Its request is admitted, or complete: read again, after ``wait``."""
        self._end_pause(_UNFINISHED)
        self.read_again()

    @property
    def held_up(self) -> bool:
        """Whether it is not read from for another reason than an unfinished request."""
        return self._paused & (_TURN | _BACKLOG | _WORK | _RATE) != 0 or self.peers.intake.stops(self)

    def reject(self) -> None:
        """Discard the unfinished request, and close. Queued responses are sent as far as the peer reads them."""
        self._unfinished = self.unfinished_bytes = 0
        self.close()

    def outgoing_bytes(self) -> tuple[int, int]:
        """Bytes that are kept for it, including requests that wait; and bytes of responses that it has yet to read."""
        left = self.transport.get_write_buffer_size()
        return max(left, self._largest) + self._cost_of_later(), left

    def abort(self) -> None:
        """Close without waiting until responses are sent, or until it has begun."""
        self._later.clear()
        if self.is_open:
            self.transport.abort()
        elif self.give_up is not None:
            give_up, self.give_up = self.give_up, None
            give_up()

    @property
    def can_go(self) -> bool:
        """Whether ``abort`` closes it: it has begun, or its handshake goes on."""
        return self.is_open or self.give_up is not None

    def stop_reading(self) -> None:
        """Stop reading until ``read_again``."""
        if self.is_open and not self.transport.is_closing():
            self.transport.pause_reading()

    def read_again(self) -> None:
        """Read, unless there is a reason not to."""
        if not self._paused and self.is_open and not self.peers.intake.stops(self) and not self.transport.is_closing():
            self.transport.resume_reading()

    def _pause(self, reason: int) -> None:
        """Stop reading until ``_end_pause`` of this reason, and ``read_again``."""
        self._set_paused(self._paused | reason)
        self.stop_reading()

    def _end_pause(self, reason: int) -> None:
        """The caller continues with ``read_again``, when requests that came before were handled."""
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
