"""Limits the memory of partly received requests, over all connections, and decides which connections are read from near the limit.

One connection may have received a part of a frame of 16 MiB; thousands that do must not exhaust the machine's memory. Bytes are counted
when a read ends in the middle of a frame, which is rare. Complete frames are never counted or delayed: a client that sends its requests in
one piece notices nothing.

An unfinished frame is *admitted*, and read until it is complete, or its connection *waits*: it is not read from, and the kernel holds its
sender back. The limit has three parts, so that the sum is exact:

    shared, half or more      for admitted frames. A frame is admitted if its full size is at most a quarter of what is free here, both of
                              all and of the three quarters that one user or address may have (``shares``); that size is reserved for it.
    oldest waiting, one frame if no frame has this part, the one that has waited longest is admitted into it, whatever its size.
    waiting, a quarter        for what waiting connections have already sent. When space becomes free, the smallest frame that fits is
                              admitted first. If waiting connections hold more than this part, the one that has waited longest is closed;
                              this takes a large number of them, since each holds at most one read.

Small frames overtake large ones: an admitted frame left three times its size free, so a frame never waits for one that is larger by a third
or more. There is no deadlock: while any frame waits, one is admitted as the oldest waiting, and every admitted frame has its space.

An admitted frame that is not complete after ``ADMITTED_S``, while others wait, is closed. Time in which the broker did not read its
connection for another reason (``held_up``) does not count, to the accuracy of a check. No part of an unfinished request was executed, so
clients repeat it safely on a new connection. Decision 0025.
"""

import asyncio
import logging
from bisect import bisect_left, insort
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.shares import Shares, owner_of
from halfmq.model.share import share_of

log = logging.getLogger("halfmq.gateway")

#: Maximum time for an admitted frame while others wait, s. RocketMQ's clients abandon a request after 3 s.
ADMITTED_S: Final = 10.0
#: A frame gets at most 1 / this of what is free. With 2 a frame of 8 MiB could delay one of 4.
_PART: Final = 4
#: Users and addresses whose smallest waiting frames are looked at for one that fits. Of more than a few the share is hardly ever full.
_LOOKED_AT: Final = 64
#: Interval of the check for frames that take too long, s.
_CHECK_S: Final = 1.0
#: Minimum interval between two log lines with the number of closed connections, s.
_LOG_INTERVAL_S: Final = 10.0


class _Admitted(NamedTuple):
    peer: Peer
    owner: str
    size: int
    until_s: float


