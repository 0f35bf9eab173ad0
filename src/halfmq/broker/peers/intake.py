"""Flow control for received requests: how much memory and time they may take, which connection is served next, and which are not read from.

Life of a request:

    waiting   received, and not handled: its connection waits for its turn
    pending   handled: its command is submitted, and the sequencer has not decided it
    held      decided: its reply is withheld until the log is durable up to the command

Each request costs the bytes of its frame plus ``REQUEST_COST`` for its objects. A *read* (what one read of a socket contained, or the
waiting frames handled in one turn) is counted as a whole when it is handled. It stops being pending when the sequencer has decided its last
command, and is freed when that is durable. A read without commands is freed when the commands before it are decided, in the next round of
the loop at the earliest.

    limit on                     constant                        at the limit
    pending, one connection      ``INTAKE_TURN_BYTES_MAX``       the rest of its read waits for its next turn; it is not read from
    pending, all                 ``INTAKE_ALL_TURN_BYTES_MAX``   the rest waits
    time, one connection         ``INTAKE_TURN_S`` a round       the rest of its read waits
    time, all                    ``INTAKE_ALL_TURN_S`` a round   the rest waits
    pending + held, one          ``INTAKE_CONNECTION_BYTES_MAX`` it waits until enough of its requests are durable
    all states, all connections  ``INTAKE_BYTES_MAX``            connections above ``INTAKE_SHARE_BYTES`` (which includes the full size of a
                                                                 partly received frame) are not read from until the sum has halved;
                                                                 a quarter above the limit, no connection is read from

The sender of a single request thus waits for at most the current turn and its own; in these, every other connection has at most
``INTAKE_TURN_BYTES_MAX``, however much it sends. Each byte limit may be exceeded by one frame, since a large frame could not be received
otherwise; the time limits may be exceeded by ``peer.FEW`` frames, which are handled without reading the clock.

Time is that of handling a request plus the expected time of its command in the sequencer. Connections that wait have their turns in the
order of used time (start-time fair queueing), so a cheap request precedes waiting expensive ones. A connection that used little counts as
at most one ``INTAKE_TURN_S`` behind the one that had the last turn: unused time cannot be saved up.

``outgoing_bytes`` limits the responses that clients do not read. Decision 0030.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from halfmq import limits
from halfmq.broker.peers.peer import Peer


class Work(Protocol):
    """What intake needs from the sequencer. Commands are numbered in the order of their submission, from 1."""

    #: Number of the newest command.
    submitted: int
    #: All commands up to this one are decided.
    decided: int
    #: All commands up to this one are durable, and their replies were released.
    released: int
    #: Number of replies decided but not released.
    backlog: int
    #: Expected time to decide the commands that are not decided yet, s; without sends and verdicts.
    expected_s: float


class _NoWork:
    submitted = decided = released = backlog = 0
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
        self._stopped_connections: dict[Peer, None] = {}
        #: Of all connections: cost of pending requests; of these and the held ones; of waiting frames.
        self.pending = 0
        self.taken = 0
        self.later = 0
        #: (number of its last command, connection, cost, whether it led to a command) of each read, in order: pending ones, then held ones.
        self._pending: deque[tuple[int, Peer, int, bool]] = deque()
        self._held: deque[tuple[int, Peer, int, bool]] = deque()
        #: Heap of (``used_s``, number, connection): the least used time first, then the order of arrival.
        self._waiting: list[tuple[float, int, Peer]] = []
        self._numbers = itertools.count()
        #: Time used by all in this round of the loop, s.
        self.spent_s = 0.0
        #: Connections wait, or one has just had its turn: used time is recorded for all.
        self._crowded = False
        #: ``used_s`` of the connection with the last turn, and the maximum of all.
        self._turn_s = self._max_used_s = 0.0
        #: Whether ``_go_on`` is scheduled.
        self._scheduled = False
        #: Whether ``_release_next_round`` is scheduled.
        self._release_scheduled = False

    # --- in

    def budget(self, taker: Peer) -> int:
        """Cost that may be handled of this connection now; 0 or less: nothing."""
        if taker.taken >= limits.INTAKE_CONNECTION_BYTES_MAX:
            return 0
        if self.spent_s >= limits.INTAKE_ALL_TURN_S or self.work.expected_s >= limits.INTAKE_ALL_TURN_S:
            return 0
        return min(limits.INTAKE_TURN_BYTES_MAX - taker.pending, limits.INTAKE_ALL_TURN_BYTES_MAX - self.pending)

    def record_read(self, taker: Peer, cost: int, before: int, seconds: float = 0.0) -> None:
        """Count a read of this connection, whose requests were handled. ``before``: ``work.submitted`` before that. ``seconds``: the time
        used, including the expected time of their commands.

        Requests that led to no command count until the next round of the loop, so that they are limited per turn as well.
        """
        work = self.work
        last = work.submitted
        if last == before and not self._release_scheduled and last == work.decided:
            self._release_scheduled = True
            self._loop.call_soon(self._release_next_round)
        # Inlined ``_count`` and ``_check_limits``, since it runs for every read.
        self._pending.append((last, taker, cost, last != before))
        taker.pending = pending = taker.pending + cost
        taker.taken = taken = taker.taken + cost
        self.pending += cost
        self.taken += cost
        self.spent_s = spent_s = self.spent_s + seconds
        if spent_s >= limits.INTAKE_TURN_S or self._crowded:
            self._note_time(taker, seconds)
        if pending >= limits.INTAKE_TURN_BYTES_MAX or taken >= limits.INTAKE_CONNECTION_BYTES_MAX:
            self.wait(taker)
        if self.stopped or self.taken + self.later >= limits.INTAKE_BYTES_MAX:
            self._stop_if_full(taker)

    def stops(self, taker: Peer) -> bool:
        """Whether this connection must not be read from. True: ``read_again`` is called when it may be."""
        if not self.stopped:
            return False
        if not taker.is_throttled:
            return False
        if not self.full and taker.taken + taker.later_bytes + taker.unfinished_bytes <= limits.INTAKE_SHARE_BYTES:
            return False
        self._stopped_connections[taker] = None
        return True

    def _resume_if_below_share(self, taker: Peer) -> None:
        if taker in self._stopped_connections and not self.stops(taker):
            del self._stopped_connections[taker]
            taker.read_again()

    def _note_time(self, taker: Peer, seconds: float) -> None:
        """Much time was used in this round, or in a few: end it with ``_go_on``.

        An expensive command does not put its connection behind all others by its full time: the expected time is an estimate, the maximum
        of its type, whichever connection caused it.
        """
        seconds = min(seconds, limits.INTAKE_ALL_TURN_S)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._go_on)
        late = seconds >= limits.INTAKE_TURN_S
        if late or self._crowded:
            taker.used_s = used_s = max(taker.used_s, self._turn_s - limits.INTAKE_TURN_S) + seconds
            self._max_used_s = max(self._max_used_s, used_s)
        if late:
            self.wait(taker)

    def count_withheld_response(self, taker: Peer, cost: int) -> None:
        """Count a response of ``cost`` bytes, which is withheld until everything submitted by now is durable."""
        last = self.work.submitted
        if last != self.work.released:
            self._count(last, taker, cost)

    def keep(self, taker: Peer, cost: int) -> None:
        """Something that it sent is kept until ``give_back``."""
        taker.taken += cost
        self.taken += cost
        self._check_limits(taker)

    def give_back(self, taker: Peer, cost: int) -> None:
        """``cost`` bytes that a connection kept are free again."""
        taker.taken -= cost
        self.taken -= cost
        self._resume_if_below_share(taker)
        self._go_on_soon()

    def wait(self, taker: Peer) -> None:
        """Handle nothing more of this connection before its next turn."""
        if not taker.awaits_turn:
            taker.wait_for_turn()
            self._crowded = True
            taker.used_s = max(taker.used_s, self._turn_s - limits.INTAKE_TURN_S)
            heappush(self._waiting, (taker.used_s, next(self._numbers), taker))
            if self.work.decided == self.work.submitted:  # no turn of the sequencer will trigger it
                self._go_on_soon()

    def set_waiting_cost(self, taker: Peer, later_bytes: int) -> None:
        """Set the cost of received frames that a connection has not handled while it waits for its turn; 0: it waits no longer."""
        self.later += later_bytes - taker.later_bytes
        taker.later_bytes = later_bytes
        self._stop_if_full(taker)
        if not taker.is_open:
            self._stopped_connections.pop(taker, None)
        elif self._stopped_connections:
            self._resume_if_below_share(taker)

    def _count(self, last: int, taker: Peer, cost: int) -> None:
        self._pending.append((last, taker, cost, True))
        taker.pending += cost
        taker.taken += cost
        self.pending += cost
        self.taken += cost
        self._check_limits(taker)

    def _check_limits(self, taker: Peer) -> None:
        if taker.pending >= limits.INTAKE_TURN_BYTES_MAX or taker.taken >= limits.INTAKE_CONNECTION_BYTES_MAX:
            self.wait(taker)
        self._stop_if_full(taker)

    def _stop_if_full(self, taker: Peer) -> None:
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

    def _release_next_round(self) -> None:
        """The round of the loop after a read that led to no command."""
        self._release_scheduled = False
        self.release_finished()

    # --- out

    def turned(self) -> None:
        """Call it after each turn of the sequencer. Small amounts wait for the release that follows soon."""
        if self._waiting or self.stopped or self.pending >= limits.INTAKE_TURN_BYTES_MAX // 2:
            self.release_finished()

    def release_finished(self) -> None:
        """Call it after each release: free what the sequencer has finished, and let waiting connections continue."""
        if self._pending or self._held:
            self._release_finished()
        if self._waiting or self.stopped:
            self._go_on_soon()

    def _release_finished(self) -> None:
        pending, held, work, stopped = self._pending, self._held, self.work, self._stopped_connections
        decided, released = work.decided, work.released
        while pending and pending[0][0] <= decided:
            read = pending.popleft()
            last, taker, cost, is_held = read
            taker.pending -= cost
            self.pending -= cost
            if is_held and last > released:
                held.append(read)
            else:
                taker.taken -= cost
                self.taken -= cost
                if stopped:
                    self._resume_if_below_share(taker)
        while held and held[0][0] <= released:
            _, taker, cost, _ = held.popleft()
            taker.taken -= cost
            self.taken -= cost
            if stopped:
                self._resume_if_below_share(taker)

    def _go_on_soon(self) -> None:
        if (self._waiting or self.stopped) and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Another round: each waiting connection has its turn, least used time first, until the limits of all are reached."""
        self._scheduled = False
        self.spent_s = 0.0
        self._release_finished()
        waiting, self._waiting = self._waiting, []
        no_space = []
        while waiting and self.pending < limits.INTAKE_ALL_TURN_BYTES_MAX:
            if self.spent_s >= limits.INTAKE_ALL_TURN_S or self.work.expected_s >= limits.INTAKE_ALL_TURN_S:
                break  # in the first case ``_go_on`` runs again; in the second the sequencer's turn triggers it
            entry = heappop(waiting)
            used_s, _, taker = entry
            if not taker.is_open:
                continue
            if self.budget(taker) > 0:
                self._turn_s = max(self._turn_s, used_s)
                taker.take_turn()
            else:
                no_space.append(entry)
        for entry in (*no_space, *self._waiting):
            heappush(waiting, entry)
        self._waiting = waiting
        if not waiting:
            self._crowded = False
            self._turn_s = self._max_used_s  # all are equal
        if self.stopped and self.taken + self.later <= limits.INTAKE_BYTES_MAX // 2:
            self.stopped = self.full = False
            self._stopped_connections.clear()
            self.on_start()
        self._flush()
