"""Requests that have come in part, over all connections: a bound on their bytes, and who is read from near it.

One connection may hold a frame of 16 MiB in part; thousands that do must not take the machine's memory. What is held is
counted when a read ends in the middle of a frame, which few reads do.

    up to half of the bound         everybody is read from
    above                           a frame in part is admitted when what it lacks still fits: its room is kept, and it is
                                    read from until it is whole. Else its connection waits, unread, and the kernel holds the
                                    sender back. Who lacks least comes first.
    waiting ones hold too much      the one that waits longest is closed. Only a crowd comes here, since who waits holds no
                                    more than one read.

No deadlock: who waits and who stopped may hold three quarters together, so that any frame fits into the rest, and who was
admitted has its room. An eighth is kept from all but the first who is admitted, for those who have to wait. An admitted frame that is not whole after ``ADMITTED_S`` while others wait is closed. Nothing of an
unfinished request was acted on, so sending it again is right: clients do, on a new connection.

Whole frames are never counted or held up: who sends its requests in one piece notices nothing. Decision 0025.
"""

import asyncio
import logging
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, NamedTuple, Protocol

from halfmq import limits

log = logging.getLogger("halfmq.gateway")

#: How long an admitted frame may take while others wait, s. Stock clients give up on a request after 3 s.
ADMITTED_S: Final = 10.0
#: How often it is looked for those that took longer, s.
_LOOK_S: Final = 1.0
#: Closed connections are counted, and said this often at most, s.
_SAY_EACH_S: Final = 10.0


class Reader(Protocol):
    """A connection."""

    number: int

    def wait(self) -> None:
        """Read no more until ``go_on``."""
        ...

    def go_on(self) -> None: ...

    def turn_away(self) -> None:
        """Let go of what is held, and close."""
        ...


class _Admitted(NamedTuple):
    reader: Reader
    missing: int
    until_s: float


