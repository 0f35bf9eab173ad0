"""Everybody who is connected, through any front door: their numbers, their places, what they may send and leave unread together.

A new front door needs this and the services: ``admit`` its connections as subclasses of ``Peer``, and answer with ``Peer.send``. Services
get peers, and ``flush`` after responses that belong to no read and no release.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from halfmq import limits
from halfmq.broker.peers.connection_admission import ConnectionAdmission, Refusal
from halfmq.broker.peers.intake import Intake
from halfmq.broker.peers.outgoing_bytes import OutgoingBytes
from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.unfinished_frames import UnfinishedFrames
from halfmq.runtime.log_throttle import LogThrottle

log = logging.getLogger("halfmq.gateway")

#: Maximum number of replies that wait for the disk, and requests for others; beyond it no peer that sends is read from.
BACKLOG_MAX: Final = 65_536
#: Interval of the search for idle peers, ms; one is closed after four searches without a byte from it.
IDLE_CHECK_MS: Final = limits.CONNECTION_IDLE_MS // 4
_IDLE_CHECKS: Final = 4
#: Minimum interval between two log lines about a peer's mistake, for each address and kind, s; and a maximum over all.
_LOG_INTERVAL_S: Final = 10.0
_LOGGED_TOGETHER_MAX: Final = 50

P = TypeVar("P", bound=Peer)


class Rejected(NamedTuple):
    """No connection from there is possible now. ``why``: a clause that names the flag of the limit."""

    why: str


#: What a front door is to its port: the peer for a socket accepted from this host. Call its ``begun`` when it was connected, or failed.
Admit = Callable[[str], Peer | Rejected]


class Peers:
    """The peers of one broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], float],
        connections_max: int = limits.CONNECTIONS_MAX,
        unfinished_bytes_max: int = limits.UNFINISHED_BYTES_MAX,
        outgoing_bytes_max: int = limits.OUTGOING_BYTES_MAX,
        connections_per_address_max: int | None = None,
    ) -> None:
        """``clock``: as ``Clock.elapsed_s``."""
        self.places = ConnectionAdmission(connections_max, connections_per_address_max)
        self.outgoing = OutgoingBytes(loop, outgoing_bytes_max)
        self.unfinished_frames = UnfinishedFrames(loop, unfinished_bytes_max)
        self.intake = Intake(loop, clock, flush=self.flush)
        self.intake.on_stop = self._stop_reading
        self.intake.on_start = self._read_again
        #: For conditions that peers can cause at will.
        self.log_throttle = LogThrottle(loop.time, rest_s=_LOG_INTERVAL_S, together_max=_LOGGED_TOGETHER_MAX)
        #: Incremented by each search for idle peers; a read records the current value.
        self.generation = 0
        #: The broker stops: clients that know how to are asked to reconnect elsewhere.
        self.draining = False
        #: Called with the number of each peer that has ended, after its removal from ``connected``.
        self.on_gone: Callable[[int], None] = lambda number: None
        #: Called with each peer that reads again.
        self.on_drained: Callable[[Peer], None] = lambda peer: None
        self.connected: dict[int, Peer] = {}
        #: Admitted ones that have not begun, for their places.
        self._beginning: dict[int, Peer] = {}
        #: Number of requests that services keep until another one was served.
        self.waiting = 0
        self._loop = loop
        self._numbers = itertools.count(1)
        #: Peers with responses that the next ``flush`` writes.
        self.unwritten: list[Peer] = []
        self._paused: list[Peer] = []
        self._idle_handle: asyncio.TimerHandle | None = None

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it on the loop, after this time."""
        self._loop.call_later(seconds, call)

    def start(self) -> None:
        """Start to search for idle peers."""
        self._idle_handle = self._loop.call_later(IDLE_CHECK_MS / 1000, self._close_idle)

    # --- who comes, and goes

    def next_number(self) -> int:
        """The number of the next peer, for a door that has places of its own."""
        return next(self._numbers)

    def admit(self, host: str, make: Callable[[int], P]) -> P | Rejected:
        """``make`` the peer with this number for a socket accepted from ``host``, on one of the places of clients and operators."""
        places = self.places
        refusal = places.refusal(host)
        if refusal is None:
            peer = make(self.next_number())
            places.take(peer.number, host)
            self._beginning[peer.number] = peer
            return peer
        number = places.operators_place()
        in_its_place = self.connected.get(number or 0) or self._beginning.get(number or 0)
        if number is None or (number and (in_its_place is None or not in_its_place.can_go)):
            return Rejected(places.text_of(refusal, host))
        if self.log_throttle.is_due(refusal):
            whose = "all places" if refusal is Refusal.ALL else f"all places of {host}"
            text = "%s for clients are taken, %s: further ones may only send operators' commands"
            log.warning(text, whose, places.largest())
        if in_its_place is not None:
            places.free(in_its_place.number)
            in_its_place.abort()
        peer = make(self.next_number())
        places.take_operators(peer.number, host)
        self._beginning[peer.number] = peer
        return peer

    def opened(self, peer: Peer) -> None:
        """It is connected, and is read from if ``intake`` allows it."""
        self._beginning.pop(peer.number, None)
        self.connected[peer.number] = peer
        if self.intake.stops(peer):
            peer.stop_reading()

    def ended(self, peer: Peer) -> None:
        """It has ended, or could not be connected: free its memory and its place, and tell the services (``on_gone``)."""
        self.unfinished_frames.gone(peer.number)
        self.places.free(peer.number)
        self.outgoing.gone(peer.number)
        self._beginning.pop(peer.number, None)
        if self.connected.pop(peer.number, None) is not None:
            self.on_gone(peer.number)

    def push(self, number: int, what: object) -> bool:
        """Send a peer something that it did not request. False: it is gone, or does not read, or its door has no such push."""
        peer = self.connected.get(number)
        return peer is not None and not peer.is_full and peer.push(what)

    def _close_idle(self) -> None:
        """Close peers that were silent for 120 s: a live client sends a heartbeat every 30 s. Source: NettyRemotingServer."""
        self.generation += 1
        for peer in list(self.connected.values()):
            if peer.generation + _IDLE_CHECKS < self.generation:
                silent_s = limits.CONNECTION_IDLE_MS // 1000
                peer.log_throttled(log, logging.INFO, "silent", "it is closed: silent for more than %d s", silent_s)
                peer.transport.abort()
        self._idle_handle = self._loop.call_later(IDLE_CHECK_MS / 1000, self._close_idle)

    def close(self, *, abort: bool) -> None:
        """Close every connection: at once, or after its queued responses were sent."""
        self.draining = True
        if self._idle_handle is not None:
            self._idle_handle.cancel()
        self.unfinished_frames.stop()
        self.outgoing.stop()
        for peer in list(self.connected.values()):
            peer.transport.abort() if abort else peer.close()

    # --- responses

    def flush(self) -> None:
        """Write the queued responses, one write for each peer."""
        unwritten = self.unwritten
        if unwritten:
            self.unwritten = []
            for peer in unwritten:
                peer.flush()
        if self._paused and self.intake.work.backlog + self.waiting < BACKLOG_MAX // 2:
            paused, self._paused = self._paused, []
            for peer in paused:
                peer.resume()

    def released(self) -> None:
        """Replies were released: write them, and continue with waiting requests."""
        self.flush()
        self.intake.release_finished()

    def overloaded(self, peer: Peer) -> bool:
        """Whether too many replies wait for the disk. If so, do not read until ``flush`` finds half as many and calls ``Peer.resume``."""
        if self.intake.work.backlog + self.waiting < BACKLOG_MAX:
            return False
        self._paused.append(peer)
        return True

    def _stop_reading(self) -> None:
        for peer in self.connected.values():
            if self.intake.stops(peer):
                peer.stop_reading()

    def _read_again(self) -> None:
        for peer in list(self.connected.values()):
            peer.read_again()
