"""Statistics for administrators, translated to and from ``services.stats``: 28, 201 to 204, 208, 300, 315, 317, 351, 352
(``wire.remoting.admin_stats``).

Responses wait until their content is durable. The work for one response is bounded, whoever asks.
"""

from collections import deque
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import astuple

from halfmq.broker.peers.peer import REQUEST_COST
from halfmq.broker.peers.shares import Shares, owner_of
from halfmq.broker.remoting.gateway import Connection, Handler
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.stats import (
    QUEUES_MAX,
    TooManyQueues,
)
from halfmq.wire.remoting.admin_stats import (
    ConsumerPeers,
    Peer,
    encode_broker_consume_stats,
    encode_consume_stats,
    encode_consumers,
    encode_counted,
    encode_group_config,
    encode_group_configs,
    encode_groups,
    encode_producers,
    encode_table,
    encode_topic_config,
    encode_topic_stats,
)
from halfmq.wire.remoting.attributes import topic_attributes
from halfmq.wire.remoting.codes import LANGUAGE_OURS, VERSION_OURS, ResponseCode
from halfmq.wire.remoting.fields import names_in
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.heartbeat import Subscription, tags_of

#: Maximum number of waiting requests of all administrators.
ASKED_MAX: Final = 256
#: Maximum number of groups in a response to 201: the largest ones stay far below the size of a frame.
GROUP_CONFIGS_MAX: Final = 10_000
#: Name of the version that the broker reports (``codes.VERSION_OURS``).
_VERSION_NAME: Final = "V4_9_8"
_AT_ONCE: Final = frozenset({"topic_config", "group_config"})


