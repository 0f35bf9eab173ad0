"""Limits the memory of partly received requests, over all connections, and decides which connections are read from near the limit.

One connection may have received a part of a frame of 16 MiB; thousands that do must not exhaust the machine's memory. Bytes are counted when a
read ends in the middle of a frame, which is rare. Complete frames are never counted or delayed: a client that sends its requests in one
piece notices nothing.

An unfinished frame is *admitted*, and read until it is complete, or its connection *waits*: it is not read from, and the kernel holds its
sender back. The limit has three parts, so that the sum is exact:

    shared, half or more      for admitted frames. A frame is admitted if its full size is at most a quarter of what is free here; that
                              size is reserved for it.
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
from typing import Final, NamedTuple, Protocol

from halfmq import limits

log = logging.getLogger("halfmq.gateway")

#: Maximum time for an admitted frame while others wait, s. RocketMQ's clients abandon a request after 3 s.
ADMITTED_S: Final = 10.0
#: A frame gets at most 1 / this of what is free. With 2 a frame of 8 MiB could delay one of 4.
_PART: Final = 4
#: Interval of the check for frames that take too long, s.
_LOOK_S: Final = 1.0
#: Minimum interval between two log lines with the number of closed connections, s.
_SAY_EACH_S: Final = 10.0


class Reader(Protocol):
    """A connection."""

    number: int

    @property
    def held_up(self) -> bool:
        """Whether the broker does not read from it for another reason."""
        ...

    def wait(self) -> None:
        """Stop reading until ``continue_reading``."""
        ...

    def continue_reading(self) -> None:
        """Read again: its frame is admitted, or complete."""
        ...

    def reject(self) -> None:
        """Discard the unfinished frame, and close."""
        ...


class _Admitted(NamedTuple):
    reader: Reader
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
        #: By connection number. The size of each but ``_oldest_waiting`` counts in ``_shared``, which never exceeds its maximum.
        self._admitted: dict[int, _Admitted] = {}
        self._shared = 0
        #: Connection number of the frame that was admitted as the oldest waiting one. Not None while any waits.
        self._oldest_waiting: int | None = None
        #: By connection number, in the order of waiting: connection, and size of its frame.
        self._waiting: dict[int, tuple[Reader, int]] = {}
        #: (size, connection number) of those, sorted.
        self._by_size: list[tuple[int, int]] = []
        #: Runs while any connection waits.
        self._timer: asyncio.TimerHandle | None = None
        self._pressed_since = 0.0
        self._looked_at = 0.0
        self._say_timer: asyncio.TimerHandle | None = None
        self._closed = 0

    @property
    def waiting(self) -> int:
        """Number of connections that are not read from because of this."""
        return len(self._waiting)

    def note(self, reader: Reader, held: int, missing: int, *, another: bool) -> None:
        """A read of ``reader`` ended with ``held`` bytes of an unfinished frame, which lacks ``missing`` bytes.

        ``another``: this read completed a frame, so the bytes belong to another frame than before.
        """
        number, size = reader.number, held + missing
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
            if not (self._fits(size) or self._oldest_waiting is None):
                self._wait(reader, size)
                return
            self._admit(reader, size)
        if waited:
            reader.continue_reading()

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
        if self._say_timer is not None:
            self._say_timer.cancel()
            self._say()

    # --- who is read from

    def _fits(self, size: int) -> bool:
        return size * _PART <= self._shared_max - self._shared

    def _admit(self, reader: Reader, size: int) -> None:
        """Admit the frame in the shared part if it fits, else as the oldest waiting one, of which there is none then."""
        self._admitted[reader.number] = _Admitted(reader, size, self._loop.time() + ADMITTED_S)
        if self._fits(size):
            self._shared += size
        else:
            self._oldest_waiting = reader.number

    def _wait(self, reader: Reader, size: int) -> None:
        self._waiting[reader.number] = reader, size
        self._waiting_held += self._held[reader.number]
        insort(self._by_size, (size, reader.number))
        reader.wait()
        if self._timer is None:
            self._pressed_since = self._looked_at = self._loop.time()
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        while self._waiting_held > self._waiting_max:
            self._reject(next(iter(self._waiting.values()))[0])

    def _admit_waiting(self) -> None:
        """Admit the smallest frames that fit (if one does not, no larger one does), and the oldest waiting one."""
        while self._waiting:
            if self._fits(self._by_size[0][0]):
                number = self._by_size[0][1]
            elif self._oldest_waiting is None:
                number = next(iter(self._waiting))
            else:
                return
            reader, size = self._leave(number)
            self._admit(reader, size)
            reader.continue_reading()

    def _leave(self, number: int) -> tuple[Reader, int]:
        reader, size = self._waiting.pop(number)
        self._waiting_held -= self._held[number]
        del self._by_size[bisect_left(self._by_size, (size, number))]
        return reader, size

    # --- who is closed

    def _look(self) -> None:
        """Close admitted connections whose frame is not complete in time. Only while others wait."""
        self._timer = None
        if not self._waiting:
            return
        now = self._loop.time()
        unread_s, self._looked_at = now - self._looked_at, now
        late = []
        for number, admitted in self._admitted.items():
            until_s = max(admitted.until_s, self._pressed_since + ADMITTED_S)
            if admitted.reader.held_up:
                self._admitted[number] = admitted._replace(until_s=until_s + unread_s)
            elif until_s <= now:
                late.append(admitted)
        for admitted in late:
            if self._waiting:
                self._reject(admitted.reader)
                self._admit_waiting()
        if self._waiting:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _reject(self, reader: Reader) -> None:
        self._forget(reader.number)
        reader.reject()
        self._closed += 1
        if self._say_timer is None:
            self._say()

    def _say(self) -> None:
        """Log the number of closed connections, at once and then every ``_SAY_EACH_S``."""
        self._say_timer = None
        if self._closed:
            log.warning(
                "unfinished requests take %d bytes, and %d connections wait to send the rest: %d closed "
                "(--unfinished-bytes-max is %d)", self.bytes, len(self._waiting), self._closed, self._bytes_max,
            )  # fmt: skip
            self._closed = 0
            self._say_timer = self._loop.call_later(_SAY_EACH_S, self._say)

    def _forget(self, number: int) -> None:
        admitted = self._admitted.pop(number, None)
        if number in self._waiting:
            self._leave(number)
        elif number == self._oldest_waiting:
            self._oldest_waiting = None
        elif admitted is not None:
            self._shared -= admitted.size
        self.bytes -= self._held.pop(number, 0)