class UnfinishedFrames:
    """Limits the memory of partly received requests, over all connections."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, bytes_max: int, *, frame_bytes_max: int = limits.FRAME_BYTES_MAX
    ) -> None:
        """A quarter of ``bytes_max`` must hold the largest frame, with its length field."""
        assert bytes_max >= 4 * (frame_bytes_max + 4)
        self._loop = loop
        self._bytes_max = bytes_max
        self._waiting_max = bytes_max // 4
        self._shared_max = bytes_max - self._waiting_max - (frame_bytes_max + 4)
        #: By connection number: received bytes, never 0. Each is admitted or waits.
        self._held: dict[int, int] = {}
        #: Sum of ``_held``, and the share of waiting connections.
        self.bytes = 0
        self._waiting_held = 0
        #: By connection number. The size of each but ``_oldest_waiting`` counts in ``_shares``, which never exceed their maximum.
        self._admitted: dict[int, _Admitted] = {}
        self._shares = Shares("bytes for requests received in part")
        #: Connection number of the frame that was admitted as the oldest waiting one. Not None while any waits.
        self._oldest_waiting: int | None = None
        #: By connection number, in the order of waiting: connection, whose it is, and size of its frame.
        self._waiting: dict[int, tuple[Peer, str, int]] = {}
        #: (size, connection number) of those by owner, sorted; and the first of each, with its owner, sorted.
        self._by_size: dict[str, list[tuple[int, int]]] = {}
        self._smallest: list[tuple[int, int, str]] = []
        #: Runs while any connection waits.
        self._timer: asyncio.TimerHandle | None = None
        self._pressed_since = 0.0
        self._looked_at = 0.0
        self._log_timer: asyncio.TimerHandle | None = None
        self._closed = 0

    @property
    def waiting(self) -> int:
        """Number of connections that are not read from because of this."""
        return len(self._waiting)

    def note(self, peer: Peer, held: int, missing: int, *, another: bool) -> None:
        """A read of ``peer`` ended with ``held`` bytes of an unfinished frame, which lacks ``missing`` bytes.

        ``another``: this read completed a frame, so the bytes belong to another frame than before.
        """
        number, size = peer.number, held + missing
        admitted = self._admitted.get(number)
        # The length of a frame is in its first four bytes: a frame that proves larger must be admitted again.
        if held and admitted is not None and not another and size == admitted.size:
            self.bytes += held - self._held[number]
            self._held[number] = held
            return
        waited = number in self._waiting
        self._forget(number)
        self._admit_waiting()  # before the next frame of this connection, which came later
        if held:
            self._held[number] = held
            self.bytes += held
            owner = owner_of(peer)
            if not (self._fits(owner, size) or self._oldest_waiting is None):
                self._wait(peer, owner, size)
                return
            self._admit(peer, owner, size)
        if waited:
            peer.continue_reading()

    def gone(self, number: int) -> None:
        """The connection ended, and its bytes are free."""
        if number in self._held:
            self._forget(number)
            self._admit_waiting()

    def stop(self) -> None:
        """Close no connections from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._log_timer is not None:
            self._log_timer.cancel()
            self._log_closed()

    # --- who is read from

    def _fits(self, owner: str, size: int) -> bool:
        shares, most = self._shares, self._shared_max
        return size * _PART <= min(most - shares.taken, share_of(most) - shares.of(owner))

    def _admit(self, peer: Peer, owner: str, size: int) -> None:
        """Admit the frame in the shared part if it fits, else as the oldest waiting one, of which there is none then."""
        self._admitted[peer.number] = _Admitted(peer, owner, size, self._loop.time() + ADMITTED_S)
        if self._fits(owner, size):
            self._shares.add(owner, size)
        else:
            self._oldest_waiting = peer.number

    def _wait(self, peer: Peer, owner: str, size: int) -> None:
        self._waiting[peer.number] = peer, owner, size
        self._waiting_held += self._held[peer.number]
        mine = self._forget_smallest(owner)
        insort(mine, (size, peer.number))
        self._note_smallest(owner, mine)
        peer.wait()
        if self._timer is None:
            self._pressed_since = self._looked_at = self._loop.time()
            self._timer = self._loop.call_later(_CHECK_S, self._check)
        while self._waiting_held > self._waiting_max:
            self._reject(next(iter(self._waiting.values()))[0])

    def _admit_waiting(self) -> None:
        """Admit the smallest frames that fit, and the oldest waiting one."""
        while self._waiting:
            number = self._smallest_that_fits()
            if number is None:
                if self._oldest_waiting is not None:
                    return
                number = next(iter(self._waiting))
            peer, owner, size = self._leave(number)
            self._admit(peer, owner, size)
            peer.continue_reading()

    def _smallest_that_fits(self) -> int | None:
        """If a frame does not fit because of what is free, no larger one does; if the share of its owner is why, those of others may.
        One that should be found beyond the first few has its turn as the oldest waiting one.
        """
        free = self._shared_max - self._shares.taken
        for size, number, owner in self._smallest[:_LOOKED_AT]:
            if size * _PART > free:
                return None
            if self._fits(owner, size):
                return number
        return None

    def _leave(self, number: int) -> tuple[Peer, str, int]:
        peer, owner, size = self._waiting.pop(number)
        self._waiting_held -= self._held[number]
        mine = self._forget_smallest(owner)
        del mine[bisect_left(mine, (size, number))]
        self._note_smallest(owner, mine)
        return peer, owner, size

    def _forget_smallest(self, owner: str) -> list[tuple[int, int]]:
        """The waiting frames of this one, which the caller changes before ``_note_smallest``."""
        mine = self._by_size.pop(owner, [])
        if mine:
            del self._smallest[bisect_left(self._smallest, (*mine[0], owner))]
        return mine

    def _note_smallest(self, owner: str, mine: list[tuple[int, int]]) -> None:
        if mine:
            self._by_size[owner] = mine
            insort(self._smallest, (*mine[0], owner))

    # --- who is closed

    def _check(self) -> None:
        """Close admitted connections whose frame is not complete in time. Only while others wait."""
        self._timer = None
        if not self._waiting:
            return
        now = self._loop.time()
        unread_s, self._looked_at = now - self._looked_at, now
        late = []
        for number, admitted in self._admitted.items():
            until_s = max(admitted.until_s, self._pressed_since + ADMITTED_S)
            if admitted.peer.held_up:
                self._admitted[number] = admitted._replace(until_s=until_s + unread_s)
            elif until_s <= now:
                late.append(admitted)
        for admitted in late:
            if self._waiting:
                self._reject(admitted.peer)
                self._admit_waiting()
        if self._waiting:
            self._timer = self._loop.call_later(_CHECK_S, self._check)

    def _reject(self, peer: Peer) -> None:
        self._forget(peer.number)
        peer.reject()
        self._closed += 1
        if self._log_timer is None:
            self._log_closed()

    def _log_closed(self) -> None:
        """Log the number of closed connections, at once and then every ``_LOG_INTERVAL_S``."""
        self._log_timer = None
        if self._closed:
            log.warning(
                "unfinished requests take %d bytes, and %d connections wait to send the rest: %d closed "
                "(--unfinished-bytes-max is %d)", self.bytes, len(self._waiting), self._closed, self._bytes_max,
            )  # fmt: skip
            self._closed = 0
            self._log_timer = self._loop.call_later(_LOG_INTERVAL_S, self._log_closed)

    def _forget(self, number: int) -> None:
        admitted = self._admitted.pop(number, None)
        if number in self._waiting:
            self._leave(number)
        elif number == self._oldest_waiting:
            self._oldest_waiting = None
        elif admitted is not None:
            self._shares.add(admitted.owner, -admitted.size)
        self.bytes -= self._held.pop(number, 0)
