"""What is counted on the way, because no state has it: requests, syncs, and transactions as they are settled.

Counters are plain integers, since they are on the path of every transaction; all of them together take less than 2 % of its instructions
(``tests/bench/test_instructions.py``). They begin with zero at each start, as counters of Prometheus may.
"""

from collections import Counter, _count_elements  # type: ignore[attr-defined]  # Counter.update without its checks
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from halfmq.core.state import SettledNow, Undecided
from halfmq.model.records import BatchRef, Committed, Decided, DecidedBy, RolledBack

_LENGTHS: Final = 65


class Scale(NamedTuple):
    """Buckets of a histogram: one for each power of two of ``unit_s``, so that the bucket of a time is the length of its whole units in
    bits, without a search. ``first`` and ``last``: exponents of the first and the last one.
    """

    unit_s: float
    first: int
    last: int

    @property
    def bounds_s(self) -> tuple[float, ...]:
        """Upper bounds of the buckets, s; what is above all of them is in none."""
        return tuple(2**power * self.unit_s for power in range(self.first, self.last + 1))


#: Of work in this process: from 64 us to 67 s.
US: Final = Scale(1e-6, 6, 26)
#: Of what waits for others: from 1 ms to 3 days.
MS: Final = Scale(1e-3, 0, 28)
#: Requests of a connection without a response for which it is noted when they began. Clients have hundreds at most; of more, as of requests
#: that never get one, the times are not counted.
BEGAN_MAX: Final = 4_096
#: Of frequent requests, sends and verdicts, one in this number is timed at most: timing each takes 3 % of a transaction.
TIMED_ONE_IN: Final = 16


class Histogram:
    """Times of one kind."""

    __slots__ = ("_units_of_s", "by_length", "scale", "sum_units")

    def __init__(self, scale: Scale = US) -> None:
        self.scale = scale
        self._units_of_s = 1 / scale.unit_s
        #: By the number of bits of the time in whole units.
        self.by_length = [0] * _LENGTHS
        self.sum_units = 0.0

    def add(self, seconds: float) -> None:
        """Count a time."""
        units = seconds * self._units_of_s
        self.by_length[min(int(units).bit_length(), _LENGTHS - 1)] += 1
        self.sum_units += units

    def add_whole(self, units: int, count: int) -> None:
        """Count ``count`` times of that many units each; less than 0 is 0."""
        units = max(units, 0)
        self.by_length[min(units.bit_length(), _LENGTHS - 1)] += count
        self.sum_units += units * count

    @property
    def sum_s(self) -> float:
        """The sum of all times, s."""
        return self.sum_units * self.scale.unit_s

    def cumulative(self) -> tuple[list[int], int]:
        """(number of times within each of ``Scale.bounds_s``, number of all)."""
        first, last = self.scale.first, self.scale.last
        counts = list(self.by_length)  # the sync thread may count meanwhile
        within = [sum(counts[: first + 1])]
        for length in range(first + 1, last + 1):
            within.append(within[-1] + counts[length])
        return within, sum(counts)


_count_in: Final[Callable[[dict[int, int], Iterable[int]], None]] = _count_elements
_PRODUCER: Final = int(DecidedBy.PRODUCER)


def _numbers(values: list[int]) -> Iterable[tuple[int, int]]:
    """Each of ``values``, and how often it is there."""
    first = values[0]
    if values.count(first) == len(values):  # what follows takes many times as long
        return ((first, len(values)),)
    numbers: dict[int, int] = {}
    _count_in(numbers, values)
    return numbers.items()


class RequestKind:
    """Responses to requests of one code."""

    __slots__ = ("others", "seconds", "succeeded", "time_next")

    def __init__(self) -> None:
        #: Responses with the code 0, which are most; and others, by their code.
        self.succeeded = 0
        self.others: dict[int, int] = {}
        self.seconds = Histogram()
        #: Called when ``TIMED_ONE_IN`` more responses with the code 0 have left.
        self.time_next: Callable[[], None] = lambda: None


#: Serves a request of a connection.
_Serve = Callable[[Any, Any], None]