class UnfinishedFrames:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, bytes_max: int, *, frame_bytes_max: int = limits.FRAME_BYTES_MAX
    ) -> None:
        """``bytes_max``: at least ``least(frame_bytes_max)``."""
        assert bytes_max >= least(frame_bytes_max)
        self._loop = loop
        self._bytes_max = bytes_max
        self._free_max = bytes_max // 2
        #: What those may hold together that are not admitted. A whole frame fits beside it.
        self._stopped_max = bytes_max - bytes_max // 4
        #: Kept from who is admitted, so that who has to wait is not closed at once.
        self._waiting_room = bytes_max // 8
        #: By connection number: bytes held, never 0.
        self._held: dict[int, int] = {}
        #: Sum of ``_held``, and the part of it that admitted ones hold.
        self.bytes = 0
        self._admitted_held = 0
        #: By connection number, the one admitted first at first; and the sum of what they lack.
        self._admitted: dict[int, _Admitted] = {}
        self._reserved = 0
        #: By connection number, the one that waits longest at first: who, and what it lacks.
        self._waiting: dict[int, tuple[Reader, int]] = {}
        #: (what it lacks, a number that breaks ties, connection number); some wait no more.
        self._order: list[tuple[int, int, int]] = []
        self._ties = count()
        #: Runs while somebody waits, which began then.
        self._timer: asyncio.TimerHandle | None = None
        self._pressed_since = 0.0
        self._closed = 0
        self._said_at = -_SAY_EACH_S

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def note(self, reader: Reader, held: int, missing: int, *, another: bool) -> None:
        """A read of ``reader`` ended with ``held`` bytes of an unfinished frame, which lacks ``missing`` bytes.

        ``another``: a frame was finished in this read, so that what is held is of another one than before.
        """
        number = reader.number
        before = self._held.get(number, 0)
        admitted = self._admitted.pop(number, None)
        if admitted is not None:
            self._reserved -= admitted.missing
            self._admitted_held -= before
        self._hold(number, held)
        if held:
            # The length of a frame stands in its first four bytes: a frame that turns out longer asks anew.
            goes_on = admitted is not None and not another and missing <= admitted.missing
            if goes_on and admitted is not None:
                self._admit(reader, missing, admitted.until_s)
            elif number in self._waiting:
                self._wait(reader, missing)
            elif self.bytes > self._free_max:
                self._admit_or_wait(reader, missing)
            self._make_room()
        elif number in self._waiting:
            del self._waiting[number]
            reader.go_on()
        self._let_in()

    def gone(self, number: int) -> None:
        """The connection ended, and what it held went with it."""
        if number in self._held or number in self._waiting:
            self._forget(number)
            self._let_in()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- who is read from

    def _admit_or_wait(self, reader: Reader, missing: int) -> None:
        if self._fits(missing):
            self._admit(reader, missing, self._loop.time() + ADMITTED_S)
        else:
            self._wait(reader, missing)
            reader.wait()

    def _fits(self, missing: int) -> bool:
        limit = self._bytes_max - self._waiting_room if self._admitted else self._bytes_max
        return self.bytes + self._reserved + missing <= limit

    def _admit(self, reader: Reader, missing: int, until_s: float) -> None:
        self._admitted[reader.number] = _Admitted(reader, missing, until_s)
        self._reserved += missing
        self._admitted_held += self._held[reader.number]

    def _wait(self, reader: Reader, missing: int) -> None:
        self._waiting[reader.number] = reader, missing
        heappush(self._order, (missing, next(self._ties), reader.number))
        if self._timer is None:
            self._pressed_since = self._loop.time()
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _let_in(self) -> None:
        """Admit who waits and fits, the one that lacks least at first: if it does not fit, nobody does."""
        while self._waiting and self._order:
            missing, _, number = self._order[0]
            found = self._waiting.get(number)
            current = found is not None and found[1] == missing
            if current and not self._fits(missing):
                break
            heappop(self._order)
            if found is not None and current:
                del self._waiting[number]
                self._admit(found[0], missing, self._loop.time() + ADMITTED_S)
                found[0].go_on()
        if len(self._order) > 2 * len(self._waiting) + 64:
            self._order = [(lacks, next(self._ties), number) for number, (_, lacks) in self._waiting.items()]
            heapify(self._order)

    # --- who is closed

    def _make_room(self) -> None:
        while self._waiting and (
            self.bytes + self._reserved > self._bytes_max or self.bytes - self._admitted_held > self._stopped_max
        ):
            self._turn_away(next(iter(self._waiting.values()))[0])

    def _look(self) -> None:
        """Close admitted ones that are not whole in time. Only while others wait."""
        self._timer = None
        if not self._waiting:
            return
        now = self._loop.time()
        late = [one for one in self._admitted.values() if max(one.until_s, self._pressed_since + ADMITTED_S) <= now]
        for admitted in late:
            if self._waiting:
                self._turn_away(admitted.reader)
                self._let_in()
        if self._waiting:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _turn_away(self, reader: Reader) -> None:
        self._forget(reader.number)
        reader.turn_away()
        self._closed += 1
        now = self._loop.time()
        if now - self._said_at >= _SAY_EACH_S:
            log.warning(
                "unfinished requests hold %d bytes, and %d connections wait to send the rest of theirs: %d closed "
                "(--unfinished-bytes-max is %d)", self.bytes, len(self._waiting), self._closed, self._bytes_max,
            )  # fmt: skip
            self._said_at = now
            self._closed = 0

    # --- counting

    def _hold(self, number: int, held: int) -> None:
        self.bytes += held - self._held.pop(number, 0)
        if held:
            self._held[number] = held

    def _forget(self, number: int) -> None:
        admitted = self._admitted.pop(number, None)
        if admitted is not None:
            self._reserved -= admitted.missing
            self._admitted_held -= self._held.get(number, 0)
        self._waiting.pop(number, None)
        self._hold(number, 0)


def least(frame_bytes_max: int = limits.FRAME_BYTES_MAX) -> int:
    """The smallest bound that lets any frame in: a quarter of it takes the largest one, with its length field."""
    return 4 * (frame_bytes_max + 4)
