"""Traffic since the broker's start: statistics for administrators, which no decision uses.

Messages that became visible are counted with their queue entries, messages given to consumers by the pulls; both counters only increase.
Sampling them every five seconds gives the rates. Messages given to each group are counted in spans of ten seconds, minutes and
hours, so that a group without traffic costs nothing.

A restart begins at zero, as in RocketMQ. Rates of a topic's new messages are not here: its queue entries have times.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

#: Interval of the calls of ``look``, ms.
LOOK_MS: Final = 5_000
#: Longest span of a rate, ms.
_RATE_MAX_MS: Final = 600_000
_DAY_MS: Final = 86_400_000
#: Maximum number of groups and topics counted in one span; others count only in the sums. Limits memory, since clients choose the
#: names.
PAIRS_MAX: Final = 4_096
#: Maximum number of queues of groups whose last pull is kept, for the same reason.
PULLED_MAX: Final = 65_536

#: (group, topic).
Pair = tuple[str, str]


class DayCount:
    """A counter, and its values at the last two midnights, UTC."""

    def __init__(self) -> None:
        self._day = -1
        self.this_morning = 0
        self.yesterday_morning = 0

    def look(self, now_ms: int, total: int) -> None:
        """Record ``total`` at this time; detects a new day."""
        day = now_ms // _DAY_MS
        if self._day >= 0 and day != self._day:
            self.yesterday_morning = self.this_morning if day == self._day + 1 else total
            self.this_morning = total
        self._day = day


class Traffic:
    """Call ``look`` every ``LOOK_MS``."""

    def __init__(self, put_total: Callable[[], int], now_ms: int) -> None:
        """``put_total``: number of messages that became visible, which only increases."""
        self.began_ms = now_ms
        self._put_total = put_total
        self._put_before = put_total()
        #: Number of messages given to consumers.
        self.given = 0
        self.puts_by_day = DayCount()
        self.gives_by_day = DayCount()
        #: (time ms, put, given), oldest first, including one that is older than any span.
        self._looks: deque[tuple[int, int, int]] = deque([(now_ms, 0, 0)])
        #: Messages given since the span began, and the spans before it: six of ten seconds, sixty of a minute, and hours.
        self._span: dict[Pair, int] = {}
        self._span_began_ms = now_ms
        self._tens: deque[dict[Pair, int]] = deque(maxlen=6)
        self._minutes: deque[dict[Pair, int]] = deque(maxlen=60)
        self._hours: deque[dict[Pair, int]] = deque(maxlen=24)
        self._spans = 0
        self._pulled: dict[tuple[str, int, int], int] = {}

    @property
    def put(self) -> int:
        """Number of messages that became visible since the start."""
        return self._put_total() - self._put_before

    # --- what a pull says

    def note(self, group: str, topic: str, topic_id: int, queue_id: int, next_offset: int, count: int) -> None:
        """A member of ``group`` was given ``count`` messages, up to ``next_offset``."""
        self.given += count
        pair = (group, topic)
        span = self._span
        if pair in span or len(span) < PAIRS_MAX:
            span[pair] = span.get(pair, 0) + count
        pulled = self._pulled
        if len(pulled) >= PULLED_MAX:
            pulled.clear()  # the next pulls fill it again
        pulled[group, topic_id, queue_id] = next_offset

    def pulled_to(self, group: str, topic_id: int, queue_id: int) -> int:
        """Offset after the last message of the queue that the group was given; 0: unknown."""
        return self._pulled.get((group, topic_id, queue_id), 0)

    # --- time passes

    def look(self, now_ms: int) -> None:
        """Sample the counters at this time, and begin a new span of ten seconds if it is due."""
        put, looks = self.put, self._looks
        looks.append((now_ms, put, self.given))
        while len(looks) > 1 and looks[1][0] <= now_ms - _RATE_MAX_MS:
            looks.popleft()
        self.puts_by_day.look(now_ms, put)
        self.gives_by_day.look(now_ms, self.given)
        while self._span_began_ms + 10_000 <= now_ms:
            if self._span_began_ms + _DAY_MS <= now_ms:  # the machine slept: all counts are older than any span
                self._span_began_ms = now_ms
                self._span = {}
                for spans in (self._tens, self._minutes, self._hours):
                    spans.clear()
                return
            self._end_span()

    def _end_span(self) -> None:
        self._span_began_ms += 10_000
        self._spans += 1
        self._tens.append(self._span)
        self._span = {}
        if self._spans % 6 == 0:
            self._minutes.append(_sum(self._tens))
            if self._spans % 360 == 0:
                self._hours.append(_sum(self._minutes))

    # --- figures

    def rates(self, now_ms: int, seconds: int) -> tuple[float, float]:
        """(messages that became visible, messages given) per second, over the last ``seconds`` at least."""
        began_ms, put, given = self._looks[0]
        for look in self._looks:
            if look[0] > now_ms - seconds * 1_000:
                break
            began_ms, put, given = look
        passed = max(now_ms - began_ms, 1_000) / 1_000
        return (self.put - put) / passed, (self.given - given) / passed

    def given_recently(self, group: str, topic: str) -> tuple[int, int, int]:
        """Messages of the topic given to the group in the last minute, hour and day, as far as the spans tell: without the first ten seconds
        of the minute, and so on.
        """
        pair = (group, topic)
        now, tens, minutes = self._span.get(pair, 0), list(self._tens), list(self._minutes)
        minute = now + _count(tens[-5:], pair)
        open_minute = now + _count(tens[len(tens) - self._spans % 6 :], pair)
        hour = open_minute + _count(minutes[-59:], pair)
        open_hour = open_minute + _count(minutes[len(minutes) - self._spans // 6 % 60 :], pair)
        day = open_hour + _count(list(self._hours)[-23:], pair)
        return minute, max(minute, hour), max(minute, hour, day)


def _sum(spans: deque[dict[Pair, int]]) -> dict[Pair, int]:
    total: dict[Pair, int] = {}
    for span in spans:
        for pair, count in span.items():
            total[pair] = total.get(pair, 0) + count
    return total


def _count(spans: list[dict[Pair, int]], pair: Pair) -> int:
    return sum(span.get(pair, 0) for span in spans)
