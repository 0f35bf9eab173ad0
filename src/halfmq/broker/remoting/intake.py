"""Requests that were taken in and are not done with: their bytes, whose turn it is, and who is not read from meanwhile.

A request is *undecided* until the sequencer's turn, and then *held* until the log is durable up to it. Both take memory, so both
are counted, in bytes of frames and ``REQUEST_COST`` for the objects that each one becomes. Counted is a whole read, when it
is handled, and given back when the sequencer has passed it (when it is decided, if no command came of it); nothing is done for
each command.

    undecided, of one connection   ``INTAKE_TURN_BYTES_MAX``: the rest of its read waits for the next turn, and no more is read
    undecided, of all              ``INTAKE_ALL_TURN_BYTES_MAX``: the rest waits
    time, of one connection        ``INTAKE_TURN_S`` in one round of the loop: the rest of its read waits
    time, of all                   ``INTAKE_ALL_TURN_S`` in one round: the rest waits
    taken in, of one connection    ``INTAKE_CONNECTION_BYTES_MAX``: it waits until the disk has followed
    taken in, of all               ``INTAKE_BYTES_MAX``: until half of it is done with, nobody is read from who has more than
                                   ``INTAKE_SHARE_BYTES`` of it, with the whole of a frame that came in part: who has little
                                   may still ask. A quarter above the bound nobody at all is read from.

So whoever sends one request waits for the turn that runs and for its own, in which everybody else has a part of the first
size at most, however much they send. Each bound may be passed by one frame, or nothing large could ever come in; time by
four that came together, which are handled without a look at the clock in between.

Time counts what it takes to handle a request, and what the sequencer is expected to need for its command. Who waits has its turn
in the order of the time used, where whoever has used little is taken to be one part behind the one that had the last turn,
not more (start-time fair queueing): nobody saves up turns. So one cheap request goes before all that costly ones still
have to do.

A peer that does not take its answers is not waited for here: see ``outgoing_bytes``. Decision 0030.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, Protocol

from halfmq import limits

#: Bytes that the objects of one request take beside its frame. A one-way send of 200 bytes takes about 2,000 until it is
#: durable; half is counted for each, since large ones take less beside their frame.
REQUEST_COST: Final = 1_024


class Work(Protocol):
    """What is asked of the sequencer. Commands are numbered in the order in which they were submitted, from 1."""

    @property
    def submitted(self) -> int:
        """The number of the newest command."""
        ...

    @property
    def decided(self) -> int:
        """All commands up to this one are decided."""
        ...

    @property
    def expected_s(self) -> float:
        """How long it will take to decide what is not decided, about; sends and verdicts are not counted."""
        ...

    @property
    def released(self) -> int:
        """All up to this one are durable, and their answers have left."""
        ...


class IntakeConnection(Protocol):
    """A connection."""

    is_open: bool
    #: Counted here.
    undecided: int
    taken: int
    #: It waits for its turn.
    waits: bool
    #: Cost of what it has read and not handled; counted while it waits for its turn.
    later_bytes: int
    #: Time that it has used, of the kind that decides whose turn it is, s.
    used_s: float
    #: Of a frame that came in part: the whole of it, else 0.
    unfinished_bytes: int

    def stop_reading(self) -> None:
        """Until ``read_again``."""
        ...

    def read_again(self) -> None:
        """Read, unless ``stops`` or something else is against it."""
        ...

    def hold(self) -> None:
        """``waits``, and handle and read nothing more until ``take_more``."""
        ...

    def take_more(self) -> None:
        """Its turn: handle as much as there is ``room`` for."""
        ...


class _NoWork:
    submitted = decided = released = 0
    expected_s = 0.0


class Intake:
    """How much of what clients send is taken at a time, for each connection and for all."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], *, flush: Callable[[], None]
    ) -> None:
        """``clock``: as ``Clock.elapsed_s``. ``flush``: called when connections that waited have handled some of their requests."""
        self._loop = loop
        self._flush = flush
        self.work: Work = _NoWork()
        self.clock = clock
        #: Nobody is read from who has more than its share; ``full``: nobody is. The next two make it so: look at ``stops``.
        self.stopped = False
        self.full = False
        self.on_stop: Callable[[], None] = lambda: None
        self.on_start: Callable[[], None] = lambda: None
        #: Who ``stops`` was said of: they go on when they have little again.
        self._stopped_connections: dict[IntakeConnection, None] = {}
        #: Cost of what is undecided, of that and what is held, and of what waits for its turn unhandled.
        self.undecided = 0
        self.taken = 0
        self.later = 0
        #: (number of its last command, connection, cost, whether a command came of it) of each read, in their order; then the
        #: decided ones.
        self._undecided: deque[tuple[int, IntakeConnection, int, bool]] = deque()
        self._held: deque[tuple[int, IntakeConnection, int, bool]] = deque()
        #: A heap of (``used_s``, number, connection): the least used has its turn first, then who came first.
        self._waiting: list[tuple[float, int, IntakeConnection]] = []
        self._numbers = itertools.count()
        #: Time of all in this round of the loop, s.
        self.spent_s = 0.0
        #: Somebody waits, or has just had its turn: what everybody uses is noted.
        self._crowded = False
        #: ``used_s`` of whoever had the last turn, and the most that anybody has.
        self._turn_s = self._most_s = 0.0
        #: ``_go_on`` is on its way.
        self._scheduled = False
        #: ``_come_round`` is on its way.
        self._settles = False

    # --- in

    def room(self, taker: IntakeConnection) -> int:
        """What may be handled of this connection now; 0 or less: nothing."""
        if taker.taken >= limits.INTAKE_CONNECTION_BYTES_MAX:
            return 0
        if self.spent_s >= limits.INTAKE_ALL_TURN_S or self.work.expected_s >= limits.INTAKE_ALL_TURN_S:
            return 0
        return min(limits.INTAKE_TURN_BYTES_MAX - taker.undecided, limits.INTAKE_ALL_TURN_BYTES_MAX - self.undecided)

    def took(self, taker: IntakeConnection, cost: int, before: int, seconds: float = 0.0) -> None:
        """Requests of this connection were handled. ``before``: ``work.submitted`` before that. ``seconds``: what that took,
        with what is expected for their commands.

        Where none became a command they are counted until the loop has come round, so that these have turns too.
        """
        work = self.work
        last = work.submitted
        if last == before and not self._settles and last == work.decided:
            self._settles = True
            self._loop.call_soon(self._come_round)
        # As in ``_count`` and ``_look_at``: this is for every read.
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
        """Whether this one is not to be read from. True: ``read_again`` is called when it may be."""
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
        """Much was spent in this round, or in a few: it ends with ``_go_on``.

        Who had a costly command is not behind everybody for as long as that took: what it was expected to take is an estimate,
        of the longest of its kind, whoever sent that.
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
        """An answer of that many bytes is held until all that is submitted by now is durable."""
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
        """Nothing more of this connection before its next turn."""
        if not taker.waits:
            taker.hold()
            self._crowded = True
            taker.used_s = max(taker.used_s, self._turn_s - limits.INTAKE_TURN_S)
            heappush(self._waiting, (taker.used_s, next(self._numbers), taker))
            if self.work.decided == self.work.submitted:  # no turn of the sequencer will come that says so
                self._go_on_soon()

    def leave(self, taker: IntakeConnection, later_bytes: int) -> None:
        """So much of what a connection has read is not handled yet, while it waits for its turn; else 0."""
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
        """``taker`` has more than before."""
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
        """A turn of the sequencer is over. Call it behind each; the release that follows soon settles what is little."""
        if self._waiting or self.stopped or self.undecided >= limits.INTAKE_TURN_BYTES_MAX // 2:
            self.settle()

    def settle(self) -> None:
        """The sequencer went on: give back what it is done with, and let those go on that wait. Call it behind each release."""
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
        """Another round. Each that waits has its turn, who used least first, until that of all is full."""
        self._scheduled = False
        self.spent_s = 0.0
        self._settle()
        waiting, self._waiting = self._waiting, []
        no_space = []
        while waiting and self.undecided < limits.INTAKE_ALL_TURN_BYTES_MAX:
            if self.spent_s >= limits.INTAKE_ALL_TURN_S or self.work.expected_s >= limits.INTAKE_ALL_TURN_S:
                break  # the former: ``_go_on`` comes again; the latter: behind the sequencer's turn
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
            self._turn_s = self._most_s  # all are even
        if self.stopped and self.taken + self.later <= limits.INTAKE_BYTES_MAX // 2:
            self.stopped = self.full = False
            self._stopped_connections.clear()
            self.on_start()
        self._flush()
