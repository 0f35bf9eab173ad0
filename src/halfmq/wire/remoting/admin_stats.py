"""Response bodies of administration commands: consumer lag, queues, connections, configuration.

    28   GET_BROKER_RUNTIME_INFO           figures by name, as text
    201  GET_ALL_SUBSCRIPTIONGROUP_CONFIG  settings of consumer groups
    202  GET_TOPIC_STATS_INFO              first and end offsets of the queues of a topic
    203  GET_CONSUMER_CONNECTION_LIST      members of a consumer group
    204  GET_PRODUCER_CONNECTION_LIST      members of a producer group
    208  GET_CONSUME_STATS                 lag of a consumer group
    300  QUERY_TOPIC_CONSUME_BY_WHO        consumer groups of a topic
    315  VIEW_BROKER_STATS_DATA            a counter over a minute, an hour and a day
    317  GET_BROKER_CONSUME_STATS          208 of all groups
    351  GET_TOPIC_CONFIG                  settings of a topic; newer tools request them before 202 and 208
    352  GET_SUBSCRIPTIONGROUP_CONFIG      settings of a consumer group

Maps with queues as keys have unquoted objects as keys, as in fastjson (``java_json``). There are no decoders.
Source: RocketMQ ``remoting/protocol/admin`` and ``remoting/protocol/body``.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.group_bodies import MessageQueue, queue_object
from halfmq.wire.remoting.heartbeat import Subscription, write_subscription


class QueueProgress(NamedTuple):
    """Progress of a consumer group in a queue. The lag is ``broker_offset - consumer_offset``."""

    queue: MessageQueue
    #: One past the last visible message.
    broker_offset: int
    consumer_offset: int
    #: One past the last message delivered to a member.
    pull_offset: int
    #: Store time of the last consumed message, ms; 0: none.
    last_time_ms: int


class GroupProgress(NamedTuple):
    """Progress in the queues of a topic. ``messages_per_s``: delivered to members, average of the last minute."""

    messages_per_s: float
    queues: tuple[QueueProgress, ...]


class QueueEnds(NamedTuple):
    """Offset range of a queue."""

    queue: MessageQueue
    min_offset: int
    #: One past the last visible message.
    max_offset: int
    #: Store time of the last message, ms; 0: none.
    last_time_ms: int


class Peer(NamedTuple):
    """A client connection. ``version``: ordinal of its ``MQVersion``."""

    client_id: str
    #: ``ip:port``.
    address: str
    language: str
    version: int


class ConsumerPeers(NamedTuple):
    """Members of a consumer group."""

    consume_type: str
    message_model: str
    from_where: str
    peers: tuple[Peer, ...]
    subscriptions: tuple[Subscription, ...]


class GroupConfig(NamedTuple):
    """Settings of a consumer group."""

    name: str
    retry_times_max: int
    retry_queues: int
    consume_enabled: bool
    broadcast_enabled: bool
    from_min_enabled: bool
    notifies_members: bool
    #: As in ``group_attributes``.
    attributes: Mapping[str, str] = {}


class Counted(NamedTuple):
    """A counter over the last ``seconds``."""

    count: int  # type: ignore[assignment]  # shadows tuple.count
    seconds: int


def encode_consume_stats(progress: GroupProgress) -> bytes:
    """Body of 208."""
    queues = [
        (
            queue_object(one.queue),
            {
                "brokerOffset": one.broker_offset,
                "consumerOffset": one.consumer_offset,
                "lastTimestamp": one.last_time_ms,
                "pullOffset": one.pull_offset,
            },
        )
        for one in progress.queues
    ]
    return b'{"consumeTps":%b,"offsetTable":%b}' % (
        java_json.dumps(progress.messages_per_s),
        java_json.dumps_object_keys(queues),
    )


def encode_broker_consume_stats(address: str, groups: Mapping[str, Iterable[GroupProgress]]) -> bytes:
    """Body of 317. ``groups``: by name, the progress in each topic."""
    lag = in_flight = 0
    parts = []
    for group, topics in groups.items():
        for progress in topics:
            lag += sum(one.broker_offset - one.consumer_offset for one in progress.queues)
            in_flight += sum(one.pull_offset - one.consumer_offset for one in progress.queues)
        stats = b",".join(map(encode_consume_stats, topics))
        parts.append(b"{%b:[%b]}" % (java_json.dumps(group), stats))
    return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}' % (
        java_json.dumps(address),
        b",".join(parts),
        lag,
        in_flight,
    )


def encode_topic_stats(queues: Iterable[QueueEnds], puts_per_s: float) -> bytes:
    """Body of 202."""
    pairs = [
        (
            queue_object(one.queue),
            {"lastUpdateTimestamp": one.last_time_ms, "maxOffset": one.max_offset, "minOffset": one.min_offset},
        )
        for one in queues
    ]
    return b'{"offsetTable":%b,"topicPutTps":%b}' % (
        java_json.dumps_object_keys(pairs),
        java_json.dumps(puts_per_s),
    )


def encode_producers(peers: Iterable[Peer]) -> bytes:
    """Body of 204."""
    return java_json.dumps({"connectionSet": [_peer(peer) for peer in peers]})


def encode_consumers(consumers: ConsumerPeers) -> bytes:
    """Body of 203."""
    return java_json.dumps(
        {
            "connectionSet": [_peer(peer) for peer in consumers.peers],
            "consumeFromWhere": consumers.from_where,
            "consumeType": consumers.consume_type,
            "messageModel": consumers.message_model,
            "subscriptionTable": {item.topic: write_subscription(item) for item in consumers.subscriptions},
        }
    )


def _peer(peer: Peer) -> dict[str, object]:
    return {
        "clientAddr": peer.address,
        "clientId": peer.client_id,
        "language": peer.language,
        "version": peer.version,
    }


def encode_group_configs(groups: Iterable[GroupConfig], changed_ms: int) -> bytes:
    """Body of 201. ``changed_ms``: a time at or after the last change."""
    table = {group.name: _group_config(group) for group in groups}
    version = {"counter": len(table), "stateVersion": 0, "timestamp": changed_ms}
    return java_json.dumps({"dataVersion": version, "forbiddenTable": {}, "subscriptionGroupTable": table})


def encode_group_config(group: GroupConfig) -> bytes:
    """Body of 352."""
    return java_json.dumps(_group_config(group))


def _group_config(group: GroupConfig) -> dict[str, object]:
    return {
        "attributes": dict(group.attributes),
        "brokerId": 0,
        "consumeBroadcastEnable": group.broadcast_enabled,
        "consumeEnable": group.consume_enabled,
        "consumeFromMinEnable": group.from_min_enabled,
        "groupName": group.name,
        "notifyConsumerIdsChangedEnable": group.notifies_members,
        "retryMaxTimes": group.retry_times_max,
        "retryQueueNums": group.retry_queues,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def encode_topic_config(
    name: str, read_queues: int, write_queues: int, permission: int, *, ordered: bool, attributes: Mapping[str, str]
) -> bytes:
    """Body of 351. ``attributes``: as in ``topic_attributes``."""
    return java_json.dumps(
        {
            "attributes": dict(attributes),
            "order": ordered,
            "perm": permission,
            "readQueueNums": read_queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": write_queues,
        }
    )


def encode_table(table: Mapping[str, str]) -> bytes:
    """Body of 28."""
    return java_json.dumps({"table": dict(table)})


def encode_groups(names: Iterable[str]) -> bytes:
    """Body of 300."""
    return java_json.dumps({"groupList": list(names)})


def encode_counted(minute: Counted, hour: Counted, day: Counted) -> bytes:
    """Body of 315, without the average per request (``avgpt``), which is not counted."""
    return java_json.dumps({"statsMinute": _counted(minute), "statsHour": _counted(hour), "statsDay": _counted(day)})


def _counted(counted: Counted) -> dict[str, object]:
    return {"sum": counted.count, "tps": counted.count / counted.seconds}
