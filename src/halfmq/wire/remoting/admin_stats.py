"""Bodies of what administrators ask about a broker that runs: progress of groups, queues of topics, who is connected.

    28   GET_BROKER_RUNTIME_INFO           figures by name, all of them text
    201  GET_ALL_SUBSCRIPTIONGROUP_CONFIG  settings of consumer groups
    202  GET_TOPIC_STATS_INFO              where the queues of a topic begin and end
    203  GET_CONSUMER_CONNECTION_LIST      members of a consumer group
    204  GET_PRODUCER_CONNECTION_LIST      members of a producer group
    208  GET_CONSUME_STATS                 how far a consumer group is
    300  QUERY_TOPIC_CONSUME_BY_WHO        consumer groups of a topic
    315  VIEW_BROKER_STATS_DATA            one counter over a minute, an hour and a day
    317  GET_BROKER_CONSUME_STATS          208 of all groups
    351  GET_TOPIC_CONFIG                  settings of a topic; newer tools ask for them before they ask for 202 and 208

Maps by queue have objects as keys, unquoted, as fastjson writes them (``java_json``). Written only: nobody here asks.
Source: RocketMQ ``remoting/protocol/admin`` and ``remoting/protocol/body``.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.group_bodies import MessageQueue, queue_object
from halfmq.wire.remoting.heartbeat import Subscription, write_subscription


class QueueProgress(NamedTuple):
    """Where a group stands in one queue. What is behind: ``broker_offset - consumer_offset``."""

    queue: MessageQueue
    #: One past the last visible message.
    broker_offset: int
    consumer_offset: int
    #: One past the last message that a member was given.
    pull_offset: int
    #: Store time of the last message that the group has done, ms; 0: none.
    last_time_ms: int


class GroupProgress(NamedTuple):
    """``messages_per_s``: what the members were given, over the last minute."""

    messages_per_s: float
    queues: tuple[QueueProgress, ...]


class QueueEnds(NamedTuple):
    queue: MessageQueue
    min_offset: int
    #: One past the last visible message.
    max_offset: int
    #: Store time of the last message, ms; 0: none.
    last_time_ms: int


class Peer(NamedTuple):
    """One connection of a client. ``version``: its MQVersion ordinal."""

    client_id: str
    #: ``ip:port``.
    address: str
    language: str
    version: int


class ConsumerPeers(NamedTuple):
    consume_type: str
    message_model: str
    from_where: str
    peers: tuple[Peer, ...]
    subscriptions: tuple[Subscription, ...]


class GroupConfig(NamedTuple):
    name: str
    retry_times_max: int
    retry_queues: int
    consume_enabled: bool


class Counted(NamedTuple):
    """How many in the last ``seconds``."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    seconds: int


def encode_consume_stats(progress: GroupProgress) -> bytes:
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
    """``groups``: progress by group, one for each topic."""
    behind = in_flight = 0
    parts = []
    for group, topics in groups.items():
        for progress in topics:
            behind += sum(one.broker_offset - one.consumer_offset for one in progress.queues)
            in_flight += sum(one.pull_offset - one.consumer_offset for one in progress.queues)
        stats = b",".join(map(encode_consume_stats, topics))
        parts.append(b"{%b:[%b]}" % (java_json.dumps(group), stats))
    return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}' % (
        java_json.dumps(address),
        b",".join(parts),
        behind,
        in_flight,
    )


def encode_topic_stats(queues: Iterable[QueueEnds], puts_per_s: float) -> bytes:
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
    return java_json.dumps({"connectionSet": [_peer(peer) for peer in peers]})


def encode_consumers(consumers: ConsumerPeers) -> bytes:
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
    """``changed_ms``: a time at or after the last change."""
    table = {
        group.name: {
            "brokerId": 0,
            "consumeBroadcastEnable": True,
            "consumeEnable": group.consume_enabled,
            "consumeFromMinEnable": True,
            "groupName": group.name,
            "notifyConsumerIdsChangedEnable": True,
            "retryMaxTimes": group.retry_times_max,
            "retryQueueNums": group.retry_queues,
            "whichBrokerWhenConsumeSlowly": 1,
        }
        for group in groups
    }
    version = {"counter": len(table), "stateVersion": 0, "timestamp": changed_ms}
    return java_json.dumps({"dataVersion": version, "forbiddenTable": {}, "subscriptionGroupTable": table})


def encode_topic_config(name: str, read_queues: int, write_queues: int, permission: int) -> bytes:
    return java_json.dumps(
        {
            "attributes": {},
            "order": False,
            "perm": permission,
            "readQueueNums": read_queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": write_queues,
        }
    )


def encode_table(table: Mapping[str, str]) -> bytes:
    """The body of 28."""
    return java_json.dumps({"table": dict(table)})


def encode_groups(names: Iterable[str]) -> bytes:
    return java_json.dumps({"groupList": list(names)})


def encode_counted(minute: Counted, hour: Counted, day: Counted) -> bytes:
    """How many a request brings (``avgpt``) is not counted, so it is left out."""
    return java_json.dumps({"statsMinute": _counted(minute), "statsHour": _counted(hour), "statsDay": _counted(day)})


def _counted(counted: Counted) -> dict[str, object]:
    return {"sum": counted.count, "tps": counted.count / counted.seconds}
