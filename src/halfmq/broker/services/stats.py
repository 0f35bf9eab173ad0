"""Statistics of a running broker for operators: lag of consumer groups, queues of topics, connected clients, counters.

Read-only. Queues are read before the high watermark, as by consumers. Offsets of groups are the newest that they committed, logged or not:
withhold a response until they are durable (``Sequencer.after_durable``). A read of queues raises StoreDamaged or OSError if the
disk cannot read: refuse that one request, serve others.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.traffic import DayCount, Traffic
from halfmq.broker.timers import BrokerTime
from halfmq.core.queues.offsets import Stored, query_offset
from halfmq.core.state import ConsumerSession, Topic
from halfmq.errors import StoreDamaged
from halfmq.store.store import Store

#: Maximum number of queues in one response: they take about a tenth of a second, during which nothing else is served, and 1 MiB.
QUEUES_MAX: Final = 8_000
MINUTE_S: Final = 60
HOUR_S: Final = 3_600
DAY_S: Final = 86_400


class TooManyQueues(Exception):
    """More queues than one response may contain (``QUEUES_MAX``)."""


class QueueProgress(NamedTuple):
    """Progress of a group in one queue. Its lag: ``end - offset``."""

    queue_id: int
    #: Offset after the last visible message.
    end: int
    #: Next message that the group has not finished.
    offset: int
    #: Offset after the last message delivered to a member.
    pulled: int
    #: Store time of the last message that the group has finished, ms; 0: none.
    done_time_ms: int


class TopicProgress(NamedTuple):
    """Progress of a group in one topic. ``delivered_per_s``: messages delivered to its members, over the last minute."""

    topic: str
    delivered_per_s: float
    queues: tuple[QueueProgress, ...]


class QueueBounds(NamedTuple):
    """Bounds of a queue."""

    queue_id: int
    #: First offset in the queue, and offset after the last visible message.
    start: int
    end: int
    #: Store time of the last message, ms; 0: there is none.
    last_time_ms: int


class TopicQueues(NamedTuple):
    """``written_per_s``: messages that became visible, over the last minute."""

    written_per_s: float
    queues: tuple[QueueBounds, ...]


class LastPeriods(NamedTuple):
    """Numbers for the last minute, hour and day."""

    minute: int
    hour: int
    day: int


class BrokerStats(NamedTuple):
    """Of the whole broker. Times in ms, sizes in bytes."""

    began_ms: int
    now_ms: int
    #: (messages written, messages delivered) per second, over the last 10 s, minute and 10 minutes.
    rates: tuple[tuple[float, float], ...]
    written: int
    written_by_day: DayCount
    delivered: int
    delivered_by_day: DayCount
    #: Number of replies that wait for the disk, and the wait of the oldest, ms.
    backlog: int
    backlog_wait_ms: int
    log_start: int
    high_watermark: int
    #: How far the indexes lag behind released replies.
    index_lag_bytes: int
    #: Bytes of the log, and free bytes on its disk.
    log_bytes: int
    free_bytes: int
    #: Broker time of the log's start; None: it cannot be read (`halfmq store verify` tells more).
    log_began_ms: int | None
    undecided: int


class Stats:
    """Reads statistics for operators."""

    def __init__(self, sequencer: Sequencer, store: Store, traffic: Traffic, time: BrokerTime) -> None:
        self._sequencer = sequencer
        self._view = sequencer.view
        self._store = store
        self._traffic = traffic
        self._time = time

    # --- progress of consumer groups

    def progress(self, group: str, topics: frozenset[str]) -> list[TopicProgress]:
        """Progress in each topic in which the group has offsets. ``topics``: only these; empty: all.

        Raises:
            TooManyQueues: request fewer topics.
        """
        return self._progress(group, topics, QUEUES_MAX)

    def progress_of_all(self) -> dict[str, list[TopicProgress]]:
        """Progress by group, for groups that have offsets.

        Raises:
            TooManyQueues: request one group at a time.
        """
        found: dict[str, list[TopicProgress]] = {}
        left = QUEUES_MAX
        for group in self._view.groups:
            progress = self._progress(group, frozenset(), left)
            left -= sum([len(one.queues) for one in progress])
            if progress:
                found[group] = progress
        return found

    def _progress(self, group: str, names: frozenset[str], queues_max: int) -> list[TopicProgress]:
        view = self._view
        session = view.session.consumers.get(group)
        topics = [view.topics_by_id[topic_id] for topic_id in self._topics_of(group)]
        if names:
            topics = [topic for topic in topics if topic.name in names]
        if session is not None and session.subscriptions:  # no lag in topics that the members no longer subscribe to
            topics = [topic for topic in topics if topic.name in session.subscriptions]
        if sum([topic.read_queues for topic in topics]) > queues_max:
            raise TooManyQueues
        return [
            TopicProgress(
                topic.name,
                self._traffic.delivered_recently(group, topic.name)[0] / MINUTE_S,
                tuple([self._queue(group, topic, queue_id) for queue_id in range(topic.read_queues)]),
            )
            for topic in topics
        ]

    def _topics_of(self, group: str) -> list[int]:
        """Topics in which the group has an offset."""
        return sorted({topic_id for offsets in self._offsets() for topic_id, _ in offsets.get(group, ())})

    def _offsets(self) -> tuple[Mapping[str, Mapping[tuple[int, int], int]], ...]:
        """Offsets by group and (topic id, queue id): logged ones, and those refused because a base had no space.

        The first offset of a queue is logged at once, so an offset that is not logged yet replaces one that is.
        """
        return self._view.offsets, self._view.session.offsets_refused

    def _queue(self, group: str, topic: Topic, queue_id: int) -> QueueProgress:
        low, high = self._store.bounds(topic.topic_id, queue_id)
        known = query_offset(self._view, group, topic.name, queue_id)
        # Without a stored offset, and with one before the start of the queue, the lag is what the queue contains.
        offset = min(known.offset, high) if isinstance(known, Stored) else low
        pulled = self._traffic.delivered_to(group, topic.topic_id, queue_id)
        time_ms = self._time_of(topic.topic_id, queue_id, offset - 1) if offset > low else 0
        return QueueProgress(queue_id, high, max(offset, low), min(max(offset, low, pulled), high), time_ms)

    def _time_of(self, topic_id: int, queue_id: int, queue_offset: int) -> int:
        found = self._store.read_queue(topic_id, queue_id, queue_offset, 1)
        return found[0].store_time_ms if found else 0

    def groups_of(self, name: str) -> list[str]:
        """Groups whose members subscribe to the topic, and groups with an offset in it."""
        view = self._view
        groups = {group: None for group, session in view.session.consumers.items() if name in session.subscriptions}
        topic = view.topics_by_name.get(name)
        if topic is not None:
            for offsets in self._offsets():
                for group, entries in offsets.items():
                    if group not in groups and any(topic_id == topic.topic_id for topic_id, _ in entries):
                        groups[group] = None
        return list(groups)

    # --- who is connected

    def consumers(self, group: str) -> ConsumerSession | None:
        """The consumer group's members and subscriptions; None: no member is connected."""
        session = self._view.session.consumers.get(group)
        return session if session is not None and session.members else None

    def producers(self, name: str) -> dict[int, str]:
        """Client ids by connection of the group's reachable producers, whether they receive or fetch checks."""
        group = self._view.producer_groups.get(name)
        return {**group.session.members, **group.session.pollers} if group is not None else {}

    # --- topics, counters, figures

    def topic(self, name: str) -> TopicQueues | None:
        """Queues of a topic; None: it does not exist."""
        topic = self._view.topics_by_name.get(name)
        if topic is None:
            return None
        queues = []
        for queue_id in range(topic.read_queues):
            low, high = self._store.bounds(topic.topic_id, queue_id)
            time_ms = self._time_of(topic.topic_id, queue_id, high - 1) if high > low else 0
            queues.append(QueueBounds(queue_id, low, high, time_ms))
        return TopicQueues(self._written_recently(topic, MINUTE_S) / MINUTE_S, tuple(queues))

    def written(self, name: str) -> LastPeriods | None:
        """Number of the topic's messages that became visible; None: it does not exist."""
        topic = self._view.topics_by_name.get(name)
        if topic is None:
            return None
        return LastPeriods(*[self._written_recently(topic, seconds) for seconds in (MINUTE_S, HOUR_S, DAY_S)])

    def delivered(self, name: str, group: str) -> LastPeriods | None:
        """Number of the topic's messages delivered to members of the group; None: it does not exist."""
        return (
            LastPeriods(*self._traffic.delivered_recently(group, name)) if name in self._view.topics_by_name else None
        )

    def _written_recently(self, topic: Topic, seconds: int) -> int:
        """Counted by queue entries."""
        since_ms = self._time.now_ms() - seconds * 1_000
        count = 0
        for queue_id in range(topic.read_queues):
            high = self._store.bounds(topic.topic_id, queue_id)[1]
            count += max(0, high - self._store.search_by_time(topic.topic_id, queue_id, since_ms, upper=False))
        return count

    def broker_stats(self) -> BrokerStats:
        """Statistics of the whole broker."""
        view, traffic, now_ms = self._view, self._traffic, self._time.now_ms()
        try:
            log_began_ms = self._store.log_began_ms()
        except StoreDamaged:
            log_began_ms = None
        return BrokerStats(
            traffic.began_ms,
            now_ms,
            tuple([traffic.rates(now_ms, seconds) for seconds in (10, 60, 600)]),
            traffic.published,
            traffic.published_by_day,
            traffic.delivered,
            traffic.delivered_by_day,
            self._sequencer.backlog,
            self._sequencer.waits_ms(now_ms),
            view.log_start,
            view.session.published,
            max(0, view.session.answered - view.session.published),
            view.log_end - view.log_start,
            self._store.free_bytes(),
            log_began_ms,
            sum([len(group.undecided) for group in view.producer_groups.values()]),
        )
