"""Body of HEART_BEAT (34): the groups of a connection and their subscriptions.

Java writes enums by name; the C++ client writes ordinals and ``subVersion`` as text, and omits empty lists. Its hash codes are
unreliable, so tags are taken from ``tagsSet`` or the expression.
Source: RocketMQ ``HeartbeatData``; rocketmq-client-cpp ``src/protocol/HeartbeatData.h``.
"""

from typing import Any, Final, NamedTuple

from halfmq.errors import ProtocolError
from halfmq.model.ids import java_string_hash
from halfmq.wire.remoting import java_json

CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
EVERYTHING: Final = "*"


class Subscription(NamedTuple):
    """Subscription of a group to a topic. ``tags`` is empty for all messages, and for SQL92."""

    topic: str
    expression: str
    tags: tuple[str, ...]
    #: Time of the client, ms: of two subscriptions the newer wins.
    version: int
    expression_type: str = "TAG"


class ConsumerGroup(NamedTuple):
    """A consumer group of a client; the values are names of the enums above."""

    group: str
    consume_type: str
    message_model: str
    from_where: str
    subscriptions: tuple[Subscription, ...]


class HeartbeatBody(NamedTuple):
    """A heartbeat."""

    client_id: str
    producer_groups: tuple[str, ...]
    consumer_groups: tuple[ConsumerGroup, ...]


def tags_of(expression: str) -> tuple[str, ...]:
    """Tags of ``A || B``; empty for ``*`` and an empty expression, which match all messages."""
    tags = tuple(tag for part in expression.split("||") if (tag := part.strip()))
    return () if EVERYTHING in tags else tags


def decode_heartbeat(body: bytes) -> HeartbeatBody:
    """Decode a heartbeat of any client.

    Raises:
        ProtocolError: not JSON, or incomplete.
    """
    data = java_json.loads_request(body)
    try:
        return HeartbeatBody(
            str(data["clientID"]),
            tuple(str(item["groupName"]) for item in data.get("producerDataSet") or ()),
            tuple(_read_group(item) for item in data.get("consumerDataSet") or ()),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"a heartbeat cannot be read: {error!r}") from error


def _read_group(item: Any) -> ConsumerGroup:
    return ConsumerGroup(
        str(item["groupName"]),
        _name(item.get("consumeType", 1), CONSUME_TYPES),
        _name(item.get("messageModel", 1), MESSAGE_MODELS),
        _name(item.get("consumeFromWhere", 0), FROM_WHERE),
        tuple(read_subscription(part) for part in item.get("subscriptionDataSet") or ()),
    )


def read_subscription(item: Any) -> Subscription:
    """A ``SubscriptionData`` of a heartbeat or of 46. The caller handles TypeError, KeyError, ValueError and the like."""
    expression = str(item.get("subString") or EVERYTHING)
    expression_type = str(item.get("expressionType") or "TAG")
    tags = tuple(str(tag) for tag in item.get("tagsSet") or ()) or tags_of(expression)
    if expression_type != "TAG":
        tags = ()
    return Subscription(str(item["topic"]), expression, tags, int(item.get("subVersion") or 0), expression_type)


def _name(value: object, names: tuple[str, ...]) -> str:
    if isinstance(value, int):
        if not 0 <= value < len(names):
            raise ValueError(f"ordinal {value} of {names}")
        return names[value]
    if value not in names:
        raise ValueError(f"{value!r} is none of {names}")
    return str(value)


def encode_heartbeat(heartbeat: HeartbeatBody) -> bytes:
    """Request body of 34, with the hash codes by which a RocketMQ broker filters."""
    return java_json.dumps(
        {
            "clientID": heartbeat.client_id,
            "consumerDataSet": [_write_group(group) for group in heartbeat.consumer_groups],
            "producerDataSet": [{"groupName": group} for group in heartbeat.producer_groups],
        }
    )


def _write_group(group: ConsumerGroup) -> dict[str, object]:
    return {
        "consumeFromWhere": group.from_where,
        "consumeType": group.consume_type,
        "groupName": group.group,
        "messageModel": group.message_model,
        "subscriptionDataSet": [write_subscription(item) for item in group.subscriptions],
        "unitMode": False,
    }


def write_subscription(item: Subscription) -> dict[str, object]:
    """The JSON object of a subscription."""
    return {
        "classFilterMode": False,
        "codeSet": [java_string_hash(tag) for tag in item.tags],
        "expressionType": item.expression_type,
        "subString": item.expression,
        "subVersion": item.version,
        "tagsSet": list(item.tags),
        "topic": item.topic,
    }
