"""What is counted on the way, because no state has it: requests, syncs, and records as they become durable.

Counters are plain integers, since they are on the path of every transaction; all of them together take less than 2 % of its instructions
(``tests/bench/test_instructions.py``). They begin with zero at each start, as counters of Prometheus may.
"""

from collections import Counter, _count_elements  # type: ignore[attr-defined]  # Counter.update without its checks
from collections.abc import Callable, Iterable
from itertools import chain, compress, repeat
from operator import attrgetter, is_
from typing import Any, Final

from halfmq.model.records import Batch, Committed, Decided, DecidedBy, Record, RolledBack

#: A histogram has a bucket for each power of two of microseconds: the first one ends at 2**_FIRST us = 64 us, the last one at
#: 2**_LAST us = 67 s. So the bucket of a time is the length of its number in bits, without a search.
_FIRST: Final = 6
_LAST: Final = 26
#: Upper bounds of the buckets, s; what is above all of them is in none.
BOUNDS_S: Final = tuple(2**power / 1e6 for power in range(_FIRST, _LAST + 1))
_LENGTHS: Final = 65
#: Requests of a connection without a response for which it is noted when they began. Clients have hundreds at most; of more, as of requests
#: that never get one, the times are not counted.
BEGAN_MAX: Final = 4_096
#: Of frequent requests, sends and verdicts, one in this number is timed, a power of two: timing each takes 3 % of a transaction.
TIMED_ONE_IN: Final = 16
_US: Final = 1e6


class Histogram:
    """Times of one kind."""

    __slots__ = ("by_length", "sum_s")

    def __init__(self) -> None:
        #: By the number of bits of the time in whole us.
        self.by_length = [0] * _LENGTHS
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a time."""
        self.by_length[min(int(seconds * _US).bit_length(), _LENGTHS - 1)] += 1
        self.sum_s += seconds

    def cumulative(self) -> tuple[list[int], int]:
        """(number of times within each of ``BOUNDS_S``, number of all)."""
        counts = list(self.by_length)  # the sync thread may count meanwhile
        within = [sum(counts[: _FIRST + 1])]
        for length in range(_FIRST + 1, _LAST + 1):
            within.append(within[-1] + counts[length])
        return within, sum(counts)


_count_in: Final[Callable[[Counter[int], Iterable[int]], None]] = _count_elements
_refs_of: Final = attrgetter("refs")
_topic_of: Final = attrgetter("topic_id")
_decider_of: Final = attrgetter("decided_by")
_PRODUCER: Final = DecidedBy.PRODUCER
#: The other verdicts.
_OTHERS: Final = frozenset({RolledBack, Decided})


class RequestKind:
    """Responses to requests of one code."""

    __slots__ = ("others", "seconds", "succeeded", "time_next")

    def __init__(self) -> None:
        #: Responses with the code 0, which are most; and others, by their code.
        self.succeeded = 0
        self.others: dict[int, int] = {}
        self.seconds = Histogram()
        #: Called at each ``TIMED_ONE_IN``-th response with the code 0.
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


class RecordCounts:
    """Verdicts, and messages that they made visible, of records that no crash can take back."""

    def __init__(self) -> None:
        #: Transactions by ``DecidedBy``.
        self.committed = [0] * (max(DecidedBy) + 1)
        self.rolled_back = [0] * (max(DecidedBy) + 1)
        #: Messages by topic id. A topic that was deleted stays until ``forget``.
        self.committed_messages: Counter[int] = Counter()

    def note(self, batches: Iterable[Batch]) -> None:
        """Count the records of ``batches``, which are durable.

        Nearly all are halves and the commits of their producers: those are counted together, by loops in C. A loop here takes three times
        as many instructions, 1.5 % of a transaction.
        """
        for batch in batches:
            records = batch.records
            kinds = list(map(type, records))
            present = set(kinds)
            if Committed in present:
                committed = (
                    records if len(present) == 1 else list(compress(records, map(is_, kinds, repeat(Committed))))
                )
                _count_in(self.committed_messages, map(_topic_of, chain.from_iterable(map(_refs_of, committed))))
                deciders = list(map(_decider_of, committed))
                of_producers = deciders.count(_PRODUCER)
                self.committed[_PRODUCER] += of_producers
                if of_producers < len(deciders):
                    for decider in deciders:
                        if decider != _PRODUCER:
                            self.committed[decider] += 1
            if not _OTHERS.isdisjoint(present):
                for record in records:
                    self._other(record)

    def _other(self, record: Record) -> None:
        if isinstance(record, RolledBack):
            self.rolled_back[record.decided_by] += 1
        elif isinstance(record, Decided):
            self.committed[record.decided_by] += 1
            for ref in record.refs:
                self.committed_messages[ref.topic_id] += ref.messages

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
        self.records = RecordCounts()
