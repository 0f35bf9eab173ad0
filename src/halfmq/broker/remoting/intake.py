"""Flow control for received requests: their memory, whose turn it is, and which connections are not read from.

A request is *undecided* until the sequencer's turn, and then *held* until the log is durable up to it. Both take memory, so both are
counted, in bytes of frames plus ``REQUEST_COST`` for the objects of each request. A read is counted as a whole when it is handled, and
released when the sequencer has passed it (when it is decided, if it led to no command); single commands cost nothing.

    undecided, of one connection   ``INTAKE_TURN_BYTES_MAX``: the rest of its read waits for the next turn, and no more is read
    undecided, of all              ``INTAKE_ALL_TURN_BYTES_MAX``: the rest waits
    time, of one connection        ``INTAKE_TURN_S`` in one round of the loop: the rest of its read waits
    time, of all                   ``INTAKE_ALL_TURN_S`` in one round: the rest waits
    taken in, of one connection    ``INTAKE_CONNECTION_BYTES_MAX``: it waits until the disk has followed
    taken in, of all               ``INTAKE_BYTES_MAX``: until half of it is released, connections with more than
                                   ``INTAKE_SHARE_BYTES`` of it, including the whole of a partly received frame, are not read
                                   from; those with less still are. A quarter above the bound no connection is read from.

The sender of a single request thus waits for the current turn and for its own, in which every other connection has at most a share of
the first size, however much it sends. Each bound may be exceeded by one frame, since otherwise no large frame could be received; the
time by four frames of one read, which are handled without reading the clock.

Time includes the handling of a request and the expected time of its command in the sequencer. Waiting connections have their turn in the
order of used time. A connection that used little counts as at most one share behind the one that had the last turn (start-time
fair queueing): turns cannot be saved up. One cheap request therefore precedes all waiting expensive ones.

Clients that do not read their responses are handled in ``outgoing_bytes``. Decision 0030.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, Protocol

from halfmq import limits

#: Memory of the objects of one request in addition to its frame, bytes. A one-way send of 200 bytes takes about 2,000 until it is
#: durable; each request counts half of that, since large ones take less relative to their frame.
REQUEST_COST: Final = 1_024


class Work(Protocol):
    """What intake needs from the sequencer. Commands are numbered in the order of their submission, from 1."""

    @property
    def submitted(self) -> int:
        """Number of the newest command."""
        ...

    @property
    def decided(self) -> int:
        """All commands up to this one are decided."""
        ...

    @property
    def expected_s(self) -> float:
        """Expected time to decide the undecided commands, s; without sends and verdicts."""
        ...

    @property
    def released(self) -> int:
        """All commands up to this one are durable, and their replies were released."""
        ...


class IntakeConnection(Protocol):
    """A connection."""

    is_open: bool
    #: Counted here.
    undecided: int
    taken: int
    #: Cost of its received and unhandled frames; counted while it waits for its turn.
    later_bytes: int
    #: Used time, which determines whose turn it is, s.
    used_s: float
    #: Full size of a partly received frame, else 0.
    unfinished_bytes: int

    @property
    def awaits_turn(self) -> bool:
        """Whether it waits for its turn: between ``hold`` and ``take_more``."""
        ...

    def stop_reading(self) -> None:
        """Stop reading until ``read_again``."""
        ...

    def read_again(self) -> None:
        """Read, unless ``stops`` or another reason prevents it."""
        ...

    def hold(self) -> None:
        """It ``awaits_turn``: handle and read nothing until ``take_more``."""
        ...

    def take_more(self) -> None:
        """Its turn: handle as much as ``room`` allows."""
        ...


class _NoWork:
    submitted = decided = released = 0
    expected_s = 0.0


class Intake:
    """Limits how much of the received requests is handled at a time, for each connection and for all."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], *, flush: Callable[[], None]
    ) -> None:
        """``clock``: as ``Clock.elapsed_s``. ``flush``: called when waiting connections have handled some of their requests."""
        self._loop = loop
        self._flush = flush
        self.work: Work = _NoWork()
        self.clock = clock
        #: Connections with more than their share are not read from; ``full``: none is. The following two set it; see ``stops``.
        self.stopped = False
        self.full = False
        self.on_stop: Callable[[], None] = lambda: None
        self.on_start: Callable[[], None] = lambda: None
        #: Connections for which ``stops`` was true: they continue when they have little again.
        self._stopped_connections: dict[IntakeConnection, None] = {}
        #: Cost of undecided requests, of undecided and held ones, and of unhandled frames of waiting connections.
        self.undecided = 0
        self.taken = 0
        self.later = 0
        #: (number of its last command, connection, cost, whether it led to a command) of each read, in order; then the decided ones.
        self._undecided: deque[tuple[int, IntakeConnection, int, bool]] = deque()
        self._held: deque[tuple[int, IntakeConnection, int, bool]] = deque()
        #: Heap of (``used_s``, number, connection): the least used time first, then the order of arrival.
        self._waiting: list[tuple[float, int, IntakeConnection]] = []
        self._numbers = itertools.count()
        #: Time used by all in this round of the loop, s.
        self.spent_s = 0.0
        #: Connections wait, or one has just had its turn: used time is recorded for all.
        self._crowded = False
        #: ``used_s`` of the connection with the last turn, and the maximum of all.
        self._turn_s = self._most_s = 0.0
        #: Whether ``_go_on`` is scheduled.
        self._scheduled = False
        #: Whether ``_come_round`` is scheduled.
        self._settles = False

    # --- in

    def room(self, taker: IntakeConnection) -> int:
        """Cost that may be handled of this connection now; 0 or less: nothing."""
        if taker.taken >= limits.INTAKE_CONNECTION_BYTES_MAX:
            return 0
        if self.spent_s >= limits.INTAKE_ALL_TURN_S or self.work.expected_s >= limits.INTAKE_ALL_TURN_S:
            return 0
        return min(limits.INTAKE_TURN_BYTES_MAX - taker.undecided, limits.INTAKE_ALL_TURN_BYTES_MAX - self.undecided)

    def took(self, taker: IntakeConnection, cost: int, before: int, seconds: float = 0.0) -> None:
        """Requests of this connection were handled. ``before``: ``work.submitted`` before that. ``seconds``: the time used, including the
        expected time of their commands.

        Requests that led to no command count until the next round of the loop, so that they are limited per turn as well.
        """
        work = self.work
        last = work.submitted
        if last == before and not self._settles and last == work.decided:
            self._settles = True
            self._loop.call_soon(self._come_round)
        # Inlined ``_count`` and ``_look_at``, since it runs for every read.
        self._undecided.append((last, taker, cost, last != before))
        taker.undecided = undecided = taker.undecided + cost
        taker.taken = taken = taker.taken + cost
        self.undecided += cost
        self.taken += cost
        self.spent_s = spent_s = self.spent_s + seconds
        if spent_s >= limits.INTAKE_TURN_S or self._crowded:
            self._note_time(taker, seconds)
        if undecided >= limits.INTAKE_TURN_BYTES_MAX or taken >= limits.INTAKE_CONNECTION_BYTES_MAX:
            self.wait(taker)
        if self.stopped or self.taken + self.later >= limits.INTAKE_BYTES_MAX:
            self._stop_if_full(taker)

    def stops(self, taker: IntakeConnection) -> bool:
        """Whether this connection must not be read from. True: ``read_again`` is called when it may be."""
        if not self.stopped:
            return False
        if not self.full and taker.taken + taker.later_bytes + taker.unfinished_bytes <= limits.INTAKE_SHARE_BYTES:
            return False
        self._stopped_connections[taker] = None
        return True

    def _has_less(self, taker: IntakeConnection) -> None:
        if taker in self._stopped_connections and not self.stops(taker):
            del self._stopped_connections[taker]
            taker.read_again()

    def _note_time(self, taker: IntakeConnection, seconds: float) -> None:
        """Much time was used in this round, or in a few: end it with ``_go_on``.

        An expensive command does not put its connection behind all others by its full time: the expected time is an estimate, the maximum of its
        type, whichever connection caused it.
        """
        seconds = min(seconds, limits.INTAKE_ALL_TURN_S)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._go_on)
        late = seconds >= limits.INTAKE_TURN_S
        if late or self._crowded:
            taker.used_s = used_s = max(taker.used_s, self._turn_s - limits.INTAKE_TURN_S) + seconds
            self._most_s = max(self._most_s, used_s)
        if late:
            self.wait(taker)

    def owe(self, taker: IntakeConnection, cost: int) -> None:
        """A response of that many bytes is withheld until everything submitted by now is durable."""
        last = self.work.submitted
        if last != self.work.released:
            self._count(last, taker, cost)

    def keep(self, taker: IntakeConnection, cost: int) -> None:
        """Something that it sent is kept until ``give_back``."""
        taker.taken += cost
        self.taken += cost
        self._look_at(taker)

    def give_back(self, taker: IntakeConnection, cost: int) -> None:
        """``cost`` bytes that a connection kept are free again."""
        taker.taken -= cost
        self.taken -= cost
        self._has_less(taker)
        self._go_on_soon()

    def wait(self, taker: IntakeConnection) -> None:
        """Handle nothing more of this connection before its next turn."""
        if not taker.awaits_turn:
            taker.hold()
            self._crowded = True
            taker.used_s = max(taker.used_s, self._turn_s - limits.INTAKE_TURN_S)
            heappush(self._waiting, (taker.used_s, next(self._numbers), taker))
            if self.work.decided == self.work.submitted:  # no turn of the sequencer will trigger it
                self._go_on_soon()

    def leave(self, taker: IntakeConnection, later_bytes: int) -> None:
        """Cost of received frames that a connection has not handled while it waits for its turn; else 0."""
        self.later += later_bytes - taker.later_bytes
        taker.later_bytes = later_bytes
        self._stop_if_full(taker)
        if not taker.is_open:
            self._stopped_connections.pop(taker, None)
        elif self._stopped_connections:
            self._has_less(taker)

    def _count(self, last: int, taker: IntakeConnection, cost: int) -> None:
        self._undecided.append((last, taker, cost, True))
        taker.undecided += cost
        taker.taken += cost
        self.undecided += cost
        self.taken += cost
        self._look_at(taker)

    def _look_at(self, taker: IntakeConnection) -> None:
        if taker.undecided >= limits.INTAKE_TURN_BYTES_MAX or taker.taken >= limits.INTAKE_CONNECTION_BYTES_MAX:
            self.wait(taker)
        self._stop_if_full(taker)

    def _stop_if_full(self, taker: IntakeConnection) -> None:
        """Stop reading if necessary, after the cost of ``taker`` increased."""
        sum_ = self.taken + self.later
        if sum_ >= limits.INTAKE_BYTES_MAX and not self.stopped:
            self.stopped = True
            self.on_stop()
        if not self.stopped:
            return
        if sum_ >= limits.INTAKE_BYTES_MAX * 5 // 4 and not self.full:
            self.full = True
            self.on_stop()
        elif self.stops(taker):
            taker.stop_reading()

    def _come_round(self) -> None:
        self._settles = False
        self.settle()

    # --- out

    def turned(self) -> None:
        """Call it after each turn of the sequencer. Small amounts wait for the release that follows soon."""
        if self._waiting or self.stopped or self.undecided >= limits.INTAKE_TURN_BYTES_MAX // 2:
            self.settle()

    def settle(self) -> None:
        """Call it after each release: free what the sequencer has finished, and let waiting connections continue."""
        if self._undecided or self._held:
            self._settle()
        if self._waiting or self.stopped:
            self._go_on_soon()

    def _settle(self) -> None:
        undecided, held, work, stopped = self._undecided, self._held, self.work, self._stopped_connections
        decided, released = work.decided, work.released
        while undecided and undecided[0][0] <= decided:
            read = undecided.popleft()
            last, taker, cost, is_held = read
            taker.undecided -= cost
            self.undecided -= cost
            if is_held and last > released:
                held.append(read)
            else:
                taker.taken -= cost
                self.taken -= cost
                if stopped:
                    self._has_less(taker)
        while held and held[0][0] <= released:
            _, taker, cost, _ = held.popleft()
            taker.taken -= cost
            self.taken -= cost
            if stopped:
                self._has_less(taker)

    def _go_on_soon(self) -> None:
        if (self._waiting or self.stopped) and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Another round: each waiting connection has its turn, least used time first, until the limits of all are reached."""
        self._scheduled = False
        self.spent_s = 0.0
        self._settle()
        waiting, self._waiting = self._waiting, []
        no_space = []
        while waiting and self.undecided < limits.INTAKE_ALL_TURN_BYTES_MAX:
            if self.spent_s >= limits.INTAKE_ALL_TURN_S or self.work.expected_s >= limits.INTAKE_ALL_TURN_S:
                break  # in the first case ``_go_on`` runs again; in the second the sequencer's turn triggers it
            one = heappop(waiting)
            used_s, _, taker = one
            if not taker.is_open:
                continue
            if self.room(taker) > 0:
                self._turn_s = max(self._turn_s, used_s)
                taker.take_more()
            else:
                no_space.append(one)
        for one in (*no_space, *self._waiting):
            heappush(waiting, one)
        self._waiting = waiting
        if not waiting:
            self._crowded = False
            self._turn_s = self._most_s  # all are equal
        if self.stopped and self.taken + self.later <= limits.INTAKE_BYTES_MAX // 2:
            self.stopped = self.full = False
            self._stopped_connections.clear()
            self.on_start()
        self._flush()
