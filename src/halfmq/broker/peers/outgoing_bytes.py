"""Limits the bytes of responses that clients do not read, over all connections, and decides which connections are closed.

A connection whose transport is *full* is not read from, and nothing that can wait is sent to it, but it keeps the responses to earlier
requests: up to a pull's response, and requests of the same read. Thousands of these must not exhaust the machine's memory. Only full
connections are counted, when something is written to them; each of the others keeps at most 64 KiB, which its client's next read empties.

    below half of the limit   a client may take its time
    above                     pulls get at most ``services.pulls.SMALL_PULL_BYTES``, one that read nothing for ``STALLED_S`` is closed
    at the limit              pulls find nothing new for a moment, and the client that has read nothing for longest is closed at once,
                              the one with most bytes among equals, until 7/8 of the limit

If one user, or one address, has more than three quarters of the limit, its connections are closed first. Otherwise a client that reads is
never among the first: reading ``PROGRESS_BYTES`` restarts its time. Unread responses are requested again on another connection. Decision
0030.
"""

import asyncio
import logging
from typing import Final

from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.shares import owner_of
from halfmq.model.share import share_of
from halfmq.runtime.log_throttle import LogThrottle

log = logging.getLogger("halfmq.gateway")

#: Maximum time without reading near the limit, s. Equal to that of an unfinished request.
STALLED_S: Final = 10.0
#: Fewer bytes between two checks do not count as reading, so that nobody can stay by reading single bytes.
PROGRESS_BYTES: Final = 4_096
_CHECK_S: Final = 1.0
_LOG_INTERVAL_S: Final = 10.0


class _Full:
    """A connection whose client does not read: its transport is full."""

    __slots__ = ("bytes", "left", "owner", "peer", "since_s", "until")

    def __init__(self, peer: Peer, since_s: float) -> None:
        self.peer = peer
        #: Whose it is, when some are closed.
        self.owner = ""
        #: At the last check: bytes kept, and bytes to read.
        self.bytes = 0
        self.left = 0
        #: Time of its last progress. It has made progress when ``left`` falls to ``until``.
        self.since_s = since_s
        self.until = 0


class OutgoingBytes:
    """Limits the responses that clients do not read, over all connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int) -> None:
        self._loop = loop
        self._bytes_max = bytes_max
        self._full: dict[int, _Full] = {}
        #: Sum over ``_full``, at their last checks.
        self.bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closing_soon = False
        self._log_throttle = LogThrottle(loop.time, rest_s=_LOG_INTERVAL_S)

    @property
    def near_limit(self) -> bool:
        """Whether responses should be small now."""
        return self.bytes * 2 > self._bytes_max

    @property
    def over_limit(self) -> bool:
        """Whether a response that can wait should wait: other connections will be closed in a moment."""
        return self.bytes > self._bytes_max

    def note(self, peer: Peer, written: int) -> None:
        """This connection is full; that many bytes were written to it now, or requests of it wait."""
        full = self._full.get(peer.number)
        if full is None:
            full = self._full[peer.number] = _Full(peer, self._loop.time())
            if self._timer is None:
                self._timer = self._loop.call_later(_CHECK_S, self._check)
            self._measure(full)
            full.until = full.left - PROGRESS_BYTES
        else:
            self._measure(full)
            full.until += written
        if self.bytes > self._bytes_max and not self._closing_soon:
            self._closing_soon = True  # not here: its transport is in a write
            self._loop.call_soon(self._close_some)

    def gone(self, number: int) -> None:
        """The client reads again, or the connection has ended."""
        full = self._full.pop(number, None)
        if full is not None:
            self.bytes -= full.bytes

    def stop(self) -> None:
        """Close no connections from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- who is closed

    def _measure(self, full: _Full) -> None:
        kept, full.left = full.peer.outgoing_bytes()
        self.bytes += kept - full.bytes
        full.bytes = kept

    def _measure_all(self) -> None:
        now = self._loop.time()
        for full in self._full.values():
            self._measure(full)
            if full.left <= full.until:
                full.since_s = now
                full.until = full.left - PROGRESS_BYTES

    def _check(self) -> None:
        """Called once a second while any connection is full."""
        self._timer = None
        if not self._full:
            return
        self._measure_all()
        if self.near_limit:
            late_s = self._loop.time() - STALLED_S
            for full in [full for full in self._full.values() if full.since_s <= late_s]:
                self._close(full)
        self._timer = self._loop.call_later(_CHECK_S, self._check)

    def _close_some(self) -> None:
        self._closing_soon = False
        self._measure_all()
        if self.bytes > self._bytes_max:
            of_owner: dict[str, int] = {}
            for full in self._full.values():
                full.owner = owner_of(full.peer)
                of_owner[full.owner] = of_owner.get(full.owner, 0) + full.bytes
            flooding = {owner for owner, amount in of_owner.items() if amount > share_of(self._bytes_max)}
            for full in sorted(
                self._full.values(), key=lambda full: (full.owner not in flooding, full.since_s, -full.bytes)
            ):
                if self.bytes <= self._bytes_max - self._bytes_max // 8:
                    break
                self._close(full)

    def _close(self, full: _Full) -> None:
        self.gone(full.peer.number)
        full.peer.abort()
        closed = self._log_throttle.times("closed")
        if closed:
            log.warning(
                "unread responses of %d clients take %d bytes: the %d clients that read nothing for longest were closed "
                "(--outgoing-bytes-max is %d)", len(self._full), self.bytes, closed, self._bytes_max,
            )  # fmt: skip