class RequestCounts:
    """Requests by code and outcome, counted when their responses leave, and how long they took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds, at the highest resolution."""
        self._clock = clock
        #: By the request's code, of those that have a handler.
        self.kinds: dict[int, RequestKind] = {}
        #: All others.
        self.unknown = RequestKind()

    def timing(self, code: int, handler: _Serve, handlers: dict[int, _Serve], *, is_frequent: bool) -> _Serve:
        """``handler`` for requests with ``code``, which notes on their connection when they began.

        ``is_frequent``: only one in ``TIMED_ONE_IN``. It takes its own place in ``handlers`` for that one, so that the others cost nothing.
        """
        kind = self.kinds[code] = RequestKind()
        clock = self._clock

        def serve(connection: Any, request: Any) -> None:
            if is_frequent:
                handlers[code] = handler
            began = connection.began
            if len(began) < BEGAN_MAX and not request.is_oneway:
                began[request.opaque] = clock()
            handler(connection, request)

        if is_frequent:
            kind.time_next = lambda: handlers.__setitem__(code, serve)
        return serve

    def succeeded(self, codes: list[int]) -> None:
        """Responses with the code 0 left, to requests with these codes, at least one, each of which has a handler."""
        for code, count in _numbers(codes):
            kind = self.kinds[code]
            before = kind.succeeded
            kind.succeeded = before + count
            if before // TIMED_ONE_IN != kind.succeeded // TIMED_ONE_IN:
                kind.time_next()

    def failed(self, code: int, response: int) -> None:
        """A response with the code ``response``, which is not 0, left."""
        others = self.kinds.get(code, self.unknown).others
        others[int(response)] = others.get(response, 0) + 1

    def timed(self, code: int, began_s: float) -> None:
        """A response left whose request began then."""
        self.kinds.get(code, self.unknown).seconds.add(self._clock() - began_s)


class SyncTimes:
    """How long syncs take. Called by the sync thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: as in ``RequestCounts``."""
        self._clock = clock
        self._began_s = 0.0
        self.seconds = Histogram()

    def began(self) -> None:
        """A sync began."""
        self._began_s = self._clock()

    def ended(self) -> None:
        """It ended."""
        self.seconds.add(self._clock() - self._began_s)


class SettledCounts:
    """Transactions that were settled, the messages that their commits made visible, and how long they were undecided.

    They are counted when they are decided; what shows them is withheld until no crash can take that back.
    """

    def __init__(self) -> None:
        #: Transactions by ``DecidedBy``.
        self.committed = [0] * (max(DecidedBy) + 1)
        self.rolled_back = [0] * (max(DecidedBy) + 1)
        #: Time from the first half to the verdict, by the same. A transaction without a half has none.
        self.committed_after = [Histogram(MS) for _ in self.committed]
        self.rolled_back_after = [Histogram(MS) for _ in self.committed]
        #: Messages by topic id. A topic that was deleted stays until ``forget``.
        self.committed_messages: Counter[int] = Counter()

    def note(self, settled: SettledNow, at_ms: int) -> None:
        """Count what one batch settled, at broker time ``at_ms``.

        Nearly all are commits by producers, and of one turn nearly all are alike, so that they are counted together.
        """
        commits = settled.commits
        if commits:
            self.committed[_PRODUCER] += len(commits)
            messages = self.committed_messages
            for topic_id, count in _numbers([half.topic_id for one in commits for half in one.halves]):
                messages[topic_id] += count
            after = self.committed_after[_PRODUCER]
            for began_ms, count in _numbers([one.prepared_at_ms for one in commits]):
                after.add_whole(at_ms - began_ms, count)
        for transaction, record in settled.others:
            self._note(transaction, record, at_ms)

    def _note(self, transaction: Undecided | None, record: Committed | Decided | RolledBack, at_ms: int) -> None:
        decider = record.decided_by
        if isinstance(record, RolledBack):
            counts, after = self.rolled_back, self.rolled_back_after
        else:
            counts, after = self.committed, self.committed_after
            for ref in record.refs:
                self.committed_messages[ref.topic_id] += ref.messages if isinstance(ref, BatchRef) else 1
        counts[decider] += 1
        if transaction is not None:
            after[decider].add_whole(at_ms - transaction.prepared_at_ms, 1)

    def forget(self, exists: Callable[[int], bool]) -> None:
        """Forget topics that were deleted."""
        for topic_id in [topic_id for topic_id in self.committed_messages if not exists(topic_id)]:
            del self.committed_messages[topic_id]


class Counts:
    """All of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: as in ``RequestCounts``."""
        self.requests = RequestCounts(clock)
        self.syncs = SyncTimes(clock)
        self.settled = SettledCounts()
