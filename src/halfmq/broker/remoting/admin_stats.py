"""What administrators ask about a broker that runs (28, 201 to 204, 208, 300, 315, 317, 351; ``wire.remoting.admin_stats``), to
and from ``services.stats``."""

from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import astuple

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway, Handler
from halfmq.broker.remoting.intake import REQUEST_COST
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.stats import DAY, HOUR, MINUTE, BrokerFigures, Client, Stats, TopicProgress
from halfmq.core.decision import Refused
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

#: The name of the version that the broker says it has (``codes.VERSION_OURS``).
_VERSION_NAME: Final = "V4_9_8"


class AdminStats:
    """Registers the handlers of these commands with the gateway."""

    def __init__(self, gateway: Gateway, sequencer: Sequencer, stats: Stats, *, address: str) -> None:
        """``address``: the advertised ``host:port`` of the broker."""
        self._gateway = gateway
        self._view = sequencer.view
        self._stats = stats
        self._durably = DurableAnswers(gateway, sequencer)
        self._address = address
        in_turn: dict[int, Handler] = {
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
        gateway.handlers |= {code: partial(self._in_turn, handler) for code, handler in in_turn.items()}
        gateway.handlers[RequestCode.GET_TOPIC_CONFIG] = self.topic_config

    def _in_turn(self, handler: Handler, connection: Connection, request: Request[Any]) -> None:
        fields, held = _held(request)
        call = partial(self._gateway.serve, handler, connection, request.to_answer(fields))
        refused = self._stats.in_turn(connection, call, held)
        if refused is not None:
            self._gateway.answer(connection, request, *refusal(refused))

    def _tell(
        self, connection: Connection, request: Request[Any], body: bytes, ext: dict[str, int] | None = None
    ) -> None:
        self._durably.tell(connection, request, ResponseCode.SUCCESS, None, ext, body)

    def _refuse(
        self, connection: Connection, request: Request[Any], text: str, code: int = ResponseCode.SYSTEM_ERROR
    ) -> None:
        self._gateway.answer(connection, request, code, text)

    # --- progress of consumer groups

    def consume_stats(self, connection: Connection, request: Request[Any]) -> None:
        """208. A group without offsets has no queues here, as in RocketMQ."""
        group, topic, topics = request.ext.consumer_group, request.ext.topic, request.ext.topic_list
        found = self._stats.progress(group, frozenset(name for name in (topic, *topics.split(";")) if name))
        if isinstance(found, Refused):
            self._refuse(connection, request, found.text)
            return
        queues = tuple([queue for one in found for queue in self._progress(one).queues])
        self._tell(
            connection, request, encode_consume_stats(GroupProgress(sum(one.given_per_s for one in found), queues))
        )

    def broker_consume_stats(self, connection: Connection, request: Request[Any]) -> None:
        """317. Every topic counts as ordered and as not: which it is, its consumers say."""
        found = self._stats.all_progress()
        if isinstance(found, Refused):
            self._refuse(connection, request, f"{found.text} (208)")
            return
        groups = {group: [self._progress(one) for one in topics] for group, topics in found.items()}
        self._tell(connection, request, encode_broker_consume_stats(self._address, groups))

    def _progress(self, progress: TopicProgress) -> GroupProgress:
        queues = [
            QueueProgress(self._queue(progress.topic, queue_id), end, offset, given_to, last_time_ms)
            for queue_id, end, offset, given_to, last_time_ms in progress.queues
        ]
        return GroupProgress(progress.given_per_s, tuple(queues))

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._view.settings.broker_name, queue_id)

    def consumed_by(self, connection: Connection, request: Request[Any]) -> None:
        """300."""
        self._tell(connection, request, encode_groups(self._stats.consumer_groups_of(request.ext.topic)))

    # --- who is connected

    def consumers(self, connection: Connection, request: Request[Any]) -> None:
        """203."""
        name = request.ext.consumer_group
        group = self._stats.consumers(name)
        if group is None:
            text = f"the consumer group[{name}] not online"
            self._refuse(connection, request, text, ResponseCode.CONSUMER_NOT_ONLINE)
            return
        subscriptions = [
            Subscription(topic, expression, tags_of(expression) if kind == "TAG" else (), version, kind)
            for topic, expression, kind, version in group.subscriptions
        ]
        peers = tuple(map(_peer, group.clients))
        body = encode_consumers(
            ConsumerPeers(group.consume_type, group.message_model, group.from_where, peers, tuple(subscriptions))
        )
        self._tell(connection, request, body)

    def producers(self, connection: Connection, request: Request[Any]) -> None:
        """204."""
        name = request.ext.producer_group
        clients = self._stats.producers(name)
        if clients:
            self._tell(connection, request, encode_producers(map(_peer, clients)))
        else:
            self._refuse(connection, request, f"the producer group[{name}] not exist")

    # --- topics and groups

    def topic_stats(self, connection: Connection, request: Request[Any]) -> None:
        """202."""
        name = request.ext.topic
        topic = self._stats.topic(name)
        if topic is None:
            self._refuse(connection, request, f"topic[{name}] not exist", ResponseCode.TOPIC_NOT_EXIST)
            return
        ends = [
            QueueEnds(self._queue(name, one.queue_id), one.begin, one.end, one.last_time_ms) for one in topic.queues
        ]
        self._tell(connection, request, encode_topic_stats(ends, topic.put_per_s))

    def topic_config(self, connection: Connection, request: Request[Any]) -> None:
        """351."""
        name = request.ext.topic
        topic = self._stats.topic_settings(name)
        if topic is None:
            text = f"No topic in this broker. topic: {name}"
            self._refuse(connection, request, text, ResponseCode.TOPIC_NOT_EXIST)
        else:
            self._tell(connection, request, encode_topic_config(name, *topic))

    def group_configs(self, connection: Connection, request: Request[Any]) -> None:
        """201."""
        page = self._stats.groups(max(request.ext.group_seq, 0), max(request.ext.max_group_num, 0))
        if isinstance(page, Refused):
            self._refuse(connection, request, f"{page.text}, as a later version of this tool does")
            return
        configs = [
            GroupConfig(one.name, one.retry_max_times, one.retry_queues, one.consume_enabled) for one in page.groups
        ]
        body = encode_group_configs(configs, self._view.batch_time_ms)
        self._tell(connection, request, body, {"totalGroupNum": page.total})

    # --- counters

    def counted(self, connection: Connection, request: Request[Any]) -> None:
        """315: what ``statsAll`` and the dashboard ask for. What is not counted is refused, as a stock broker does."""
        name, key = request.ext.stats_name, request.ext.stats_key
        topic, _, group = key.partition("@")
        found = None
        if name == "TOPIC_PUT_NUMS" and not group:
            found = self._stats.put_counts(topic)
        elif name == "GROUP_GET_NUMS" and group:
            found = self._stats.given_counts(group, topic)
        if found is None:
            self._refuse(connection, request, f"The stats <{name}> <{key}> not exist")
            return
        body = encode_counted(Counted(found.minute, MINUTE), Counted(found.hour, HOUR), Counted(found.day, DAY))
        self._tell(connection, request, body)

    def runtime_info(self, connection: Connection, request: Request[Any]) -> None:
        """28. Only what is known here: a figure that a stock broker has and this one does not is not named."""
        self._tell(
            connection, request, encode_table(_runtime_info(self._stats.broker(), len(self._gateway.connections)))
        )


