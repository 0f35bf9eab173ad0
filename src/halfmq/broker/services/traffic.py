"""Traffic since the broker's start: statistics for administrators, which no decision uses.

Messages that became visible are counted with their queue entries, messages delivered to consumers by the pulls; both counters only
increase. Sampling them every five seconds gives the rates. Messages delivered to each group are counted in spans of ten seconds, minutes
and hours, so that a group without traffic costs nothing.

A restart begins at zero, as in RocketMQ. Rates of a topic's new messages are not here: its queue entries have times.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

#: Interval of the calls of ``sample``, ms.
SAMPLE_MS: Final = 5_000
#: Longest span of a rate, ms.
_RATE_MAX_MS: Final = 600_000
_DAY_MS: Final = 86_400_000
#: Maximum number of groups and topics counted in one span; others count only in the sums. Limits memory, since clients choose the
#: names.
PAIRS_MAX: Final = 4_096
#: Maximum number of queues of groups whose last pull is kept, for the same reason.
DELIVERED_TO_MAX: Final = 65_536

#: (group, topic).
Pair = tuple[str, str]


class DayCount:
    """A counter, and its values at the last two midnights, UTC."""

    def __init__(self) -> None:
        self._day = -1
        self.this_morning = 0
        self.yesterday_morning = 0

    def sample(self, now_ms: int, total: int) -> None:
        """Record ``total`` at this time; detects a new day."""
        day = now_ms // _DAY_MS
        if self._day >= 0 and day != self._day:
            self.yesterday_morning = self.this_morning if day == self._day + 1 else total
            self.this_morning = total
        self._day = day


class Traffic:
    """Call ``sample`` every ``SAMPLE_MS``."""

    def __init__(self, published_total: Callable[[], int], now_ms: int) -> None:
        """``published_total``: number of messages that became visible, which only increases."""
        self.began_ms = now_ms
        self._published_total = published_total
        self._published_before = published_total()
        #: Number of messages delivered to consumers.
        self.delivered = 0
        self.published_by_day = DayCount()
        self.delivered_by_day = DayCount()
        #: (time ms, published, delivered), oldest first, including one that is older than any span.
        self._samples: deque[tuple[int, int, int]] = deque([(now_ms, 0, 0)])
        #: Messages delivered since the span began, and the spans before it: six of ten seconds, sixty of a minute, and hours.
        self._span: dict[Pair, int] = {}
        self._span_began_ms = now_ms
        self._tens: deque[dict[Pair, int]] = deque(maxlen=6)
        self._minutes: deque[dict[Pair, int]] = deque(maxlen=60)
        self._hours: deque[dict[Pair, int]] = deque(maxlen=24)
        self._spans = 0
        self._delivered_to: dict[tuple[str, int, int], int] = {}
        #: Messages delivered since the start, of the first ``PAIRS_MAX`` pairs; None: nobody asks. And of all other pairs.
        self.delivered_by_pair: dict[Pair, int] | None = None
        self.delivered_elsewhere = 0

    @property
    def published(self) -> int:
        """Number of messages that became visible since the start."""
        return self._published_total() - self._published_before

    # --- what a pull says

    def note(self, group: str, topic: str, topic_id: int, queue_id: int, next_offset: int, count: int) -> None:
        """``count`` messages were delivered to a member of ``group``, up to ``next_offset``."""
        self.delivered += count
        pair = (group, topic)
        span = self._span
        if pair in span or len(span) < PAIRS_MAX:
            span[pair] = span.get(pair, 0) + count
        totals = self.delivered_by_pair
        if totals is not None:
            if pair in totals or len(totals) < PAIRS_MAX:
                totals[pair] = totals.get(pair, 0) + count
            else:
                self.delivered_elsewhere += count
        delivered_to = self._delivered_to
        if len(delivered_to) >= DELIVERED_TO_MAX:
            delivered_to.clear()  # the next pulls fill it again
        delivered_to[group, topic_id, queue_id] = next_offset

    def forget(self, exists: Callable[[Pair], bool]) -> None:
        """Forget what was delivered to pairs that no longer exist."""
        totals = self.delivered_by_pair or {}
        for pair in [pair for pair in totals if not exists(pair)]:
            del totals[pair]

    def delivered_to(self, group: str, topic_id: int, queue_id: int) -> int:
        """Offset after the last message of the queue that was delivered to the group; 0: unknown."""
        return self._delivered_to.get((group, topic_id, queue_id), 0)

    # --- time passes

    def sample(self, now_ms: int) -> None:
        """Sample the counters at this time, and begin a new span of ten seconds if it is due."""
        published, samples = self.published, self._samples
        samples.append((now_ms, published, self.delivered))
        while len(samples) > 1 and samples[1][0] <= now_ms - _RATE_MAX_MS:
            samples.popleft()
        self.published_by_day.sample(now_ms, published)
        self.delivered_by_day.sample(now_ms, self.delivered)
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
        """(messages that became visible, messages delivered) per second, over the last ``seconds`` at least."""
        began_ms, published, delivered = self._samples[0]
        for sample in self._samples:
            if sample[0] > now_ms - seconds * 1_000:
                break
            began_ms, published, delivered = sample
        passed = max(now_ms - began_ms, 1_000) / 1_000
        return (self.published - published) / passed, (self.delivered - delivered) / passed

    def delivered_recently(self, group: str, topic: str) -> tuple[int, int, int]:
        """Messages of the topic delivered to the group in about the last minute, hour and day.

        Each number is at most one span too small: the minute is counted in spans of ten seconds, so up to its first ten seconds may be
        missing; the hour up to a minute, the day up to an hour.
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
