"""Answers that peers do not take, over all connections: a bound on their bytes, and who is closed at it.

A connection whose transport is *full* is not read from and is sent nothing that can wait, but keeps what it asked for
before: up to a pull's answer, and requests that came in the same read. Thousands of these must not take the machine's
memory. Only full ones are counted, when something is written to them; each of the others keeps 64 KiB at most, which its
peer's next read empties.

    below half of the bound   a peer may take its time
    above                     pulls get ``services.pulls.SMALL_PULL_BYTES`` at most, and who took nothing for ``STALLED_S`` is closed
    at the bound              pulls find nothing new for a moment, and who took nothing for longest is closed at once, of several the one with most, down to 7/8

Who reads is never among the first: taking ``PROGRESS_BYTES`` counts as having begun anew. What was not taken is asked for
again on another connection. Decision 0030.
"""

import asyncio
import logging
from typing import Final, Protocol

from halfmq import limits

log = logging.getLogger("halfmq.gateway")

#: How long a peer may take nothing while the bound is near, s. As an unfinished request.
STALLED_S: Final = 10.0
#: Less than this in a look is no reading: somebody takes single bytes in order to stay.
PROGRESS_BYTES: Final = 4_096
_LOOK_S: Final = 1.0
_SAY_EACH_S: Final = 10.0


class Peer(Protocol):
    """A connection."""

    number: int

    def outgoing_bytes(self) -> tuple[int, int]:
        """What it keeps for its peer, with requests that wait until that is taken; and what the peer has yet to take."""
        ...

    def cut(self) -> None:
        """Close it, and let go of what was not taken."""
        ...


class _Full:
    """A connection that is full."""

    __slots__ = ("bytes", "left", "peer", "since_s", "until")

    def __init__(self, peer: Peer, since_s: float) -> None:
        self.peer = peer
        #: As of the last time that it was seen: what it keeps, and what is to be taken.
        self.bytes = 0
        self.left = 0
        #: It began to take nothing then. At ``until`` bytes to be taken it has taken something.
        self.since_s = since_s
        self.until = 0


class OutgoingBytes:
    """Bounds the answers that clients do not take, over all connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int) -> None:
        self._loop = loop
        self._bytes_max = bytes_max
        self._full: dict[int, _Full] = {}
        #: Sum over ``_full``, as of the last time each was seen.
        self.bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closing_soon = False
        self._closed = 0
        self._said_at = -_SAY_EACH_S

    @property
    def is_near(self) -> bool:
        """Whether answers should be small now."""
        return self.bytes * 2 > self._bytes_max

    @property
    def is_over(self) -> bool:
        """Whether an answer that can wait should wait: in a moment others are closed, and there is room."""
        return self.bytes > self._bytes_max

    def note(self, peer: Peer, written: int) -> None:
        """This connection is full; so many bytes were written to it now, or requests of it wait."""
        full = self._full.get(peer.number)
        if full is None:
            full = self._full[peer.number] = _Full(peer, self._loop.time())
            if self._timer is None:
                self._timer = self._loop.call_later(_LOOK_S, self._look)
            self._see(full)
            full.until = full.left - PROGRESS_BYTES
        else:
            self._see(full)
            full.until += written
        if self.bytes > self._bytes_max and not self._closing_soon:
            self._closing_soon = True  # not here: its transport is just writing
            self._loop.call_soon(self._close_some)

    def gone(self, number: int) -> None:
        """It takes answers again, or has ended."""
        full = self._full.pop(number, None)
        if full is not None:
            self.bytes -= full.bytes

    def stop(self) -> None:
        """Close nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- who is closed

    def _see(self, full: _Full) -> None:
        kept, full.left = full.peer.outgoing_bytes()
        self.bytes += kept - full.bytes
        full.bytes = kept

    def _see_all(self) -> None:
        now = self._loop.time()
        for full in self._full.values():
            self._see(full)
            if full.left <= full.until:
                full.since_s = now
                full.until = full.left - PROGRESS_BYTES

    def _look(self) -> None:
        """Once a second, while anybody is full."""
        self._timer = None
        if not self._full:
            return
        self._see_all()
        if self.is_near:
            late_s = self._loop.time() - STALLED_S
            for full in [full for full in self._full.values() if full.since_s <= late_s]:
                self._close(full)
        self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _close_some(self) -> None:
        self._closing_soon = False
        self._see_all()
        if self.bytes > self._bytes_max:
            for full in sorted(self._full.values(), key=lambda full: (full.since_s, -full.bytes)):
                if self.bytes <= self._bytes_max - self._bytes_max // 8:
                    break
                self._close(full)

    def _close(self, full: _Full) -> None:
        self.gone(full.peer.number)
        full.peer.cut()
        self._closed += 1
        now = self._loop.time()
        if now - self._said_at >= _SAY_EACH_S:
            log.warning(
                "unread responses of %d clients take %d bytes: the %d clients that read nothing for longest were closed "
                "(--outgoing-bytes-max is %d)", len(self._full), self.bytes, self._closed, self._bytes_max,
            )  # fmt: skip
            self._said_at = now
            self._closed = 0


def least() -> int:
    """The smallest bound: the largest answer, twice over, does not close its own reader."""
    return 4 * limits.FRAME_BYTES_MAX
