"""Requests that have come in part, over all connections: a bound on their bytes, and who is read from near it.

One connection may hold a frame of 16 MiB in part; thousands that do must not take the machine's memory. What is held is
counted when a read ends in the middle of a frame, which few reads do. The bound has three parts, so the sum is exact:

    shared, half or more        a frame is admitted if its whole size is a quarter or less of what is free here. That much
                                is kept for it, and it is read from until it is whole.
    the elder's, one frame      whoever waits longest, whatever its size.
    waiting ones', a quarter    everybody else is not read from, and the kernel holds the sender back. The smallest that
                                fits is admitted first. If they hold too much, the one that waits longest is closed:
                                only a crowd comes here, since who waits holds no more than one read.

Small frames pass large ones: who was admitted left three times its size free, so frames that are larger by a third or
more never hold up a smaller one. No deadlock: while somebody waits there is an elder, and who is admitted has its room.
An admitted frame that is not whole after ``ADMITTED_S`` while others wait is closed; time in which the broker itself did
not read it (``held_up``) does not count, in steps of a look. Nothing of an unfinished request
was acted on, so sending it again is right: clients do, on a new connection.

Whole frames are never counted or held up: who sends its requests in one piece notices nothing. Decision 0025.
"""

import asyncio
import logging
from bisect import bisect_left, insort
from typing import Final, NamedTuple, Protocol

from halfmq import limits

log = logging.getLogger("halfmq.gateway")

#: How long an admitted frame may take while others wait, s. Stock clients give up on a request after 3 s.
ADMITTED_S: Final = 10.0
#: A frame takes no more than 1 / this of what is free. 2 would let a frame of 8 MiB hold up one of 4.
_PART: Final = 4
#: How often it is looked for those that took longer, s.
_LOOK_S: Final = 1.0
#: Closed connections are counted, and said this often at most, s.
_SAY_EACH_S: Final = 10.0


class Reader(Protocol):
    """A connection."""

    number: int

    @property
    def held_up(self) -> bool:
        """It is not read from, for a reason of the broker's that is not here."""
        ...

    def wait(self) -> None:
        """Read no more until ``continue_reading``."""
        ...

    def continue_reading(self) -> None:
        """Read again: its frame is admitted, or it has none any more."""
        ...

    def reject(self) -> None:
        """Let go of what is held, and close."""
        ...


class _Admitted(NamedTuple):
    reader: Reader
    size: int
    until_s: float


class UnfinishedFrames:
    """Bounds the memory of requests that have come in part, over all connections."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, bytes_max: int, *, frame_bytes_max: int = limits.FRAME_BYTES_MAX
    ) -> None:
        """``bytes_max``: at least ``least(frame_bytes_max)``."""
        assert bytes_max >= least(frame_bytes_max)
        self._loop = loop
        self._bytes_max = bytes_max
        self._waiting_max = bytes_max // 4
        self._shared_max = bytes_max - self._waiting_max - (frame_bytes_max + 4)
        #: By connection number: bytes held, never 0. Each is admitted or waits.
        self._held: dict[int, int] = {}
        #: Sum of ``_held``, and the part of it that waiting ones hold.
        self.bytes = 0
        self._waiting_held = 0
        #: By connection number. The size of each but the elder is in ``_shared``, which is never above its maximum.
        self._admitted: dict[int, _Admitted] = {}
        self._shared = 0
        #: Connection number. Somebody whenever anybody waits.
        self._elder: int | None = None
        #: By connection number, the one that waits longest at first: who, and the size of its frame.
        self._waiting: dict[int, tuple[Reader, int]] = {}
        #: (size, connection number) of those, sorted.
        self._by_size: list[tuple[int, int]] = []
        #: Runs while somebody waits, which began then.
        self._timer: asyncio.TimerHandle | None = None
        self._pressed_since = 0.0
        self._looked_at = 0.0
        self._say_timer: asyncio.TimerHandle | None = None
        self._closed = 0

    @property
    def waiting(self) -> int:
        """Connections that are not read from for that."""
        return len(self._waiting)

    def note(self, reader: Reader, held: int, missing: int, *, another: bool) -> None:
        """A read of ``reader`` ended with ``held`` bytes of an unfinished frame, which lacks ``missing`` bytes.

        ``another``: a frame was finished in this read, so that what is held is of another one than before.
        """
        number, size = reader.number, held + missing
        admitted = self._admitted.get(number)
        # The length of a frame stands in its first four bytes: a frame that turns out longer asks anew.
        if held and admitted is not None and not another and size == admitted.size:
            self.bytes += held - self._held[number]
            self._held[number] = held
            return
        waited = number in self._waiting
        self._forget(number)
        self._let_in()  # before the next frame of this one, which came later
        if held:
            self._held[number] = held
            self.bytes += held
            if not (self._fits(size) or self._elder is None):
                self._wait(reader, size)
                return
            self._admit(reader, size)
        if waited:
            reader.continue_reading()

    def gone(self, number: int) -> None:
        """The connection ended, and what it held went with it."""
        if number in self._held:
            self._forget(number)
            self._let_in()

    def stop(self) -> None:
        """Close nobody any more."""
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
        """In the shared part if it fits, else as the elder: nobody is."""
        self._admitted[reader.number] = _Admitted(reader, size, self._loop.time() + ADMITTED_S)
        if self._fits(size):
            self._shared += size
        else:
            self._elder = reader.number

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

    def _let_in(self) -> None:
        """Admit the smallest ones that fit (if one does not, no larger one does), and an elder."""
        while self._waiting:
            if self._fits(self._by_size[0][0]):
                number = self._by_size[0][1]
            elif self._elder is None:
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
        """Close admitted ones that are not whole in time. Only while others wait."""
        self._timer = None
        if not self._waiting:
            return
        now = self._loop.time()
        unread_s, self._looked_at = now - self._looked_at, now
        late = []
        for number, one in self._admitted.items():
            until_s = max(one.until_s, self._pressed_since + ADMITTED_S)
            if one.reader.held_up:
                self._admitted[number] = one._replace(until_s=until_s + unread_s)
            elif until_s <= now:
                late.append(one)
        for admitted in late:
            if self._waiting:
                self._reject(admitted.reader)
                self._let_in()
        if self._waiting:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _reject(self, reader: Reader) -> None:
        self._forget(reader.number)
        reader.reject()
        self._closed += 1
        if self._say_timer is None:
            self._say()

    def _say(self) -> None:
        """How many were closed since this was last said, at once and then each ``_SAY_EACH_S``."""
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
        elif number == self._elder:
            self._elder = None
        elif admitted is not None:
            self._shared -= admitted.size
        self.bytes -= self._held.pop(number, 0)


def least(frame_bytes_max: int = limits.FRAME_BYTES_MAX) -> int:
    """The smallest bound: a quarter of it takes the largest frame, with its length field."""
    return 4 * (frame_bytes_max + 4)
