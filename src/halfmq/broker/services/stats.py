"""Figures for administrators of a broker that runs: progress of consumer groups, contents of queues, members, counters.

Reads only. Queues are read below the high watermark, as consumers read them; the offset of a group is the newest that it
committed, logged or not. What a result names may not be durable yet: the front door holds the answer
(``Sequencer.after_durable``).

A call may look at thousands of queues, and whoever reaches a port may make it. So a front door makes each of them through
``in_turn``: one in each turn of the event loop, so that other requests are served in between, and one result names at most
``QUEUES_MAX`` queues.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple, Protocol

from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.members import Members
from halfmq.broker.services.peer import Peer
from halfmq.broker.services.queues import QueueReads
from halfmq.broker.services.topics import TopicQueues
from halfmq.broker.services.traffic import Traffic
from halfmq.broker.timers import BrokerTime
from halfmq.core.decision import Refused, Why
from halfmq.core.queues.offsets import Stored, query_offset
from halfmq.core.state import Subscription
from halfmq.core.view import TopicView
from halfmq.errors import StoreDamaged
from halfmq.model.settings import GroupSettings

#: Queues of groups that one result names: as many take about a tenth of a second, in which nobody else is served, and 1 MiB.
QUEUES_MAX: Final = 8_000
#: Calls that wait for their turn, of all peers.
WAITING_MAX: Final = 256
#: Settings of groups in one result: the largest stay far below a frame.
GROUPS_MAX: Final = 10_000
#: Spans of counters, s.
MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400


class StatsReads(QueueReads, Protocol):
    """What is asked of the store."""

    def log_began_ms(self) -> int:
        """When the first batch that is kept was written, ms. Raises StoreDamaged: its segment cannot be read."""
        ...

    def free_bytes(self) -> int:
        """Free space on the disk of the log."""
        ...


class QueueProgress(NamedTuple):
    """Where a group stands in one queue. Its lag is ``end - offset`` messages."""

    queue_id: int
    #: One past the last visible message.
    end: int
    #: Of the next message that the group consumes, not below the first that is kept.
    offset: int
    #: One past the last message that a member was given.
    given_to: int
    #: Store time of the last message that the group has consumed, ms; 0: none.
    last_time_ms: int


class TopicProgress(NamedTuple):
    """``given_per_s``: messages that members of the group were given, over the last minute."""

    topic: str
    given_per_s: float
    queues: tuple[QueueProgress, ...]


class Client(NamedTuple):
    """A member. ``library``: (version, language) as its last heartbeat gave them; None: it sent none."""

    client_id: str
    #: ``ip:port``; empty: its connection is closing.
    address: str
    library: tuple[int, str] | None


class ConsumerGroup(NamedTuple):
    """A group with members. The texts are those of the newest heartbeat, as in ``core.session.ConsumerData``."""

    consume_type: str
    message_model: str
    from_where: str
    clients: tuple[Client, ...]
    subscriptions: tuple[Subscription, ...]


class QueueEnds(NamedTuple):
    """A queue has the messages from ``begin`` to before ``end``. ``last_time_ms``: store time of the last one; 0: none."""

    queue_id: int
    begin: int
    end: int
    last_time_ms: int


class TopicFigures(NamedTuple):
    """``put_per_s``: messages that became visible, over the last minute."""

    queues: tuple[QueueEnds, ...]
    put_per_s: float


class GroupPage(NamedTuple):
    """``total``: groups there are, of which ``groups`` is a part."""

    total: int
    groups: tuple[GroupSettings, ...]


class Counts(NamedTuple):
    """Messages in the last minute, hour and day."""

    minute: int
    hour: int
    day: int


class DayTotals(NamedTuple):
    """Messages since the broker started: until now, until the last midnight, and until the one before it (UTC)."""

    now: int
    this_morning: int
    yesterday_morning: int


class BrokerFigures(NamedTuple):
    """Times in ms. Log offsets count bytes."""

    now_ms: int
    began_ms: int
    #: Messages a second that became visible and that consumers were given, over the last 10 s, 60 s and 600 s.
    rates: tuple[tuple[float, float], ...]
    put: DayTotals
    given: DayTotals
    #: Requests that are not answered yet, and for how long the oldest has waited.
    backlog: int
    waits_ms: int
    log_begin: int
    #: The high watermark, and how far the indexes lag behind answered requests.
    log_end: int
    lag_bytes: int
    #: The log's bytes as a part of its bytes and what is free on its disk.
    disk_ratio: float
    undecided: int
    #: When the first message that is kept was stored; None: its segment cannot be read (``halfmq store verify`` says more).
    earliest_ms: int | None


class _Asked(NamedTuple):
    peer: Peer
    call: Callable[[], None]
    memory_bytes: int


class _TooMany(Exception):
    """More queues than one result may name."""


class Stats:
    """A call that reads queues raises StoreDamaged or OSError where the disk cannot be read: refuse that one request, serve others."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: StatsReads,
        members: Members,
        traffic: Traffic,
        time: BrokerTime,
        loop: asyncio.AbstractEventLoop,
        *,
        address_of: Callable[[int], str],
        flush: Callable[[], None],
    ) -> None:
        """``address_of``: ``ip:port`` of the peer with this number, or "". ``flush``: called after answers that no request and no
        turn of the sequencer is behind, so that they leave.
        """
        self._sequencer = sequencer
        self._view = sequencer.view
        self._store = store
        self._members = members
        self._traffic = traffic
        self._time = time
        self._loop = loop
        self._address_of = address_of
        self._flush = flush
        self._asked: deque[_Asked] = deque()

    def in_turn(self, peer: Peer, call: Callable[[], None], memory_bytes: int) -> Refused | None:
        """Call later, unless the peer is gone by then: one such call in each turn of the loop, whoever asked.

        ``memory_bytes``: what ``call`` holds meanwhile. ``call`` must not raise.

        Refusals: LIMIT_REACHED: ``WAITING_MAX`` calls wait; ask again.
        """
        if len(self._asked) >= WAITING_MAX:
            return Refused(Why.LIMIT_REACHED, f"{WAITING_MAX} questions wait already; ask again")
        peer.keep(memory_bytes)
        self._asked.append(_Asked(peer, call, memory_bytes))
        if len(self._asked) == 1:
            self._loop.call_soon(self._call_next)
        return None

    def _call_next(self) -> None:
        peer, call, memory_bytes = self._asked[0]
        if peer.is_open:
            call()
            self._flush()
        self._asked.popleft()
        peer.give_back(memory_bytes)
        if self._asked:
            self._loop.call_soon(self._call_next)

    # --- progress of consumer groups

    def progress(self, group: str, names: frozenset[str]) -> list[TopicProgress] | Refused:
        """Progress of the group in each topic in which it has offsets. ``names``: only in these topics; empty: in all.

        While the group has members, topics that they do not subscribe to are left out: nobody lags in them.

        Refusals: LIMIT_REACHED: more than ``QUEUES_MAX`` queues; name a topic.
        """
        try:
            return list(self._progress(group, names, QUEUES_MAX))
        except _TooMany:
            return _too_many(f"group {group}", "name a topic")

    def all_progress(self) -> dict[str, list[TopicProgress]] | Refused:
        """``progress`` of every group that has offsets, by group.

        Refusals: LIMIT_REACHED: more than ``QUEUES_MAX`` queues; ask for one group at a time.
        """
        groups: dict[str, list[TopicProgress]] = {}
        left = QUEUES_MAX
        try:
            for group in self._view.groups:
                found = list(self._progress(group, frozenset(), left))
                left -= sum(len(progress.queues) for progress in found)
                if found:
                    groups[group] = found
        except _TooMany:
            return _too_many("these groups", "ask for one group at a time")
        return groups

    def _progress(self, group: str, names: frozenset[str], queues_max: int) -> Iterator[TopicProgress]:
        """Raises _TooMany."""
        view = self._view
        session = view.session.consumers.get(group)
        topics = [view.topics_by_id[topic_id] for topic_id in self._topics_of(group)]
        if names:
            topics = [topic for topic in topics if topic.name in names]
        if session is not None and session.subscriptions:
            topics = [topic for topic in topics if topic.name in session.subscriptions]
        if sum([topic.read_queues for topic in topics]) > queues_max:
            raise _TooMany
        for topic in topics:
            queues = tuple([self._queue(group, topic, queue_id) for queue_id in range(topic.read_queues)])
            yield TopicProgress(topic.name, self._traffic.given_lately(group, topic.name)[0] / MINUTE, queues)

    def _topics_of(self, group: str) -> list[int]:
        """Topics in which the group has an offset."""
        return sorted({topic_id for offsets in self._offsets() for topic_id, _ in offsets.get(group, ())})

    def _offsets(self) -> tuple[Mapping[str, Mapping[tuple[int, int], int]], ...]:
        """Offsets by group and (topic id, queue id): those in the log, and those for which it had no space."""
        return self._view.offsets, self._view.session.offsets_refused

    def _queue(self, group: str, topic: TopicView, queue_id: int) -> QueueProgress:
        low, high = self._store.bounds(topic.topic_id, queue_id)
        known = query_offset(self._view, group, topic.name, queue_id)
        # A group without an offset here, or with one that retention has passed, has all that is kept before it.
        offset = max(min(known.offset, high), low) if isinstance(known, Stored) else low
        given_to = self._traffic.pulled_to(group, topic.topic_id, queue_id)
        time_ms = self._time_of(topic.topic_id, queue_id, offset - 1) if offset > low else 0
        return QueueProgress(queue_id, high, offset, min(max(offset, given_to), high), time_ms)

    def _time_of(self, topic_id: int, queue_id: int, queue_offset: int) -> int:
        found = self._store.read_queue(topic_id, queue_id, queue_offset, 1)
        return found[0].store_time_ms if found else 0

    def consumer_groups_of(self, name: str) -> list[str]:
        """Groups whose members subscribe to the topic, then groups with an offset in it."""
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

    def consumers(self, group: str) -> ConsumerGroup | None:
        """The members of a consumer group and what they subscribe to; None: it has no members."""
        session = self._view.session.consumers.get(group)
        if session is None or not session.members:
            return None
        clients = [
            Client(member.client_id, self._address_of(number), (member.version, member.language))
            for number, member in session.members.items()
        ]
        return ConsumerGroup(
            session.consume_type,
            session.message_model,
            session.from_where,
            tuple(clients),
            tuple(session.subscriptions.values()),
        )

    def producers(self, name: str) -> list[Client]:
        """Who can be asked about transactions of the producer group: clients that are pushed checks, and those that fetch them."""
        group = self._view.producer_groups.get(name)
        members = {**group.session.members, **group.session.pollers} if group is not None else {}
        return [
            Client(client_id, self._address_of(number), self._members.library_of(number))
            for number, client_id in members.items()
        ]

    # --- topics and groups

    def topic(self, name: str) -> TopicFigures | None:
        """Where the queues of a topic begin and end; None: there is no such topic."""
        topic = self._view.topics_by_name.get(name)
        if topic is None:
            return None
        queues = []
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            low, high = self._store.bounds(topic.topic_id, queue_id)
            time_ms = self._time_of(topic.topic_id, queue_id, high - 1) if high > low else 0
            queues.append(QueueEnds(queue_id, low, high, time_ms))
        return TopicFigures(tuple(queues), self._put_lately(topic, MINUTE) / MINUTE)

    def topic_settings(self, name: str) -> TopicQueues | None:
        """Settings of a topic; None: there is no such topic."""
        topic = self._view.topics_by_name.get(name)
        return None if topic is None else TopicQueues(topic.read_queues, topic.write_queues, topic.permission)

    def groups(self, start: int, count: int) -> GroupPage | Refused:
        """Settings of ``count`` consumer groups, at most ``GROUPS_MAX``, from number ``start`` on. ``count`` 0: of all from there.

        Refusals: LIMIT_REACHED: all are wanted, and they are more than ``GROUPS_MAX``; ask page by page.
        """
        groups = self._view.groups
        if not count and len(groups) > GROUPS_MAX:
            return Refused(
                Why.LIMIT_REACHED, f"{len(groups)} groups, one answer has {GROUPS_MAX} at most; ask page by page"
            )
        stop = start + min(count or GROUPS_MAX, GROUPS_MAX)
        return GroupPage(len(groups), tuple(islice(groups.values(), start, stop)))

    # --- counters

    def put_counts(self, name: str) -> Counts | None:
        """Messages of the topic that became visible; None: there is no such topic."""
        topic = self._view.topics_by_name.get(name)
        return None if topic is None else Counts(*[self._put_lately(topic, seconds) for seconds in (MINUTE, HOUR, DAY)])

    def given_counts(self, group: str, name: str) -> Counts | None:
        """Messages of the topic that the group was given; None: there is no such topic."""
        return Counts(*self._traffic.given_lately(group, name)) if name in self._view.topics_by_name else None

    def _put_lately(self, topic: TopicView, seconds: int) -> int:
        """Messages of the topic that became visible in the last ``seconds``, as its queue entries say."""
        since_ms = self._time.now_ms() - seconds * 1_000
        count = 0
        for queue_id in range(len(topic.ends)):  # also those that are read or written no longer
            high = self._store.bounds(topic.topic_id, queue_id)[1]
            count += max(0, high - self._store.search_by_time(topic.topic_id, queue_id, since_ms, upper=False))
        return count

    def broker(self) -> BrokerFigures:
        """Figures of the broker as a whole."""
        view, traffic, now_ms = self._view, self._traffic, self._time.now_ms()
        puts, gives = traffic.puts_by_day, traffic.gives_by_day
        log_bytes = view.log_end - view.log_start
        try:
            earliest_ms = self._store.log_began_ms()
        except StoreDamaged:
            earliest_ms = None
        return BrokerFigures(
            now_ms=now_ms,
            began_ms=traffic.began_ms,
            rates=tuple([traffic.rates(now_ms, seconds) for seconds in (10, 60, 600)]),
            put=DayTotals(traffic.put, puts.this_morning, puts.yesterday_morning),
            given=DayTotals(traffic.given, gives.this_morning, gives.yesterday_morning),
            backlog=self._sequencer.backlog,
            waits_ms=self._sequencer.waits_ms(now_ms),
            log_begin=view.log_start,
            log_end=view.session.published,
            lag_bytes=max(0, view.session.answered - view.session.published),
            disk_ratio=log_bytes / (log_bytes + self._store.free_bytes()),
            undecided=view.derived.undecided_count,
            earliest_ms=earliest_ms,
        )


def _too_many(what: str, instead: str) -> Refused:
    text = f"{what}: more than {QUEUES_MAX} queues, which is the most that one answer names; {instead}"
    return Refused(Why.LIMIT_REACHED, text)
