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

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from halfmq.model.settings import GroupSettings
from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.attributes import hold_attributes
from halfmq.wire.remoting.group_bodies import MessageQueue, queue_object
from halfmq.wire.remoting.heartbeat import Subscription, write_subscription

#: Of a queue: its number, one past the last visible message, the group's offset, one past the last message delivered to a member, and the
#: store time of the last consumed message, ms (0: none).
QueueProgress = tuple[int, int, int, int, int]
#: Of a topic: its name, messages a second that are delivered to members, average of the last minute, and its queues.
TopicProgress = tuple[str, float, Sequence[QueueProgress]]


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


def encode_consume_stats(broker_name: str, topics: Sequence[TopicProgress]) -> bytes:
    """Body of 208: a group's progress in these topics."""
    queues = [
        (
            queue_object(MessageQueue(topic, broker_name, queue_id)),
            {"brokerOffset": end, "consumerOffset": offset, "lastTimestamp": last_time_ms, "pullOffset": pulled},
        )
        for topic, _, rows in topics
        for queue_id, end, offset, pulled, last_time_ms in rows
    ]
    return b'{"consumeTps":%b,"offsetTable":%b}' % (
        java_json.dumps(sum([per_s for _, per_s, _ in topics])),
        java_json.dumps_object_keys(queues),
    )


def encode_broker_consume_stats(address: str, broker_name: str, groups: Mapping[str, Sequence[TopicProgress]]) -> bytes:
    """Body of 317. ``groups``: by name, the progress in each topic. Every topic counts both as ordered and as unordered: only its
    consumers know which it is.
    """
    lag = in_flight = 0
    parts = []
    for group, topics in groups.items():
        for _, _, rows in topics:
            lag += sum(end - offset for _, end, offset, _, _ in rows)
            in_flight += sum(pulled - offset for _, _, offset, pulled, _ in rows)
        stats = b",".join([encode_consume_stats(broker_name, [topic]) for topic in topics])
        parts.append(b"{%b:[%b]}" % (java_json.dumps(group), stats))
    return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}' % (
        java_json.dumps(address),
        b",".join(parts),
        lag,
        in_flight,
    )


def encode_topic_stats(
    broker_name: str, topic: str, puts_per_s: float, queues: Iterable[tuple[int, int, int, int]]
) -> bytes:
    """Body of 202. ``queues``: number, first offset, one past the last visible message, store time of that, ms (0: none)."""
    pairs = [
        (
            queue_object(MessageQueue(topic, broker_name, queue_id)),
            {"lastUpdateTimestamp": last_time_ms, "maxOffset": end, "minOffset": start},
        )
        for queue_id, start, end, last_time_ms in queues
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


def encode_group_configs(groups: Iterable[GroupSettings], changed_ms: int) -> bytes:
    """Body of 201. ``changed_ms``: a time at or after the last change."""
    table = {group.name: _group_config(group) for group in groups}
    version = {"counter": len(table), "stateVersion": 0, "timestamp": changed_ms}
    return java_json.dumps({"dataVersion": version, "forbiddenTable": {}, "subscriptionGroupTable": table})


def encode_group_config(group: GroupSettings) -> bytes:
    """Body of 352."""
    return java_json.dumps(_group_config(group))


def _group_config(group: GroupSettings) -> dict[str, object]:
    return {
        "attributes": hold_attributes(group.hold_topics, group.hold_ms),
        "brokerId": 0,
        "consumeBroadcastEnable": group.broadcast_enabled,
        "consumeEnable": group.consume_enabled,
        "consumeFromMinEnable": group.from_min_enabled,
        "groupName": group.name,
        "notifyConsumerIdsChangedEnable": group.notifies_members,
        "retryMaxTimes": group.retry_max_times,
        "retryQueueNums": group.retry_queues,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def encode_topic_config(
    name: str, read_queues: int, write_queues: int, permission: int, *, ordered: bool, attributes: Mapping[str, str]
) -> bytes:
    """Body of 351. ``attributes``: as in ``attributes.topic_attributes``."""
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


def encode_counted(minute: int, hour: int, day: int) -> bytes:
    """Body of 315, without the average per request (``avgpt``), which is not counted."""
    periods = ("statsMinute", minute, 60), ("statsHour", hour, 3_600), ("statsDay", day, 86_400)
    return java_json.dumps({name: {"sum": count, "tps": count / seconds} for name, count, seconds in periods})