def _runtime_info(now: BrokerFigures, connections: int) -> dict[str, str]:
    table = {
        "brokerVersion": str(VERSION_OURS),
        "brokerVersionDesc": _VERSION_NAME,
        "bootTimestamp": str(now.began_ms),
        "runtime": _running(now.now_ms - now.began_ms),
        "putTps": " ".join(f"{put:.2f}" for put, _ in now.rates),
        "getTransferedTps": " ".join(f"{given:.2f}" for _, given in now.rates),
        "msgPutTotalTodayNow": str(now.put.now),
        "msgPutTotalTodayMorning": str(now.put.this_morning),
        "msgPutTotalYesterdayMorning": str(now.put.yesterday_morning),
        "msgGetTotalTodayNow": str(now.given.now),
        "msgGetTotalTodayMorning": str(now.given.this_morning),
        "msgGetTotalYesterdayMorning": str(now.given.yesterday_morning),
        "sendThreadPoolQueueSize": str(now.backlog),
        "sendThreadPoolQueueHeadWaitTimeMills": str(now.waits_ms),
        # Pulls are served when they are read, and nothing of the log is locked: these are always so.
        "pullThreadPoolQueueSize": "0",
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "pageCacheLockTimeMills": "0",
        "commitLogMinOffset": str(now.log_begin),
        "commitLogMaxOffset": str(now.log_end),
        "dispatchBehindBytes": str(now.lag_bytes),
        "commitLogDiskRatio": f"{now.disk_ratio:.4f}",
        "halfmqUndecided": str(now.undecided),
        "halfmqConnections": str(connections),
    }
    if now.earliest_ms is not None:
        table["earliestMessageTimeStamp"] = str(now.earliest_ms)
    return table


def _peer(client: Client) -> Peer:
    # Only our client fetches its checks, and it need not have sent a heartbeat.
    version, language = client.library or (VERSION_OURS, LANGUAGE_OURS)
    return Peer(client.client_id, client.address, language, version)


def _held(request: Request[Any]) -> tuple[Struct | None, int]:
    """(the fields that are read, None where the command has none; bytes of memory that they take with the request)."""
    if not isinstance(request.ext, Struct):
        return None, REQUEST_COST
    return request.ext, REQUEST_COST + 4 * sum([len(value) for value in astuple(request.ext) if isinstance(value, str)])


def _running(ms: int) -> str:
    minutes, seconds = divmod(ms // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