class AdminStats(Handlers):
    """Requests of mqadmin and of dashboards for statistics."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._stats = parts.stats
        self._members = parts.members
        self._address = parts.address
        self._loop = parts.loop
        #: Waiting requests, with the bytes that each keeps.
        self._asked: deque[tuple[Handler, Connection, str, Request[Any], int]] = deque()
        self._shares = Shares("requests for statistics that wait")

    def handler(self, name: str) -> Handler:
        """All but the settings of one topic or group wait for a turn of their own."""
        found = super().handler(name)
        return found if name in _AT_ONCE else partial(self._in_turn, found)

    def _in_turn(self, handler: Handler, connection: Connection, request: Request[Any]) -> None:
        """Serve one of these requests in a turn of the loop, whoever sent it: each may examine thousands of queues."""
        owner = owner_of(connection)
        busy = self._shares.refusal(owner, ASKED_MAX)
        if busy is not None:
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_BUSY, f"{busy}: try again")
            return
        self._shares.add(owner)
        fields, kept = _kept(request)
        connection.keep(kept)
        self._asked.append((handler, connection, owner, request.to_answer(fields), kept))
        if len(self._asked) == 1:
            self._loop.call_soon(self._answer_next)

    def _answer_next(self) -> None:
        handler, connection, owner, request, kept = self._asked[0]
        if connection.is_open:
            self._gateway.serve(handler, connection, request)
            self._gateway.peers.flush()
        self._asked.popleft()
        self._shares.add(owner, -1)
        connection.give_back(kept)
        if self._asked:
            self._loop.call_soon(self._answer_next)

    # --- progress of consumer groups

    def consume_stats(self, connection: Connection, request: Request[Any]) -> None:
        """208. A group without offsets has no queues here, as in RocketMQ."""
        group, topic, topics = request.ext.consumer_group, request.ext.topic, request.ext.topic_list
        names = frozenset([name for name in (topic, *names_in(topics, ";", QUEUES_MAX)) if name])
        try:
            found = self._stats.progress(group, names)
        except TooManyQueues:
            self._gateway.answer(
                connection, request, ResponseCode.SYSTEM_ERROR, _too_many(f"group {group}", "name a topic")
            )
            return
        body = encode_consume_stats(self._view.settings.broker_name, found)
        self._answer_durably(connection, request, body=body)

    def broker_consume_stats(self, connection: Connection, request: Request[Any]) -> None:
        """317: progress of all groups."""
        try:
            found = self._stats.progress_of_all()
        except TooManyQueues:
            text = _too_many("these groups", "ask for one group at a time (208)")
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        body = encode_broker_consume_stats(self._address, self._view.settings.broker_name, found)
        self._answer_durably(connection, request, body=body)

    def consumed_by(self, connection: Connection, request: Request[Any]) -> None:
        """300: topics in which a group has offsets."""
        self._answer_durably(connection, request, body=encode_groups(self._stats.groups_of(request.ext.topic)))

    # --- who is connected

    def consumers(self, connection: Connection, request: Request[Any]) -> None:
        """203: members of a consumer group."""
        session = self._stats.consumers(request.ext.consumer_group)
        if session is None:
            text = f"the consumer group[{request.ext.consumer_group}] not online"
            self._gateway.answer(connection, request, ResponseCode.CONSUMER_NOT_ONLINE, text)
            return
        peers = [
            Peer(member.client_id, self._address_of(number), member.language, member.version)
            for number, member in session.members.items()
        ]
        subscriptions = [
            Subscription(topic, expression, tags_of(expression) if kind == "TAG" else (), version, kind)
            for topic, expression, kind, version in session.subscriptions.values()
        ]
        group = ConsumerPeers(
            session.consume_type, session.message_model, session.from_where, tuple(peers), tuple(subscriptions)
        )
        self._answer_durably(connection, request, body=encode_consumers(group))

    def producers(self, connection: Connection, request: Request[Any]) -> None:
        """204: connected producers of a group."""
        found = self._stats.producers(request.ext.producer_group)
        if not found:
            text = f"the producer group[{request.ext.producer_group}] not exist"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        peers = []
        for number, client_id in found.items():
            # Only our client fetches its checks, and it may not have sent a heartbeat.
            version, language = self._members.software.get(number, (VERSION_OURS, LANGUAGE_OURS))
            peers.append(Peer(client_id, self._address_of(number), language, version))
        self._answer_durably(connection, request, body=encode_producers(peers))

    def _address_of(self, number: int) -> str:
        connection = self._gateway.peers.connected.get(number)
        return connection.address if connection is not None else ""

    # --- topics and groups

    def topic_stats(self, connection: Connection, request: Request[Any]) -> None:
        """202: bounds of a topic's queues."""
        name = request.ext.topic
        found = self._stats.topic(name)
        if found is None:
            self._gateway.answer(connection, request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
            return
        body = encode_topic_stats(self._view.settings.broker_name, name, *found)
        self._answer_durably(connection, request, body=body)

    def topic_config(self, connection: Connection, request: Request[Any]) -> None:
        """351: settings of a topic."""
        topic = self._view.topics_by_name.get(request.ext.topic)
        if topic is None:
            text = f"No topic in this broker. topic: {request.ext.topic}"
            self._gateway.answer(connection, request, ResponseCode.TOPIC_NOT_EXIST, text)
            return
        body = encode_topic_config(
            topic.name, topic.read_queues, topic.write_queues, topic.permission,
            ordered=topic.ordered, attributes=topic_attributes(topic.message_type),
        )  # fmt: skip
        self._answer_durably(connection, request, body=body)

    def group_configs(self, connection: Connection, request: Request[Any]) -> None:
        """201: settings of all consumer groups."""
        groups, fields = self._view.groups, request.ext
        start = max(fields.group_seq, 0)
        stop = start + (min(fields.max_group_num, GROUP_CONFIGS_MAX) if fields.max_group_num > 0 else GROUP_CONFIGS_MAX)
        if fields.max_group_num <= 0 and len(groups) > GROUP_CONFIGS_MAX:
            text = f"{len(groups)} groups, one response has {GROUP_CONFIGS_MAX} at most; a later version of this tool requests them page by page"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        body = encode_group_configs(list(groups.values())[start:stop], self._view.batch_time_ms)
        self._answer_durably(connection, request, {"totalGroupNum": len(groups)}, body)

    def group_config(self, connection: Connection, request: Request[Any]) -> None:
        """352: settings of one consumer group."""
        group = self._view.groups.get(request.ext.group)
        if group is None:
            text = f"No group in this broker. group: {request.ext.group}"
            self._gateway.answer(connection, request, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        else:
            self._answer_durably(connection, request, body=encode_group_config(group))

    # --- counters

    def counted(self, connection: Connection, request: Request[Any]) -> None:
        """315: requested by ``statsAll`` and the dashboard. Unknown statistics are refused, as by RocketMQ's broker."""
        kind, key = request.ext.stats_name, request.ext.stats_key
        topic, _, group = key.partition("@")
        found = None
        if kind == "TOPIC_PUT_NUMS" and not group:
            found = self._stats.written(topic)
        elif kind == "GROUP_GET_NUMS" and group:
            found = self._stats.delivered(topic, group)
        if found is None:
            self._gateway.answer(
                connection, request, ResponseCode.SYSTEM_ERROR, f"The stats <{kind}> <{key}> not exist"
            )
            return
        self._answer_durably(connection, request, body=encode_counted(*found))

    def runtime_info(self, connection: Connection, request: Request[Any]) -> None:
        """28. Only figures that this broker has: those that only RocketMQ's broker has are omitted."""
        found = self._stats.broker_stats()
        written, delivered = found.written_by_day, found.delivered_by_day
        delivered_rates = " ".join(f"{delivered:.2f}" for _, delivered in found.rates)
        table = {
            "brokerVersion": str(VERSION_OURS),
            "brokerVersionDesc": _VERSION_NAME,
            "bootTimestamp": str(found.began_ms),
            "runtime": _running(found.now_ms - found.began_ms),
            "putTps": " ".join(f"{put:.2f}" for put, _ in found.rates),
            # RocketMQ 4.9 spells it so, 5.x the other way.
            "getTransferedTps": delivered_rates,
            "getTransferredTps": delivered_rates,
            # Newer tools show a broker without it as not activated.
            "brokerActive": "true",
            "msgPutTotalTodayNow": str(found.written),
            "msgPutTotalTodayMorning": str(written.this_morning),
            "msgPutTotalYesterdayMorning": str(written.yesterday_morning),
            "msgGetTotalTodayNow": str(found.delivered),
            "msgGetTotalTodayMorning": str(delivered.this_morning),
            "msgGetTotalYesterdayMorning": str(delivered.yesterday_morning),
            "sendThreadPoolQueueSize": str(found.backlog),
            "sendThreadPoolQueueHeadWaitTimeMills": str(found.backlog_wait_ms),
            # Pulls are served when they are read, and no part of the log is locked: these are constant.
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
            "commitLogMinOffset": str(found.log_start),
            "commitLogMaxOffset": str(found.high_watermark),
            "dispatchBehindBytes": str(found.index_lag_bytes),
            # Size of the log relative to the log plus the free space on its disk.
            "commitLogDiskRatio": f"{found.log_bytes / (found.log_bytes + found.free_bytes):.4f}",
            "halfmqUndecided": str(found.undecided),
            "halfmqConnections": str(self._gateway.peers.places.taken),
        }
        if found.log_began_ms is not None:
            table["earliestMessageTimeStamp"] = str(found.log_began_ms)
        self._answer_durably(connection, request, body=encode_table(table))


def _kept(request: Request[Any]) -> tuple[Struct | None, int]:
    """(the fields to keep, None if the command has none; bytes of memory that they and the request take)."""
    if not isinstance(request.ext, Struct):
        return None, REQUEST_COST
    return request.ext, REQUEST_COST + 4 * sum([len(value) for value in astuple(request.ext) if isinstance(value, str)])


def _running(ms: int) -> str:
    minutes, seconds = divmod(ms // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _too_many(what: str, instead: str) -> str:
    return f"{what}: more than {QUEUES_MAX} queues, the maximum of one response; {instead}"
