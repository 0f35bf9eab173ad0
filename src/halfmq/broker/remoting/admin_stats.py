"""What administrators ask about a broker that runs: 28, 201 to 204, 208, 300, 315, 317, 351 (``wire.remoting.admin_stats``).

Reads only. Queues are read below the published position, as consumers read them; offsets of groups are the newest that the
groups said, logged or not. Answers wait until what they name is durable. How much is looked at for one answer has a bound,
since whoever reaches the port may ask.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import astuple

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway, Handler
from halfmq.broker.remoting.intake import REQUEST_COST
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.members import Members
from halfmq.broker.services.traffic import Traffic
from halfmq.broker.timers import BrokerTime
from halfmq.core.queues.offsets import Stored, query_offset
from halfmq.core.view import TopicView
from halfmq.errors import StoreDamaged
from halfmq.store.consume_queue import QueueEntry
from halfmq.wire.remoting.admin_stats import (
    ConsumerPeers,
    Counted,
    GroupConfig,
    GroupProgress,
    Peer,
    QueueEnds,
    QueueProgress,
    encode_broker_consume_stats,
    encode_consume_stats,
    encode_consumers,
    encode_counted,
    encode_group_configs,
    encode_groups,
    encode_producers,
    encode_table,
    encode_topic_config,
    encode_topic_stats,
)
from halfmq.wire.remoting.codes import LANGUAGE_OURS, VERSION_OURS, RequestCode, ResponseCode
from halfmq.wire.remoting.group_bodies import MessageQueue
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.heartbeat import Subscription, tags_of

#: Queues of groups that one answer names: as many take about a tenth of a second, in which nobody else is served, and 1 MiB.
QUEUES_MAX: Final = 8_000
#: Questions of all administrators that wait for their turn.
ASKED_MAX: Final = 256
#: Groups in one answer to 201: the largest stay far below a frame.
GROUP_CONFIGS_MAX: Final = 10_000
#: The name of the version that the broker says it has (``codes.VERSION_OURS``).
_VERSION_NAME: Final = "V4_9_8"
_MINUTE: Final = 60
_HOUR: Final = 3_600
_DAY: Final = 86_400


class StatsReads(Protocol):
    """What is asked of the store."""

    def bounds(self, topic_id: int, queue_id: int) -> tuple[int, int]: ...

    def read_queue(self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int) -> list[QueueEntry]: ...

    def search_by_time(self, topic_id: int, queue_id: int, time_ms: int, *, upper: bool = False) -> int: ...

    def log_began_ms(self) -> int: ...

    def free_bytes(self) -> int: ...


class _TooMany(Exception):
    """More queues than one answer may name."""


class AdminStats:
    def __init__(
        self, gateway: Gateway, sequencer: Sequencer, store: StatsReads, members: Members, traffic: Traffic, time: BrokerTime,
        loop: asyncio.AbstractEventLoop, *, address: str,
    ) -> None:  # fmt: skip
        """``address``: ``host:port`` of the broker, as clients are told."""
        self._gateway = gateway
        self._sequencer = sequencer
        self._view = sequencer.view
        self._store = store
        self._members = members
        self._traffic = traffic
        self._time = time
        self._durably = DurableAnswers(gateway, sequencer)
        self._address = address
        self._loop = loop
        #: Questions that wait for their turn, with the bytes that each keeps.
        self._asked: deque[tuple[Handler, Connection, Request[Any], int]] = deque()
        one_by_one: dict[int, Handler] = {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.group_configs,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumed_by,
            RequestCode.VIEW_BROKER_STATS_DATA: self.counted,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
        }
        gateway.handlers |= {code: partial(self._in_turn, handler) for code, handler in one_by_one.items()}
        gateway.handlers[RequestCode.GET_TOPIC_CONFIG] = self.topic_config

    def _in_turn(self, handler: Handler, connection: Connection, request: Request[Any]) -> None:
        """One of these questions in one turn of the loop, whoever asks: each may look at thousands of queues."""
        if len(self._asked) >= ASKED_MAX:
            self._refuse(
                connection, request, ResponseCode.SYSTEM_BUSY, f"{ASKED_MAX} questions wait already; ask again"
            )
            return
        fields, kept = _kept(request)
        connection.keep(kept)
        self._asked.append((handler, connection, request.to_answer(fields), kept))
        if len(self._asked) == 1:
            self._loop.call_soon(self._answer_next)

    def _answer_next(self) -> None:
        handler, connection, request, kept = self._asked[0]
        if connection.is_open:
            self._gateway.serve(handler, connection, request)
            self._gateway.flush()
        self._asked.popleft()
        connection.give_back(kept)
        if self._asked:
            self._loop.call_soon(self._answer_next)

    def _tell(
        self, connection: Connection, request: Request[Any], body: bytes, ext: dict[str, int] | None = None
    ) -> None:
        self._durably.tell(connection, request, ResponseCode.SUCCESS, None, ext, body)

    def _refuse(self, connection: Connection, request: Request[Any], code: int, text: str) -> None:
        self._gateway.answer(connection, request, code, text)

    # --- progress of consumer groups

    def consume_stats(self, connection: Connection, request: Request[Any]) -> None:
        """208. A group without offsets has no queues here, as in RocketMQ."""
        group, topic, topics = request.ext.consumer_group, request.ext.topic, request.ext.topic_list
        names = frozenset(name for name in (topic, *topics.split(";")) if name)
        try:
            found = list(self._progress(group, names, QUEUES_MAX))
        except _TooMany:
            self._refuse(connection, request, ResponseCode.SYSTEM_ERROR, _too_many(f"group {group}", "name a topic"))
            return
        queues = [queue for progress in found for queue in progress.queues]
        rate = sum(progress.messages_per_s for progress in found)
        self._tell(connection, request, encode_consume_stats(GroupProgress(rate, tuple(queues))))

    def broker_consume_stats(self, connection: Connection, request: Request[Any]) -> None:
        """317. Every topic counts as ordered and as not: which it is, its consumers say."""
        groups: dict[str, list[GroupProgress]] = {}
        left = QUEUES_MAX
        try:
            for group in self._view.groups:
                found = list(self._progress(group, frozenset(), left))
                left -= sum(len(progress.queues) for progress in found)
                if found:
                    groups[group] = found
        except _TooMany:
            text = _too_many("these groups", "ask for one group at a time (208)")
            self._refuse(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        self._tell(connection, request, encode_broker_consume_stats(self._address, groups))

    def _progress(self, group: str, names: frozenset[str], queues_max: int) -> Iterator[GroupProgress]:
        """Progress in each topic in which the group has offsets. ``names``: only in these; empty: in all.

        Raises:
            _TooMany: more than ``queues_max`` queues.
        """
        view = self._view
        session = view.session.consumers.get(group)
        topics = [view.topics_by_id[topic_id] for topic_id in self._topics_of(group)]
        if names:
            topics = [topic for topic in topics if topic.name in names]
        if session is not None and session.subscriptions:  # to what its members listen no more, nobody is behind
            topics = [topic for topic in topics if topic.name in session.subscriptions]
        if sum([topic.read_queues for topic in topics]) > queues_max:
            raise _TooMany
        for topic in topics:
            queues = tuple([self._queue(group, topic, queue_id) for queue_id in range(topic.read_queues)])
            yield GroupProgress(self._traffic.given_lately(group, topic.name)[0] / _MINUTE, queues)

    def _topics_of(self, group: str) -> dict[int, None]:
        view = self._view
        found: dict[int, None] = {}
        for offsets in (view.offsets, view.session.fresh_offsets, view.session.offsets_refused):
            found |= dict.fromkeys(topic_id for topic_id, _ in offsets.get(group, ()))
        return {topic_id: None for topic_id in sorted(found) if topic_id in view.topics_by_id}

    def _queue(self, group: str, topic: TopicView, queue_id: int) -> QueueProgress:
        low, high = self._store.bounds(topic.topic_id, queue_id)
        known = query_offset(self._view, group, topic.name, queue_id)
        # Where none is stored, and where one lies before what retention left, what is left is all that can be behind.
        offset = min(known.offset, high) if isinstance(known, Stored) else low
        pulled = self._traffic.pulled_to(group, topic.topic_id, queue_id)
        time_ms = self._time_of(topic.topic_id, queue_id, offset - 1) if offset > low else 0
        queue = self._message_queue(topic, queue_id)
        return QueueProgress(queue, high, max(offset, low), min(max(offset, low, pulled), high), time_ms)

    def _time_of(self, topic_id: int, queue_id: int, queue_offset: int) -> int:
        found = self._store.read_queue(topic_id, queue_id, queue_offset, 1)
        return found[0].store_time_ms if found else 0

    def _message_queue(self, topic: TopicView, queue_id: int) -> MessageQueue:
        return MessageQueue(topic.name, self._view.settings.broker_name, queue_id)

    def consumed_by(self, connection: Connection, request: Request[Any]) -> None:
        """300: groups whose members listen to the topic, and groups with an offset in it."""
        view, name = self._view, request.ext.topic
        groups = {group: None for group, session in view.session.consumers.items() if name in session.subscriptions}
        topic = view.topics_by_name.get(name)
        if topic is not None:
            for offsets in (view.offsets, view.session.fresh_offsets, view.session.offsets_refused):
                for group, entries in offsets.items():
                    if group not in groups and any(topic_id == topic.topic_id for topic_id, _ in entries):
                        groups[group] = None
        self._tell(connection, request, encode_groups(groups))

    # --- who is connected

    def consumers(self, connection: Connection, request: Request[Any]) -> None:
        """203."""
        group = request.ext.consumer_group
        session = self._view.session.consumers.get(group)
        if session is None or not session.members:
            text = f"the consumer group[{group}] not online"
            self._refuse(connection, request, ResponseCode.CONSUMER_NOT_ONLINE, text)
            return
        peers = [
            Peer(member.client_id, self._address_of(number), member.language, member.version)
            for number, member in session.members.items()
        ]
        subscriptions = [
            Subscription(topic, expression, tags_of(expression) if kind == "TAG" else (), version, kind)
            for topic, expression, kind, version in session.subscriptions.values()
        ]
        body = encode_consumers(
            ConsumerPeers(
                session.consume_type, session.message_model, session.from_where, tuple(peers), tuple(subscriptions)
            )
        )
        self._tell(connection, request, body)

    def producers(self, connection: Connection, request: Request[Any]) -> None:
        """204: who can be asked about transactions of the group, whether it is sent its checks or fetches them."""
        name = request.ext.producer_group
        group = self._view.producer_groups.get(name)
        members = {**group.session.members, **group.session.pollers} if group is not None else {}
        if not members:
            text = f"the producer group[{name}] not exist"
            self._refuse(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        peers = []
        for number, client_id in members.items():
            # Only our client fetches its checks, and it need not have sent a heartbeat.
            version, language = self._members.software.get(number, (VERSION_OURS, LANGUAGE_OURS))
            peers.append(Peer(client_id, self._address_of(number), language, version))
        self._tell(connection, request, encode_producers(peers))

    def _address_of(self, number: int) -> str:
        connection = self._gateway.connections.get(number)
        return connection.address if connection is not None else ""

    # --- topics and groups

    def topic_stats(self, connection: Connection, request: Request[Any]) -> None:
        """202."""
        topic = self._view.topics_by_name.get(request.ext.topic)
        if topic is None:
            text = f"topic[{request.ext.topic}] not exist"
            self._refuse(connection, request, ResponseCode.TOPIC_NOT_EXIST, text)
            return
        ends = []
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            low, high = self._store.bounds(topic.topic_id, queue_id)
            time_ms = self._time_of(topic.topic_id, queue_id, high - 1) if high > low else 0
            ends.append(QueueEnds(self._message_queue(topic, queue_id), low, high, time_ms))
        self._tell(connection, request, encode_topic_stats(ends, self._put_lately(topic, _MINUTE) / _MINUTE))

    def topic_config(self, connection: Connection, request: Request[Any]) -> None:
        """351."""
        topic = self._view.topics_by_name.get(request.ext.topic)
        if topic is None:
            text = f"No topic in this broker. topic: {request.ext.topic}"
            self._refuse(connection, request, ResponseCode.TOPIC_NOT_EXIST, text)
            return
        self._tell(
            connection,
            request,
            encode_topic_config(topic.name, topic.read_queues, topic.write_queues, topic.permission),
        )

    def _put_lately(self, topic: TopicView, seconds: int) -> int:
        """Messages of the topic that became visible in the last ``seconds``, as its queue entries say."""
        since_ms = self._time.now_ms() - seconds * 1_000
        count = 0
        for queue_id in range(topic.read_queues):
            high = self._store.bounds(topic.topic_id, queue_id)[1]
            count += max(0, high - self._store.search_by_time(topic.topic_id, queue_id, since_ms))
        return count

    def group_configs(self, connection: Connection, request: Request[Any]) -> None:
        """201."""
        groups, fields = self._view.groups, request.ext
        start = max(fields.group_seq, 0)
        stop = start + (min(fields.max_group_num, GROUP_CONFIGS_MAX) if fields.max_group_num > 0 else GROUP_CONFIGS_MAX)
        if fields.max_group_num <= 0 and len(groups) > GROUP_CONFIGS_MAX:
            text = f"{len(groups)} groups, one answer has {GROUP_CONFIGS_MAX} at most; a later version of this tool asks for them page by page"
            self._refuse(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        configs = [
            GroupConfig(one.name, one.retry_max_times, one.retry_queues, one.consume_enabled)
            for one in list(groups.values())[start:stop]
        ]
        body = encode_group_configs(configs, self._view.batch_time_ms)
        self._tell(connection, request, body, {"totalGroupNum": len(groups)})

    # --- counters

    def counted(self, connection: Connection, request: Request[Any]) -> None:
        """315: what ``statsAll`` and the dashboard ask for. What is not counted is refused, as a stock broker does."""
        found = self._counted(request.ext.stats_name, request.ext.stats_key)
        if found is None:
            text = f"The stats <{request.ext.stats_name}> <{request.ext.stats_key}> not exist"
            self._refuse(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        minute, hour, day = found
        body = encode_counted(Counted(minute, _MINUTE), Counted(hour, _HOUR), Counted(day, _DAY))
        self._tell(connection, request, body)

    def _counted(self, name: str, key: str) -> tuple[int, int, int] | None:
        topic_name, _, group = key.partition("@")
        topic = self._view.topics_by_name.get(topic_name)
        if topic is None:
            return None
        if name == "TOPIC_PUT_NUMS" and not group:
            return (
                self._put_lately(topic, _MINUTE), self._put_lately(topic, _HOUR), self._put_lately(topic, _DAY),
            )  # fmt: skip
        if name == "GROUP_GET_NUMS" and group:
            return self._traffic.given_lately(group, topic.name)
        return None

    def runtime_info(self, connection: Connection, request: Request[Any]) -> None:
        """28. Only what is known here: a figure that a stock broker has and this one does not is not named."""
        view, traffic, now_ms = self._view, self._traffic, self._time.now_ms()
        rates = [traffic.rates(now_ms, seconds) for seconds in (10, 60, 600)]
        log_bytes = view.log_end - view.log_start
        puts, gives = traffic.puts_by_day, traffic.gives_by_day
        table = {
            "brokerVersion": str(VERSION_OURS),
            "brokerVersionDesc": _VERSION_NAME,
            "bootTimestamp": str(traffic.began_ms),
            "runtime": _running(now_ms - traffic.began_ms),
            "putTps": " ".join(f"{put:.2f}" for put, _ in rates),
            "getTransferedTps": " ".join(f"{given:.2f}" for _, given in rates),
            "msgPutTotalTodayNow": str(traffic.put),
            "msgPutTotalTodayMorning": str(puts.this_morning),
            "msgPutTotalYesterdayMorning": str(puts.yesterday_morning),
            "msgGetTotalTodayNow": str(traffic.given),
            "msgGetTotalTodayMorning": str(gives.this_morning),
            "msgGetTotalYesterdayMorning": str(gives.yesterday_morning),
            "sendThreadPoolQueueSize": str(self._sequencer.backlog),
            "sendThreadPoolQueueHeadWaitTimeMills": str(self._sequencer.waits_ms(now_ms)),
            # Pulls are served when they are read, and nothing of the log is locked: these are always so.
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
            "commitLogMinOffset": str(view.log_start),
            "commitLogMaxOffset": str(view.session.published),
            "dispatchBehindBytes": str(max(0, view.session.answered - view.session.published)),
            # What the log takes of what it could take: its bytes, and what is free on its disk.
            "commitLogDiskRatio": f"{log_bytes / (log_bytes + self._store.free_bytes()):.4f}",
            "halfmqUndecided": str(sum(len(group.undecided) for group in view.producer_groups.values())),
            "halfmqConnections": str(len(self._gateway.connections)),
        }
        try:
            table["earliestMessageTimeStamp"] = str(self._store.log_began_ms())
        except StoreDamaged:
            pass  # `halfmq store verify` says more; the rest is true
        self._tell(connection, request, encode_table(table))


def _kept(request: Request[Any]) -> tuple[Struct | None, int]:
    """(the fields that are read, None where the command has none; bytes that they take in memory, with the question's)."""
    if not isinstance(request.ext, Struct):
        return None, REQUEST_COST
    return request.ext, REQUEST_COST + 4 * sum([len(value) for value in astuple(request.ext) if isinstance(value, str)])


def _running(ms: int) -> str:
    minutes, seconds = divmod(ms // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _too_many(what: str, instead: str) -> str:
    return f"{what}: more than {QUEUES_MAX} queues, which is the most that one answer names; {instead}"
