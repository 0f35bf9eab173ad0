"""Decoders of administration bodies, for commands that ask a broker, halfmq's or RocketMQ's: 201, 202, 203, 204, 208, 300 and 351.
``admin_stats`` encodes them.

Source: RocketMQ ``remoting/protocol/admin`` and ``remoting/protocol/body``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from halfmq.errors import ProtocolError
from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.admin_stats import Peer

T = TypeVar("T")

#: Maximum body with queues as keys, bytes: halfmq's largest has 8,000 queues in 1 MiB. A command waits for the tolerant parser.
_BYTES_MAX: Final = 4 << 20


class QueueStats(NamedTuple):
    """A queue of a topic, of 202. ``last_time_ms``: store time of its last message, ms; 0: there is none."""

    broker: str
    queue: int
    first: int
    end: int
    last_time_ms: int


class GroupQueue(NamedTuple):
    """A consumer group's progress in a queue, of 208. ``done_time_ms``: store time of the last message it has finished, ms; 0: none."""

    topic: str
    broker: str
    queue: int
    end: int
    offset: int
    done_time_ms: int

    @property
    def lag(self) -> int:
        """Messages that the group has not finished."""
        return max(0, self.end - self.offset)


class TopicSettings(NamedTuple):
    """351. ``message_type``: RocketMQ's name, such as TRANSACTION; empty: none is set."""

    name: str
    read_queues: int
    write_queues: int
    permission: int
    ordered: bool
    message_type: str


def decode_topic_stats(body: bytes) -> list[QueueStats]:
    """Body of 202, in the order of brokers and queues. Raises ProtocolError: malformed, as all of these."""

    def read(document: Any) -> list[QueueStats]:
        return sorted(
            QueueStats(
                str(queue["brokerName"]),
                int(queue["queueId"]),
                int(row["minOffset"]),
                int(row["maxOffset"]),
                int(row["lastUpdateTimestamp"]),
            )
            for queue, row in _by_queue(document["offsetTable"])
        )

    return _read(body, "statistics of a topic are", read)


def decode_consume_stats(body: bytes) -> list[GroupQueue]:
    """Body of 208, in the order of topics, brokers and queues."""

    def read(document: Any) -> list[GroupQueue]:
        return sorted(
            GroupQueue(
                str(queue["topic"]),
                str(queue["brokerName"]),
                int(queue["queueId"]),
                int(row["brokerOffset"]),
                int(row["consumerOffset"]),
                int(row["lastTimestamp"]),
            )
            for queue, row in _by_queue(document["offsetTable"])
        )

    return _read(body, "the progress of a group is", read)


def decode_peers(body: bytes) -> list[Peer]:
    """Body of 203 or 204: the connections."""

    def read(document: Any) -> list[Peer]:
        return [
            Peer(str(one["clientId"]), str(one["clientAddr"]), str(one["language"]), int(one["version"]))
            for one in document["connectionSet"]
        ]

    return _read(body, "a list of connections is", read)


def decode_groups(body: bytes) -> list[str]:
    """Body of 300: names of groups."""
    return _read(body, "a list of groups is", lambda document: [str(name) for name in document["groupList"]])


def decode_group_names(body: bytes) -> list[str]:
    """Body of 201: names of the groups in it."""
    return _read(body, "the settings of groups are", lambda document: [*document["subscriptionGroupTable"]])


def decode_topic_settings(body: bytes) -> TopicSettings:
    """Body of 351."""

    def read(document: Any) -> TopicSettings:
        attributes: Mapping[str, Any] = document.get("attributes") or {}
        return TopicSettings(
            str(document["topicName"]),
            int(document["readQueueNums"]),
            int(document["writeQueueNums"]),
            int(document["perm"]),
            bool(document.get("order")),
            str(attributes.get("message.type") or attributes.get("+message.type") or ""),
        )

    return _read(body, "the settings of a topic are", read)


def _by_queue(table: Mapping[str, Any]) -> Iterable[tuple[Any, Any]]:
    return ((java_json.loads(key.encode()), row) for key, row in table.items())


def _read(body: bytes, what: str, shape: Callable[[Any], T]) -> T:
    document = java_json.loads(body, _BYTES_MAX, _BYTES_MAX)
    try:
        return shape(document)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"{what} malformed: {error!r}") from error
